"""The person at the terminal: whether one is there, what they type, and what Ctrl-C does meanwhile."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import TypeVar

import click

T = TypeVar("T")

THREAD = "agentsd-terminal"
"""The name of threads that wait for a person. Nothing can end one, so the end of the process does not wait for them."""


def is_terminal() -> bool:
    """Is there a person at both ends?"""
    return sys.stdin.isatty() and sys.stderr.isatty()


@contextmanager
def on_interrupt(act: Callable[[], object]) -> Iterator[None]:
    """Have Ctrl-C do this while the context is open, and afterwards what it did before."""
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGINT)
    loop.add_signal_handler(signal.SIGINT, act)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)


def edited(text: str, extension: str) -> str:
    """What a person makes of a text in their editor; empty when they save nothing, or it fails, which is shown."""
    try:
        return click.edit(text, extension=extension) or ""
    except UnicodeDecodeError:
        click.secho("what was saved is not UTF-8", fg="red", err=True)
    except click.ClickException as error:
        click.secho(error.format_message(), fg="red", err=True)
    return ""


async def typed(read: Callable[[], T]) -> T:
    """What a function gets that waits for a person, while everything else goes on.

    Raises:
        click.Abort: Ctrl-C. The function still waits, and takes what is typed next: the command should end.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[T] = loop.create_future()

    def settle(result: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(lambda: None if found.done() else result())

    def wait() -> None:
        try:
            text = read()
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            settle(lambda failed=error: found.set_exception(failed))  # type: ignore[misc]  # bound: `error` is unset
        else:
            settle(lambda: found.set_result(text))

    with on_interrupt(lambda: None if found.done() else found.set_exception(click.Abort())):
        Thread(target=wait, name=THREAD, daemon=True).start()
        try:
            return await found
        except click.Abort:
            click.echo(err=True)  # below what was being typed
            raise
