"""Terminal output: escapes control sequences in text of models, tools and files, and keeps the styles used here."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import TextIOWrapper
from typing import TextIO

import click

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
