"""Terminal output: escapes control sequences in text of models, tools and files, and keeps the styles used here."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import TextIOWrapper
from typing import TextIO

import click

_HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069]")
"""Controls except newline and tab, and what changes the direction of writing."""
_STYLE = re.compile("\x1b\\[(?:0|[12]|3[1-6])m")
"""What `click.style` writes for the styles used here: bold, dim, a colour, and their end."""


def harmless(text: str) -> str:
    """Text with control characters written out as escapes, so that no terminal acts on them."""
    return _HARMFUL.sub(_written_out, text.replace("\r\n", "\n"))


def say(text: str, *, err: bool = False, fg: str | None = None, nl: bool = True) -> None:
    """Print untrusted text: harmless on a terminal, byte for byte elsewhere."""
    stream = sys.stderr if err else sys.stdout
    if stream.isatty():
        text = harmless(text)
        click.echo(click.style(text, fg=fg) if fg else text, nl=nl, err=err)
    else:
        click.echo(text, nl=nl, err=err, color=True)  # otherwise click takes out what looks like a style


class Screen(TextIOWrapper):
    """A standard stream on a terminal. Escapes every control sequence except the styles used here."""

    def __init__(self, covered: TextIOWrapper) -> None:
        """Replace a stream, which stays open."""
        covered.flush()
        super().__init__(covered.buffer, encoding=covered.encoding, errors=covered.errors, line_buffering=True)
        self.covered = covered

    def write(self, text: str) -> int:
        """Write text, made harmless between styles."""
        styles = _STYLE.findall(text)
        parts = [harmless(part) for part in _STYLE.split(text)]
        super().write("".join(part + style for part, style in zip(parts, [*styles, ""], strict=True)))
        return len(text)


def protected(stream: TextIOWrapper) -> TextIOWrapper:
    """The stream itself, or if it is a terminal, a screen in its place."""
    return Screen(stream) if stream.isatty() else stream


def raw_stderr() -> TextIO:
    """Standard error for programs that draw on a terminal, and make what they draw harmless themselves."""
    return sys.stderr.covered if isinstance(sys.stderr, Screen) else sys.stderr


@contextmanager
def prints_on_stderr() -> Iterator[TextIO]:
    """Let what plugins print appear on standard error; yields standard output, which is for a command's result."""
    output = sys.stdout
    with redirect_stdout(sys.stderr):
        yield output


def _written_out(found: re.Match[str]) -> str:
    return repr(found[0])[1:-1]
