"""Lines at the bottom of a terminal that change while a run is in progress, below output that stays."""

from __future__ import annotations

import logging
import os
import sys
from asyncio import get_running_loop
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import TextIOBase
from threading import get_ident
from typing import Protocol, TextIO

import click
from rich.cells import cell_len

from framework.cli.terminal import escape_unstyled

_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
DEFAULT_SIZE = os.terminal_size((80, 24))
LEAST_COLUMNS = 20


class LiveArea(Protocol):
    """Lines that change, below output that stays. Texts contain styles, and no other control sequences."""

    @property
    def size(self) -> os.terminal_size:
        """Size of the terminal."""
        ...

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines instead of those before. None may be wider than the terminal."""
        ...

    def write(self, text: str) -> None:
        """Write complete lines that stay, above the others."""
        ...


def terminal_size(stream: TextIO) -> os.terminal_size:
    """Return the size of the terminal of a stream. COLUMNS has precedence, as for every program."""
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        columns, rows = 0, 0
    given = os.environ.get("COLUMNS", "")
    columns = (int(given) if given.isdecimal() else 0) or columns or DEFAULT_SIZE.columns
    return os.terminal_size((max(columns, LEAST_COLUMNS), rows or DEFAULT_SIZE.lines))


def widths_of_lines(lines: Sequence[str]) -> list[int]:
    """Return the widths of lines with styles, in columns."""
    return [cell_len(click.unstyle(line)) for line in lines]


def rows_of(widths: Sequence[int], columns: int) -> int:
    """Return how many rows lines take: a terminal that becomes narrower wraps the lines that it shows."""
    return sum(max(1, -(-width // columns)) for width in widths)


class TerminalArea:
    """A live area of a terminal on which nobody is asked for input."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._widths: list[int] = []
        """Widths of the lines that are shown."""
        self._drawn: Sequence[str] = ()

    @property
    def size(self) -> os.terminal_size:
        return terminal_size(self._stream)

    def draw(self, lines: Sequence[str]) -> None:
        self._replace("", lines)

    def write(self, text: str) -> None:
        self._replace(text, self._drawn)

    def _replace(self, text: str, lines: Sequence[str]) -> None:
        """Erase the lines, write text and the new lines, in one piece so that nothing flickers."""
        rows = rows_of(self._widths, self.size.columns)
        erase = "\r\x1b[2K" + "\x1b[1A\x1b[2K" * (rows - 1) if rows else ""
        cursor = _SHOW_CURSOR if self._widths and not lines else _HIDE_CURSOR if lines and not self._widths else ""
        self._stream.write(erase + text + "\n".join(lines) + cursor)
        self._stream.flush()
        self._drawn, self._widths = lines, widths_of_lines(lines)


class AreaStream(TextIOBase):
    """A standard stream while a live area is shown: writes complete lines above it, escaped as on a `Screen`."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, area: LiveArea) -> None:
        self._area, self._loop, self._thread = area, get_running_loop(), get_ident()
        self._line = ""

    def isatty(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Write text; an incomplete line is held until it is complete."""
        complete, newline, self._line = (self._line + text).rpartition("\n")
        if newline:
            self._pass_on(escape_unstyled(complete + newline))
        return len(text)

    def finish(self) -> None:
        """Write the incomplete line, if there is one."""
        if self._line:
            self.write("\n")

    def _pass_on(self, text: str) -> None:
        if get_ident() == self._thread:
            self._area.write(text)
        else:  # a tool in a thread, or the log
            self._loop.call_soon_threadsafe(self._area.write, text)


@contextmanager
def prints_above(area: LiveArea) -> Iterator[None]:
    """Redirect prints and the log to the output above an area while the context is open."""
    stream, covered = AreaStream(area), sys.stderr
    handlers = [
        handler
        for handler in logging.getLogger().handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream is covered
    ]
    with redirect_stdout(stream), redirect_stderr(stream):
        for handler in handlers:
            handler.setStream(stream)
        try:
            yield
        finally:
            stream.finish()
            for handler in handlers:
                handler.setStream(covered)
