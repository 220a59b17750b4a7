"""Wraps lines for a terminal between words, with continuation lines indented."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from shutil import get_terminal_size
from typing import TextIO

import click

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
