"""Writing and changing text files, below the base path of the run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from heapq import nlargest
from typing import Literal

from framework.tools.builtin.files import format_size, is_binary
from framework.tools.files.atomic_write import MAX_FILE_BYTES, write_atomically
from framework.tools.files.protection import writable_parts
from framework.tools.files.safe_open import printable, quoted
from framework.tools.tool import ToolContext, tool
from framework.types.errors import ToolError

_MAX_LINE_NUMBERS = 5
"""How many of the places of an ambiguous text are named."""
_MAX_COMPARED_LINES = 5_000
_MAX_LINE_CHARS = 120
_MAX_CANDIDATES = 50
"""Lines whose letters are compared in their order, which takes long; the others are ruled out by their letters."""
_MIN_SIMILARITY = 0.6


@tool(risk="high", paths="path")
def write_file(
    path: str, content: str, mode: Literal["create", "overwrite", "append"] = "create", *, context: ToolContext
) -> str:
    """Write a text file (UTF-8, up to 1 MB). Missing folders are made. To change a part of a file, use edit_file.

    create: only where there is no file yet. overwrite: in the place of all that is in it. append: after what is in it.
    Hidden files and those that decide what runs, such as agents, prompts and plugins, are protected.

    Args:
        path: The file, relative to the base folder, such as docs/notes.txt.
        content: The text, with its line breaks; nothing is added to it.
        mode: What to do about a file that is there already.
        context: The run.
    """
    parts = _target(context, path)
    new = _encoded(content)
    reports: list[str] = []

    def change(old: bytes | None) -> bytes:
        if old is None:
            reports.append(f"wrote {quoted(parts)}: a new file of {_extent(new)}")
            return new
        if mode == "create":
            advice = "edit_file changes a part of it, mode append adds to it, mode overwrite replaces it"
            raise ToolError(f"there is a file {quoted(parts)} already, of {_extent(old)}: {advice}")
        if mode == "append":
            reports.append(f"added {_extent(new)} to {quoted(parts)}, which has {_extent(old + new)} now")
            return old + new
        same = f"{quoted(parts)} says just that already: nothing was changed"
        reports.append(same if old == new else f"overwrote {quoted(parts)}: {_extent(new)} now, {_extent(old)} before")
        return new

    write_atomically(context.files, parts, change, create_folders=True)
    return reports[0]


@tool(risk="high", paths="path")
def edit_file(path: str, old: str, new: str, replace_all: bool = False, *, context: ToolContext) -> str:
    """Replace a piece of a text file with another. Read the file first: the piece must be in it exactly as given.

    Args:
        path: The file, relative to the base folder, such as docs/notes.txt.
        old: The text to replace, with its blanks and line breaks. It must be in the file just once: give lines around
            it, too, if it is not.
        new: What to put in its place; an empty text removes it.
        replace_all: Replace it everywhere it is.
        context: The run.
    """
    if not old:
        raise ToolError("old must not be empty: give the text to replace (write_file makes new files)")
    if old == new:
        raise ToolError("old and new are the same text")
    parts = _target(context, path)
    reports: list[str] = []

    def change(content: bytes | None) -> bytes:
        if content is None:
            raise ToolError(f"there is no file {quoted(parts)}; write_file makes one, search_files finds one")
        text = _decoded(content, parts)
        crlf = "\r\n" in text and text.count("\r\n") == text.count("\n")  # models write plain line breaks
        if crlf:
            text = text.replace("\r\n", "\n")
        piece, replacement = (one.replace("\r\n", "\n") if crlf else one for one in (old, new))
        lines = _lines_of(text, piece)
        if not lines:
            raise ToolError(f"the text to replace is not in {quoted(parts)}{_hint(text, piece)}")
        if len(lines) > 1 and not replace_all:
            raise ToolError(_ambiguous(lines, parts))
        count = text.count(piece)
        _check_size(len(content) + count * (_size(replacement, crlf) - _size(piece, crlf)))
        edited = text.replace(piece, replacement)
        reports.append(_edit_report(count, lines[0], edited, parts))
        return _encoded(edited.replace("\n", "\r\n") if crlf else edited)

    write_atomically(context.files, parts, change)
    return reports[0]


def _target(context: ToolContext, path: str) -> tuple[str, ...]:
    if path.endswith("/"):
        raise ToolError("the path ends in /: give the name of a file")
    return writable_parts(context, path)


def _encoded(text: str) -> bytes:
    try:
        content = text.encode()
    except UnicodeEncodeError as error:
        raise ToolError(f"the text has broken Unicode at character {error.start + 1}") from None
    if b"\0" in content:
        raise ToolError("the text has a zero byte; only text files are written")
    _check_size(len(content))
    return content


def _check_size(size: int) -> None:
    """Refuse a file that would be too large, by its size in bytes: before it is built, where that can be told."""
    if size > MAX_FILE_BYTES:
        raise ToolError(f"the text has {format_size(size)}; at most {format_size(MAX_FILE_BYTES)} are written")


def _size(text: str, crlf: bool) -> int:
    """Bytes of the text in a file."""
    return len(text.encode()) + (text.count("\n") if crlf else 0)


def _decoded(content: bytes, parts: Sequence[str]) -> str:
    if is_binary(content):
        raise ToolError(f"{quoted(parts)} is binary, not text")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ToolError(f"{quoted(parts)} is not UTF-8 text (at byte {error.start + 1}), so it is not edited") from None


def _extent(content: bytes) -> str:
    lines = content.count(b"\n") + (content != b"" and not content.endswith(b"\n"))
    return f"{_lines(lines)}, {format_size(len(content))}"


def _lines(count: int) -> str:
    return f"{count} line{'' if count == 1 else 's'}"


def _lines_of(text: str, piece: str) -> list[int]:
    """The numbers of the lines at which the piece begins, overlapping pieces too."""
    numbers: list[int] = []
    number, counted = 1, 0
    start = text.find(piece)
    while start >= 0 and len(numbers) <= _MAX_LINE_NUMBERS:
        number += text.count("\n", counted, start)
        counted = start
        numbers.append(number)
        start = text.find(piece, start + 1)
    return numbers


def _ambiguous(lines: Sequence[int], parts: Sequence[str]) -> str:
    more = " and others" if len(lines) > _MAX_LINE_NUMBERS else ""
    where = f"lines {', '.join(map(str, lines[:_MAX_LINE_NUMBERS]))}{more}"
    return f"the text to replace is more than once in {quoted(parts)} ({where}): give lines around it, or replace_all"


def _edit_report(count: int, line: int, edited: str, parts: Sequence[str]) -> str:
    times = f"at line {line}" if count == 1 else f"{count} times, first at line {line}"
    return f"replaced it {times}; {quoted(parts)} has {_extent(edited.encode())} now"


def _hint(text: str, piece: str) -> str:
    """Where the first line of a piece that is not there may have been meant to be."""
    target = next((line.strip() for line in piece.split("\n") if line.strip()), "")[:_MAX_LINE_CHARS]
    lines = [re.sub(r"\s+", " ", line.strip()[:_MAX_LINE_CHARS]) for line in text.split("\n")[:_MAX_COMPARED_LINES]]
    near = _nearest(re.sub(r"\s+", " ", target), lines)
    if near is None:
        return ": no line is like its first one; read_file shows what is there"
    number = near + 1
    original = printable(text.split("\n")[number - 1][:_MAX_LINE_CHARS])
    return f"; the nearest line is {number}: {original!r}. Blanks and line breaks count, too"


def _nearest(target: str, lines: Sequence[str]) -> int | None:
    """The index of the line that is most like the wanted one, if any is."""
    matcher = SequenceMatcher()
    matcher.set_seq2(target)
    estimates: list[tuple[float, int]] = []
    for index, line in enumerate(lines):
        matcher.set_seq1(line)
        if matcher.real_quick_ratio() >= _MIN_SIMILARITY and (estimate := matcher.quick_ratio()) >= _MIN_SIMILARITY:
            estimates.append((estimate, -index))
    best = max(
        ((_ratio(matcher, lines[-negated]), negated) for _, negated in nlargest(_MAX_CANDIDATES, estimates)),
        default=None,
    )
    return -best[1] if best and best[0] >= _MIN_SIMILARITY else None


def _ratio(matcher: SequenceMatcher[str], line: str) -> float:
    matcher.set_seq1(line)
    return matcher.ratio()
