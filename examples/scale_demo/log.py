"""The log of what runs did, written by the model server and by the tool of every worker, and read by `facts`.

It is a file outside the store: what the store says about runs is compared with it. Each line is appended in one write,
so processes of one machine share the file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

What = Literal["asked", "answered", "begin", "end"]
"""The model was called, or returned the run's last message; the tool began, or ended."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the log."""

    at: float
    """Seconds on the monotonic clock of this machine, which all its processes share."""
    what: What
    conversation: str
    turn: int
    """Number of the run in its conversation, in the order of submission, from 1."""
    step: int
    """Number of the step that the run has reached, from 0: the number of its finished tool calls."""
    process: str
    """Name and process id of the worker, such as `worker-1:4711`."""

    @property
    def run(self) -> str:
        """The run, such as `c7.2`: turn 2 of conversation c7."""
        return f"{self.conversation}.{self.turn}"

    @property
    def is_act(self) -> bool:
        """Whether the run began something in this process: a call of the model, or of the tool."""
        return self.what in ("asked", "begin")


class Log:
    """Appends entries to the file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def add(self, what: What, run: str, step: int, process: str) -> None:
        """Append an entry with the current time."""
        os.write(self._file, json.dumps([time.monotonic(), what, run, step, process]).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_log(path: Path) -> list[Entry]:
    """Return the entries, in the order of their times."""
    with path.open("rb") as lines:
        return sorted(_entries(lines), key=lambda entry: entry.at)


def _entries(lines: Iterator[bytes]) -> Iterator[Entry]:
    for line in lines:
        if not line.endswith(b"\n"):  # being written
            break
        at, what, run, step, process = json.loads(line)
        conversation, _, turn = run.rpartition(".")
        yield Entry(at, what, conversation, int(turn), step, process)
