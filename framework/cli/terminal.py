"""Interaction with the user: reads input and editor text, and handles Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import TypeVar

import click

T = TypeVar("T")

THREAD = "agentsd-terminal"
"""Name of threads that wait for input. They cannot be stopped, so the process ends without them."""


def is_terminal() -> bool:
    """Return whether input and output are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def draws() -> bool:
    """Return whether standard error is a terminal on which lines can be drawn again."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def shows_answers() -> bool:
    """Return whether answers appear where runs are drawn, so that they are streamed and not printed at the end."""
    return draws() and sys.__stdout__ is not None and sys.__stdout__.isatty()


@contextmanager
def on_interrupt(act: Callable[[], object]) -> Iterator[None]:
    """Call `act` on Ctrl-C while the context is open."""
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGINT)
    loop.add_signal_handler(signal.SIGINT, act)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)


def open_editor(text: str, extension: str) -> str:
    """Open text in the user's editor and return the result; empty if nothing is saved or an error was shown."""
    try:
        return click.edit(text, extension=extension) or ""
    except UnicodeDecodeError:
        click.secho("the saved text is not UTF-8", fg="red", err=True)
    except click.ClickException as error:
        click.secho(error.format_message(), fg="red", err=True)
    return ""


async def read_in_thread(read: Callable[[], T]) -> T:
    """Run a function that waits for input in a thread, and return its result.

    Raises:
        click.Abort: Ctrl-C. The function still reads the next input, so the command should end.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[T] = loop.create_future()

    def settle(result: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(lambda: None if found.done() else result())

    def wait() -> None:
        try:
            text = read()
        except Exception as error:  # noqa: BLE001 - raised again by the caller
            settle(lambda failed=error: found.set_exception(failed))  # type: ignore[misc]  # bound: `error` is unset
        else:
            settle(lambda: found.set_result(text))

    with on_interrupt(lambda: None if found.done() else found.set_exception(click.Abort())):
        Thread(target=wait, name=THREAD, daemon=True).start()
        try:
            return await found
        except click.Abort:
            click.echo(err=True)  # start a new line below the input
            raise
