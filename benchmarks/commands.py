"""Cold start of each command: a new process, on the starter project."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import Row, Table, paired
from benchmarks.imports import FLOOR, FLOOR_NAME, timed
from framework.cli.init import copy_starter

IN_PROJECT = (
    "check",
    "explain basic",
    "agents list",
    "tools list",
    "run What_is_12*7",
    "fleet",
    "budgets",
    "runs list",
    "conversations list",
)
"""Commands that read the project, or a store without runs."""
ALONE = ("--version", "--help", "schema", "completion bash", "keys new --name me")
HELP = ("init", "new", "test", "chat", "serve", "worker", "mcp", "config", "runs decide")
"""Commands that write files, need a server, take long or do not end: only their imports are measured, by their help."""


def tables(*, quick: bool) -> Iterator[Table]:
    """Measure all commands in turn."""
    with TemporaryDirectory() as folder:
        starter = Path(folder) / "starter"
        copy_starter(starter)
        words = {name: [*name.split(), "-C", str(starter)] for name in IN_PROJECT}
        words |= {name: name.split() for name in ALONE}
        words |= {f"{name} --help": [*name.split(), "--help"] for name in HELP}
        commands = {f"agentsd {name}": ["-m", "framework.cli.main", *given] for name, given in words.items()}
        walls = timed({FLOOR_NAME: ["-c", FLOOR], **commands}, 1 if quick else 3)
    rows = [Row(name, min(times), paired(times, walls[FLOOR_NAME])) for name, times in walls.items()]
    yield Table("A new process of each command, on the starter, lowest wall time", "ms", rows)
