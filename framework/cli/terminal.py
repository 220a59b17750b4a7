"""The terminal: escaped output, wrapped lines, input, and where output is written."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from shutil import get_terminal_size
from threading import Thread
from typing import Any, TextIO, TypeVar

import click

from framework.types.errors import RequestError

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069]")
"""Control characters except newline and tab, and marks that change the writing direction."""
_STYLE = re.compile("\x1b\\[(?:0|[12]|3[1-6])m")
"""Sequences of `click.style` for the styles used here: bold, dim, a colour, and reset."""


def escape_controls(text: str) -> str:
    """Replace control characters with visible escapes, so that no terminal acts on them."""
    return _CONTROLS.sub(_visible_escape, text.replace("\r\n", "\n"))


def escape_unstyled(text: str) -> str:
    """Escape text as `escape_controls` does, except for the styles used here."""
    styles = _STYLE.findall(text)
    parts = [escape_controls(part) for part in _STYLE.split(text)]
    return "".join(part + style for part, style in zip(parts, [*styles, ""], strict=True))


def say(text: str, *, err: bool = False, fg: str | None = None, nl: bool = True) -> None:
    """Print untrusted text: escaped on a terminal, unchanged elsewhere."""
    stream = sys.stderr if err else sys.stdout
    if stream.isatty():
        text = escape_controls(text)
        click.echo(click.style(text, fg=fg) if fg else text, nl=nl, err=err)
    else:
        click.echo(text, nl=nl, err=err, color=True)  # otherwise click removes what looks like a style


class Screen(TextIOWrapper):
    """A standard stream on a terminal. Escapes every control sequence except the styles used here."""

    def __init__(self, covered: TextIOWrapper) -> None:
        """Replace a stream, which stays open."""
        covered.flush()
        super().__init__(covered.buffer, encoding=covered.encoding, errors=covered.errors, line_buffering=True)
        self.covered = covered

    def write(self, text: str) -> int:
        """Write text, escaped between styles."""
        super().write(escape_unstyled(text))
        return len(text)


def protected(stream: TextIOWrapper) -> TextIOWrapper:
    """Return a `Screen` for a terminal, any other stream unchanged."""
    return Screen(stream) if stream.isatty() else stream


def raw_stderr() -> TextIO:
    """Return standard error for code that draws on a terminal and escapes its own output."""
    return sys.stderr.covered if isinstance(sys.stderr, Screen) else sys.stderr


@contextmanager
def prints_on_stderr() -> Iterator[TextIO]:
    """Redirect prints, e.g. of plugins, to standard error; yield standard output, for a command's result."""
    output = sys.stdout
    with redirect_stdout(sys.stderr):
        yield output


def _visible_escape(found: re.Match[str]) -> str:
    return repr(found[0])[1:-1]


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
def starting() -> Iterator[None]:
    """Show on a terminal that a command starts; the line is erased afterwards."""
    if not draws():
        yield
        return
    click.secho("starting…", dim=True, nl=False, err=True)
    raw_stderr().write("\r")  # what is logged meanwhile replaces it
    try:
        yield
    finally:
        raw_stderr().write("\r\x1b[2K")


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


def discard_typed() -> None:
    """Discard what was typed before a question is shown: it is no answer to it."""
    with suppress(OSError, ValueError, termios.error):  # no terminal
        termios.tcflush(sys.stdin, termios.TCIFLUSH)


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


_WORD = re.compile("( *)([^ ]*)")
"""Spaces and a word. Both may be empty: a pattern that fails at the end of many spaces is quadratic."""
HANGING = 2
"""Additional indentation of continuation lines."""


def wrapped_line(line: str, stream: TextIO | None = None, hanging: int | None = None) -> str:
    """Return a line as it is printed: wrapped on a terminal, unchanged elsewhere.

    Args:
        line: one line, which may be styled.
        stream: where it is printed. Default: standard error.
        hanging: columns before continuation lines. Default: the line's own indentation and two more.
    """
    stream = sys.stderr if stream is None else stream
    return wrap(line, get_terminal_size().columns, hanging) if stream.isatty() else line


def wrap(line: str, columns: int, hanging: int | None = None) -> str:
    """Return a line of at most so many columns, broken between words; a longer word has a line of its own."""
    cell_len = import_module("rich.cells").cell_len  # computes the width of Chinese characters
    plain = click.unstyle(line)
    if cell_len(plain) <= columns:
        return line
    indent = len(plain) - len(plain.lstrip()) + HANGING if hanging is None else hanging
    indent = min(indent, columns // 2)
    lines, used = [""], 0
    for spaces, word in _WORD.findall(line):
        if not word:
            continue
        width = cell_len(click.unstyle(word))
        if lines[-1] and used + len(spaces) + width > columns:
            lines.append(" " * indent + word)
            used = indent + width
        else:
            lines[-1] += spaces + word
            used += len(spaces) + width
    return "\n".join(lines)


def write_out(text: str, path: str | None) -> None:
    """Print text, or write it into a new file; raises RequestError if the file exists."""
    if path is None or path == "-":
        click.echo(text, nl=False)
        return
    try:
        with Path(path).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise RequestError(f"{path} already exists") from None
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}") from None
    click.echo(f"written to {path}", err=True)


def print_json(data: Any) -> None:
    """Print data as indented JSON."""
    click.echo(as_json_text(data), nl=False)


def as_json_text(data: Any) -> str:
    """Format data as indented JSON."""
    return json.dumps(data, ensure_ascii=False, indent=2) + "\n"
