"""Tables, and docstrings as Markdown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from textwrap import fill

WIDTH = 100


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield "| " + " | ".join(cell(text) for text in row) + " |"


def cell(text: str) -> str:
    """Return text that fits into a cell: one line, with its bars escaped."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Return text in the font of code; empty text stays empty."""
    return f"`{text}`" if text else ""


def prose(text: str, indent: str = "") -> str:
    """Return a paragraph, wrapped; its further lines begin with `indent`."""
    words = " ".join(text.split())
    return fill(words, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def written_types(kind: type) -> dict[str, str]:
    """Return the types of the fields of a class as its source writes them, inherited ones included."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        found |= {name: str(written) for name, written in inspect.get_annotations(one).items()}
    return found


def first_paragraph(text: str | None) -> str:
    """Return the first paragraph of a docstring in one line, or nothing."""
    return " ".join(inspect.cleandoc(text or "").split("\n\n", 1)[0].split())


def docstring(text: str | None) -> Iterator[str]:
    """Yield the paragraphs of a docstring as Markdown: its sections (`Args:`) become lists, code stays code."""
    for part in re.split(r"\n\n+(?![^`]*```\n)", inspect.cleandoc(text or "")):
        head, *rest = part.splitlines() or [""]
        if re.fullmatch(r"(Args|Returns|Raises|Yields|Attributes):", head):
            yield f"**{head[:-1]}**\n"
            entries = re.split(r"^ {4}(?! )", "\n".join(rest), flags=re.MULTILINE)[1:]
            yield "\n".join(_entry(one) for one in entries)
        elif part.startswith(("```", "    ", "- ", "| ")):
            yield part if part.startswith(("```", "- ", "| ")) else f"```text\n{inspect.cleandoc(part)}\n```"
        else:
            yield prose(part)
        yield ""


def _entry(text: str) -> str:
    """Return an entry of a section, such as `name: its meaning`, as an item of a list."""
    name, _, meaning = text.partition(": ")
    return prose(f"- `{name}`: {meaning}" if meaning and " " not in name.strip("*") else f"- {text}", "  ")
