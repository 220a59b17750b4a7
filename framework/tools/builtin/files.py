"""Tools for files in a base folder, and `shell`, one command in the sandbox that the operator sets up."""

from __future__ import annotations

import difflib
import heapq
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from heapq import nlargest
from pathlib import PurePosixPath
from typing import Literal

from framework.tools.child_processes import output_text, require_sandbox, run_sandboxed
from framework.tools.files import (
    MAX_FILE_BYTES,
    BaseFolder,
    Update,
    is_hidden,
    open_file,
    open_folder,
    preview_write,
    printable,
    quoted,
    readable_parts,
    writable_parts,
    write_atomically,
)
from framework.tools.tool import ToolContext, tool
from framework.types.errors import RequestError, ToolError
from framework.types.file import File
from framework.types.media import MAX_MEDIA_BYTES, file_size, media_type_of

_MAX_ENTRIES = 200
_MAX_READ_BYTES = 1024 * 1024
BINARY_CHECK_BYTES = 8 * 1024


@tool(risk="low", idempotent=True, paths="path")
def list_dir(path: str = ".", *, context: ToolContext) -> str:
    """List the content of a folder: one line per entry, with its kind and size; folders end in /.

    Hidden entries are omitted; at most 200 entries are shown.

    Args:
        path: The folder, relative to the base folder, such as docs or docs/2026; . is the base folder.
        context: The run.
    """
    files = context.files
    parts = readable_parts(files, path)
    with open_folder(files, parts) as folder:
        with os.scandir(folder) as entries:
            visible = (entry.name for entry in entries if not is_hidden(entry.name))
            names = [name for name in visible if files.permits((*parts, name))]
        lines = [_entry(folder, name) for name in heapq.nsmallest(_MAX_ENTRIES, names)]
    if len(names) > _MAX_ENTRIES:
        lines.append(f"({len(names) - _MAX_ENTRIES} more entries: list a subfolder, or find a name with search_files)")
    return "\n".join(lines) or "(nothing in this folder)"


@tool(risk="low", idempotent=True, paths="path")
def read_file(path: str, start_line: int = 1, max_lines: int = 200, *, context: ToolContext) -> str | File:
    """Read lines of a text file (UTF-8), or look at an image, a PDF or audio.

    If there is more text, the last line, in parentheses, says how to get it. Only the first MB of a text file can be
    read; hidden files and dot-env files cannot be read.

    Args:
        path: The file, relative to the base folder, such as docs/notes.txt or docs/chart.png.
        start_line: The first line to read; the first line of the file is 1.
        max_lines: How many lines to read at most.
        context: The run.
    """
    if start_line < 1 or max_lines < 1:
        raise ToolError("start_line and max_lines must be 1 or more")
    with context.open(path) as file:
        content, size = file.read(_MAX_READ_BYTES), os.fstat(file.fileno()).st_size
        if _is_media(content):
            if size > MAX_MEDIA_BYTES:
                raise ToolError(f"the file has {file_size(size)}: at most {file_size(MAX_MEDIA_BYTES)} can be read")
            return _media(content + file.read(), PurePosixPath(path).name)
    lines = _first_lines(content, size)
    if not lines:
        return "(the file is empty)"
    if start_line > len(lines):
        raise ToolError(f"there are only {len(lines)} lines to read: start_line must be at most {len(lines)}")
    end = start_line - 1 + max_lines
    chosen = lines[start_line - 1 : end]
    if len(lines) > end:
        chosen.append(f"({len(lines) - end} more lines: continue with start_line={end + 1})")
    elif size > _MAX_READ_BYTES:
        chosen.append(f"(only the first MB of {format_size(size)} can be read)")
    return "\n".join(chosen)


def is_binary(content: bytes) -> bool:
    """Return whether content is binary: it has a zero byte in its first 8 KB."""
    return b"\0" in content[:BINARY_CHECK_BYTES]


def format_size(size: int) -> str:
    """Return a number of bytes for people: `12 bytes`, `3.4 KB`, `5.6 MB`."""
    if size < 1024:
        return f"{size} byte{'' if size == 1 else 's'}"
    return f"{size / 1024:.1f} KB" if size < 1024**2 else f"{size / 1024**2:.1f} MB"


def _entry(folder: int, name: str) -> str:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return f"{printable(name)}  deleted"
    if stat.S_ISDIR(status.st_mode):
        return f"{printable(name)}/  folder"
    if stat.S_ISREG(status.st_mode):
        return f"{printable(name)}  file, {format_size(status.st_size)}"
    return f"{printable(name)}  {'link, not followed' if stat.S_ISLNK(status.st_mode) else 'pipe or device'}"


def _is_media(content: bytes) -> bool:
    """Return whether content is a file for models; some texts start like one, but PDFs are not always binary."""
    media_type = media_type_of(content)
    return media_type == "application/pdf" or (media_type is not None and is_binary(content))


def _media(content: bytes, name: str) -> File:
    """Return a file for the model, without its name if the extension is that of another type; raises ToolError."""
    with suppress(RequestError):
        return File.from_bytes(content, name=name)
    try:
        return File.from_bytes(content)
    except RequestError as error:
        raise ToolError(error.message) from None


def _first_lines(content: bytes, size: int) -> list[str]:
    if is_binary(content):
        raise ToolError(f"the file is binary ({format_size(size)}), not text: it cannot be read")
    if size > len(content) and b"\n" in content:
        content = content[: content.rindex(b"\n") + 1]
    lines = content.decode("utf-8-sig", "replace").replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


_MAX_FILE_BYTES = 2 * 1024 * 1024
MAX_SEARCHED_FILES = 100_000
MAX_SEARCH_SECONDS = 20.0
_MAX_LINE_CHARS = 200
_CONTEXT_CHARS = 60
"""Characters shown before the match in a shortened line."""
_MAX_QUERY_CHARS = 500
_MAX_LIMIT = 1_000
_SKIPPED_FOLDERS = ("__pycache__", "node_modules", ".venv", "venv", "dist", "build", "*.egg-info")

_Parts = tuple[str, ...]


@tool(risk="low", idempotent=True, paths="root_dir")
def search_files(query: str, root_dir: str = ".", limit: int = 20, *, context: ToolContext) -> str:
    """Find files whose name or content contains the query, ignoring case.

    One line per file, sorted by path: `path:line: text` with the first line that contains the query, or `path` if only
    the name does. Hidden files, build output and installed packages are omitted; binary files and files over 2 MB are
    found by their name only.

    Args:
        query: Literal text, not a regular expression. With * or ? in it, it is a pattern for file names, such as *.csv.
        root_dir: The folder to search, relative to the base folder.
        limit: Maximum number of files to show, up to 1000.
        context: The run.
    """
    _check(query, limit)
    root = readable_parts(context.files, root_dir)
    search = _Search(context.files, root, query, time.monotonic() + MAX_SEARCH_SECONDS)
    matches = list(search.matches())
    if not matches:
        return f"No files match '{query}'." + search.truncation_note()
    lines = matches[:limit]
    if len(matches) > limit:
        lines.append(f"({len(matches)} files match; {limit} are shown)")
    return "\n".join(lines) + search.truncation_note()


def _check(query: str, limit: int) -> None:
    if not query.strip() or len(query) > _MAX_QUERY_CHARS:
        raise ToolError(f"the query must have 1 to {_MAX_QUERY_CHARS} characters")
    without_tabs = query.replace("\t", " ")
    if printable(without_tabs) != without_tabs:
        raise ToolError("the query must be a single line without control characters")
    if not 1 <= limit <= _MAX_LIMIT:
        raise ToolError(f"limit must be between 1 and {_MAX_LIMIT}")


@dataclass(slots=True)
class _Search:
    base: BaseFolder
    root: _Parts
    query: str
    deadline: float
    """End of the search, in seconds of the monotonic clock."""
    is_stopped: bool = False

    def matches(self) -> Iterator[str]:
        """Yield the lines of the result, sorted by path."""
        for parts in sorted(self._files(), key="/".join):
            readable = not self._is_pattern
            if readable and time.monotonic() > self.deadline:
                self.is_stopped, readable = True, False
            line = self._first_line(parts) if readable else None
            if line is not None:
                yield f"{printable('/'.join(parts))}:{line}"
            elif self._name_matches(parts):
                yield printable("/".join(parts))

    def truncation_note(self) -> str:
        """Return a note if not all files were searched, else an empty string."""
        return "\n(There are too many files to search them all: give a root_dir.)" if self.is_stopped else ""

    @property
    def _is_pattern(self) -> bool:
        return "*" in self.query or "?" in self.query

    def _files(self) -> list[_Parts]:
        files: list[_Parts] = []
        with open_folder(self.base, self.root):
            pending = [self.root]
        while pending:
            names, folders = _listing(self.base, pending.pop())
            files += names
            pending += folders
            if len(files) > MAX_SEARCHED_FILES or time.monotonic() > self.deadline:
                self.is_stopped = True
                return files[:MAX_SEARCHED_FILES]
        return files

    def _name_matches(self, parts: _Parts) -> bool:
        query = self.query.casefold()
        name = ("/".join(parts) if "/" in query else parts[-1]).casefold()
        return fnmatchcase(name, query.replace("[", "[[]")) if self._is_pattern else query in name

    def _first_line(self, parts: _Parts) -> str | None:
        try:
            with open_file(self.base, parts) as file:
                content = file.read(_MAX_FILE_BYTES + 1)
        except (ToolError, OSError):
            return None  # not readable, or deleted since it was listed
        if len(content) > _MAX_FILE_BYTES or is_binary(content):
            return None
        text = content.decode("utf-8", "replace")
        position = _folded(text).find(_folded(self.query))
        if position < 0:
            return None
        start = text.rfind("\n", 0, position) + 1
        end = text.find("\n", start)
        number = text.count("\n", 0, start) + 1
        return f"{number}: {_shortened(text[start : end if end >= 0 else None], position - start)}"


def _listing(base: BaseFolder, folder: _Parts) -> tuple[list[_Parts], list[_Parts]]:
    files: list[_Parts] = []
    folders: list[_Parts] = []
    try:
        with open_folder(base, folder) as descriptor, os.scandir(descriptor) as entries:
            for entry in entries:
                if is_hidden(entry.name) or not base.permits((*folder, entry.name)):
                    continue
                if entry.is_file(follow_symlinks=False):
                    files.append((*folder, entry.name))
                elif entry.is_dir(follow_symlinks=False) and not _is_skipped(entry.name):
                    folders.append((*folder, entry.name))
    except (ToolError, OSError):
        return files, []  # not readable, or deleted since it was listed
    return files, folders


def _is_skipped(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in _SKIPPED_FOLDERS)


def _folded(text: str) -> str:
    """Fold the case of a text without changing its length. `str.find` on it takes linear time, unlike a pattern."""
    folded = text.casefold()
    return folded if len(folded) == len(text) else "".join(map(_folded_character, text))


def _folded_character(character: str) -> str:
    return next((form for form in (character.casefold(), character.lower()) if len(form) == 1), character)


def _shortened(line: str, position: int) -> str:
    text = "".join(" " if char in "\t\r" else char for char in line)
    start = max(0, position - _CONTEXT_CHARS) if len(text) > _MAX_LINE_CHARS else 0
    cut = text[start : start + _MAX_LINE_CHARS]
    return printable(f"{'…' if start else ''}{cut.strip()}{'…' if start + _MAX_LINE_CHARS < len(text) else ''}")


_MAX_LINE_NUMBERS = 5
"""Maximum number of line numbers named for a text that occurs more than once."""
_MAX_COMPARED_LINES = 5_000
_MAX_DIFF_LINE_CHARS = 120
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
    return writable_parts(context.files, path)


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
    """Return the numbers of the lines where the piece starts, including overlapping occurrences."""
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
    target = next((line.strip() for line in piece.split("\n") if line.strip()), "")[:_MAX_DIFF_LINE_CHARS]
    lines = [
        re.sub(r"\s+", " ", line.strip()[:_MAX_DIFF_LINE_CHARS]) for line in text.split("\n")[:_MAX_COMPARED_LINES]
    ]
    near = _nearest(re.sub(r"\s+", " ", target), lines)
    if near is None:
        return ": no line is similar to its first line; read the file with read_file"
    number = near + 1
    original = printable(text.split("\n")[number - 1][:_MAX_DIFF_LINE_CHARS])
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


MAX_COMMAND_CHARS = 20_000


def _preview(command: str, context: ToolContext) -> str:
    """Raise ToolError if `shell` would execute nothing."""
    require_sandbox(context.sandbox)
    if not command.strip() or len(command) > MAX_COMMAND_CHARS:
        raise ToolError(f"the command must have 1 to {MAX_COMMAND_CHARS} characters")
    return ""


@tool(risk="high", preview=_preview)
async def shell(command: str, *, context: ToolContext) -> str:
    """Execute a shell command (sh) in a sandbox; return what it prints, and its exit code unless it is 0.

    It sees the programs of a Linux system, an empty /tmp, and the folders that the operator shows, below /project. The
    network and other files are usually missing. Nothing outside the writable folder of /project is kept.

    Args:
        command: The command, such as: grep -c ERROR /project/logs/app.log
        context: The run.
    """
    _preview(command, context)
    return output_text(await run_sandboxed(["sh", "-c", command], context.sandbox, context.files))
