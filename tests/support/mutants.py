"""Breaks important lines one at a time, and checks that the nearest test notices: `make mutants`.

Each mutant changes one line of a copy of this repository and runs the test file that a reader would open first. A
mutant dies when a test of that file fails. The table is in `tests/mutants.py`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from os import cpu_count
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

from tests.support.paths import ROOT

TIMEOUT = 300
"""Timeout of the test file of one mutant, in seconds."""
FAILED_TEST = re.compile(r"^_+ (?:ERROR at \w+ of )?(test_.+?) _+$", re.MULTILINE)
COPIED = ("agentsd", "framework", "tests", "agents.d", "prompts", "plugins", "data", "examples", "docs", "benchmarks")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one line, and the test file that must notice it."""

    module: str
    """Path below `framework/`, without `.py`."""
    line: str
    """Text that occurs once in the module."""
    instead: str
    test: str
    """Path below `tests/`, without `.py`."""

    @property
    def path(self) -> Path:
        """The module, relative to the root."""
        return Path("framework", f"{self.module}.py")

    def applied(self, source: str) -> str:
        """Return the changed source; raises ValueError unless the line occurs exactly once."""
        if source.count(self.line) != 1:
            raise ValueError(f"{self.path}: {self.line!r} occurs {source.count(self.line)} times, expected 1")
        return source.replace(self.line, self.instead)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one mutant."""

    mutant: Mutant
    killed_by: str
    """Name of the first test that failed; empty if the mutant survived."""


def try_mutant(copy: Path, mutant: Mutant) -> Outcome:
    """Apply a mutant to a copy of the repository, run its test, and undo the change."""
    file = copy / mutant.path
    source = file.read_text("utf-8")
    file.write_text(mutant.applied(source), "utf-8")
    test = f"tests/{mutant.test}.py"
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider", "--tb=short", test]
    try:
        done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return Outcome(mutant, f"no end within {TIMEOUT} s")
    finally:
        file.write_text(source, "utf-8")
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{test}: pytest ended with {done.returncode}\n{done.stdout}{done.stderr}")
    failed = FAILED_TEST.search(done.stdout)
    return Outcome(mutant, (failed[1] if failed else "an error") if done.returncode else "")


@contextmanager
def copies(count: int) -> Iterator[SimpleQueue[Path]]:
    """Copy the repository `count` times into a temporary folder; yield a queue of the copies that are free."""
    free: SimpleQueue[Path] = SimpleQueue()
    with TemporaryDirectory(prefix="agentsd-mutants-") as folder:
        for number in range(count):
            copy = Path(folder, str(number))
            for name in COPIED:
                shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            for name in ("pyproject.toml", "README.md", "AGENTS.md"):
                shutil.copy(ROOT / name, copy / name)
            free.put(copy)
        yield free


def try_all(mutants: Sequence[Mutant]) -> Iterator[Outcome]:
    """Try mutants in parallel, one for each processor; yield their outcomes in order."""
    workers = cpu_count() or 1
    with copies(workers) as free, ThreadPoolExecutor(workers) as pool:

        def attempt(mutant: Mutant) -> Outcome:
            copy = free.get()
            try:
                return try_mutant(copy, mutant)
            finally:
                free.put(copy)

        yield from pool.map(attempt, mutants)
