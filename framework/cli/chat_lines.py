"""Input of a chat: what reads messages, and the plain reader for pipes and simple terminals."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import Protocol

import click

from framework.cli.live_area import LiveArea, TerminalArea
from framework.cli.screen import raw_stderr
from framework.cli.terminal import on_interrupt, read_in_thread

PROMPT = "you> "


class MessageReader(Protocol):
    """Reads the messages of a chat."""

    def reading(self) -> AbstractAsyncContextManager[None]:
        """Read messages while the context is open."""
        ...

    async def read(self, label: str = PROMPT) -> str | None:
        """Return the next message; None or an empty one at the end of the input. Raises click.Abort on Ctrl-C."""
        ...

    def suspended(self) -> AbstractAsyncContextManager[None]:
        """Leave the terminal to another dialog while the context is open."""
        ...

    def on_interrupt(self, act: Callable[[], object]) -> AbstractContextManager[None]:
        """Call `act` on Ctrl-C while the context is open."""
        ...

    @property
    def area(self) -> LiveArea:
        """Where runs are drawn, if standard error is a terminal."""
        ...


class LineReader:
    """Reads one message per line of standard input, until its end or an empty line."""

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        yield

    @asynccontextmanager
    async def suspended(self) -> AsyncIterator[None]:
        yield

    def on_interrupt(self, act: Callable[[], object]) -> AbstractContextManager[None]:
        return on_interrupt(act)

    @property
    def area(self) -> LiveArea:
        return TerminalArea(raw_stderr())

    async def read(self, label: str = PROMPT) -> str | None:
        if sys.stdin.isatty():
            click.secho(f"\n{label}", bold=True, nl=False, err=True)
        line = await read_in_thread(sys.stdin.readline)
        if not line and sys.stdin.isatty():
            click.echo(err=True)  # Ctrl-D leaves the cursor behind the prompt
        return line.strip() or None
