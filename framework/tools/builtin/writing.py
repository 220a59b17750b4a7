"""The tools `write_file` and `edit_file`: text files below the base path of the run."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from heapq import nlargest
from typing import Literal

from framework.tools.builtin.files import format_size, is_binary
from framework.tools.files import (
    MAX_FILE_BYTES,
    Update,
    preview_write,
    printable,
    quoted,
    writable_parts,
    write_atomically,
)
from framework.tools.tool import ToolContext, tool
from framework.types.errors import ToolError

_MAX_LINE_NUMBERS = 5
"""Maximum number of line numbers named for a text that occurs more than once."""
_MAX_COMPARED_LINES = 5_000
_MAX_LINE_CHARS = 120
_MAX_CANDIDATES = 50
"""Maximum number of lines compared in full, which is slow; the others are excluded by a quick estimate."""
_MIN_SIMILARITY = 0.6
_Change = tuple[tuple[str, ...], Update, list[str]]
"""The parts of a path, the change of the file's content, and a list that the change adds its report to."""


def _preview_write(path: str, content: str, mode: str, context: ToolContext) -> str:
    """Return the difference that `write_file` would make; a new file has none, because its content is an argument."""
    parts, change, _ = _written(path, content, mode, context)
    old, new = preview_write(context.files, parts, change)
    return unified_diff(old, new, "/".join(parts)) if old else ""


def _preview_edit(path: str, old: str, new: str, replace_all: bool, context: ToolContext) -> str:
    """Return the difference that `edit_file` would make. Errors quote nothing of the file: nobody has approved yet."""
    parts, change, _ = _edited(path, old, new, replace_all, context, quotes=False)
    return unified_diff(*preview_write(context.files, parts, change), "/".join(parts))


@tool(risk="high", paths="path", preview=_preview_write)
def write_file(
    path: str, content: str, mode: Literal["create", "overwrite", "append"] = "create", *, context: ToolContext
) -> str:
    """Write a text file (UTF-8, up to 1 MB). Missing folders are created. To change a part of a file, use edit_file.

    create: only if the file does not exist yet. overwrite: replace the whole content. append: add to its end.
    Hidden files and those that decide what runs, such as agents, prompts and plugins, are protected.

    Args:
        path: The file, relative to the base folder, such as docs/notes.txt.
        content: The text, with its line breaks; nothing is added to it.
        mode: What to do if the file exists.
        context: The run.
    """
    parts, change, reports = _written(path, content, mode, context)
    write_atomically(context.files, parts, change, create_folders=True)
    return reports[0]


def _written(path: str, content: str, mode: str, context: ToolContext) -> _Change:
    """Return the change that `write_file` makes."""
    parts = _target(context, path)
    new = _encoded(content)
    reports: list[str] = []

    def change(old: bytes | None) -> bytes:
        if old is None:
            reports.append(f"wrote {quoted(parts)}: a new file of {_extent(new)}")
            return new
        if mode == "create":
            advice = "edit_file changes a part of it, mode append adds to it, mode overwrite replaces it"
            raise ToolError(f"the file {quoted(parts)} exists already, with {_extent(old)}: {advice}")
        if mode == "append":
            reports.append(f"added {_extent(new)} to {quoted(parts)}, which has {_extent(old + new)} now")
            return old + new
        same = f"{quoted(parts)} has this content already: nothing was changed"
        reports.append(same if old == new else f"overwrote {quoted(parts)}: {_extent(new)} now, {_extent(old)} before")
        return new

    return parts, change, reports


@tool(risk="high", paths="path", preview=_preview_edit)
def edit_file(path: str, old: str, new: str, replace_all: bool = False, *, context: ToolContext) -> str:
    """Replace a piece of a text file with another. Read the file first: it must contain the piece exactly as given.

    Args:
        path: The file, relative to the base folder, such as docs/notes.txt.
        old: The text to replace, with its spaces and line breaks. It must occur only once in the file: include the
            lines around it if it does not.
        new: The replacement; an empty text removes the piece.
        replace_all: Replace every occurrence.
        context: The run.
    """
    parts, change, reports = _edited(path, old, new, replace_all, context)
    write_atomically(context.files, parts, change)
    return reports[0]


def _edited(path: str, old: str, new: str, replace_all: bool, context: ToolContext, *, quotes: bool = True) -> _Change:
    """Return the change that `edit_file` makes; its errors may quote a similar line of the file."""
    if not old:
        raise ToolError("old must not be empty: give the text to replace (write_file creates new files)")
    if old == new:
        raise ToolError("old and new are the same text")
    parts = _target(context, path)
    reports: list[str] = []

    def change(content: bytes | None) -> bytes:
        if content is None:
            raise ToolError(f"there is no file {quoted(parts)}: create it with write_file, or search with search_files")
        text = _decoded(content, parts)
        crlf = "\r\n" in text and text.count("\r\n") == text.count("\n")  # models write plain line breaks
        if crlf:
            text = text.replace("\r\n", "\n")
        piece, replacement = (part.replace("\r\n", "\n") if crlf else part for part in (old, new))
        lines = _lines_of(text, piece)
        if not lines:
            raise ToolError(f"the text to replace is not in {quoted(parts)}{_hint(text, piece) if quotes else ''}")
        if len(lines) > 1 and not replace_all:
            raise ToolError(_ambiguous(lines, parts))
        count = text.count(piece)
        _check_size(len(content) + count * (_size(replacement, crlf) - _size(piece, crlf)))
        edited = text.replace(piece, replacement)
        reports.append(_edit_report(count, lines[0], edited, parts))
        return _encoded(edited.replace("\n", "\r\n") if crlf else edited)

    return parts, change, reports


def unified_diff(old: bytes, new: bytes, name: str) -> str:
    """Return the difference of two texts for a person; empty if they are equal.

    Large texts are compared from both ends only, so that the lines between the first and the last change are all shown
    as changed.
    """
    before, after = (content.decode("utf-8", "replace").splitlines() for content in (old, new))
    if len(before) + len(after) <= _MAX_COMPARED_LINES:
        return "\n".join(difflib.unified_diff(before, after, name, name, lineterm=""))
    pairs = zip(before, after, strict=False)
    start = next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(before), len(after)))
    tails = zip(reversed(before[start:]), reversed(after[start:]), strict=False)
    same = next((index for index, (one, other) in enumerate(tails) if one != other), None)
    end = min(len(before), len(after)) - start if same is None else same
    removed, added = before[start : len(before) - end], after[start : len(after) - end]
    if not removed and not added:
        return ""
    head = [f"--- {name}", f"+++ {name}", f"@@ -{start + 1},{len(removed)} +{start + 1},{len(added)} @@"]
    return "\n".join([*head, *(f"-{line}" for line in removed), *(f"+{line}" for line in added)])


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
    """Raise ToolError if a file of `size` bytes would be too large; called before the content is built, if possible."""
    if size > MAX_FILE_BYTES:
        raise ToolError(f"the text has {format_size(size)}; the limit is {format_size(MAX_FILE_BYTES)}")


def _size(text: str, crlf: bool) -> int:
    """Return the size of the text in a file, in bytes."""
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
    """Return the numbers of the lines where the piece begins, including overlapping occurrences."""
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
    return (
        f"the text to replace occurs more than once in {quoted(parts)} ({where}): add lines around it, or replace_all"
    )


def _edit_report(count: int, line: int, edited: str, parts: Sequence[str]) -> str:
    times = f"at line {line}" if count == 1 else f"{count} times, first at line {line}"
    return f"replaced it {times}; {quoted(parts)} has {_extent(edited.encode())} now"


def _hint(text: str, piece: str) -> str:
    """Return a hint that names the line most similar to the first line of a missing piece."""
    target = next((line.strip() for line in piece.split("\n") if line.strip()), "")[:_MAX_LINE_CHARS]
    lines = [re.sub(r"\s+", " ", line.strip()[:_MAX_LINE_CHARS]) for line in text.split("\n")[:_MAX_COMPARED_LINES]]
    near = _nearest(re.sub(r"\s+", " ", target), lines)
    if near is None:
        return ": no line is similar to its first line; read the file with read_file"
    number = near + 1
    original = printable(text.split("\n")[number - 1][:_MAX_LINE_CHARS])
    return f"; the most similar line is {number}: {original!r}. Spaces and line breaks must match, too"


def _nearest(target: str, lines: Sequence[str]) -> int | None:
    """Return the index of the line most similar to the target, or None if none is similar."""
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
