"""Runs `agentsd` on a machine whose time of day is wrong: `python -m tests.support.wrong_clock SECONDS COMMAND …`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen

from tests.support.commands import ENVIRONMENT
from tests.support.paths import ROOT


@contextmanager
def started(seconds: float, *arguments: str, cwd: Path, **environment: str) -> Iterator[Popen[str]]:
    """Run `agentsd` in a new process whose clock is ahead by this much, until the context ends."""
    command = [sys.executable, "-m", "tests.support.wrong_clock", str(seconds), *arguments]
    env = {**ENVIRONMENT, "PYTHONPATH": str(ROOT), **environment}
    with Popen(command, cwd=cwd, env=env, stdout=PIPE, stderr=STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def main() -> None:
    """Set the clock before any module of agentsd reads it, then run the command."""
    ahead, now, now_ns = float(sys.argv.pop(1)), time.time, time.time_ns
    time.time = lambda: now() + ahead
    time.time_ns = lambda: now_ns() + int(ahead * 1e9)
    from framework.cli.main import main as agentsd

    agentsd()


if __name__ == "__main__":
    main()
