"""The tool `search_files`: finds files by name or content below the base path of the run.

If ripgrep is installed, it only selects the files to open. Each of them is opened and matched here, so that results
are the same with and without ripgrep, and nothing outside the base path is shown.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from framework.tools.base_folder import BaseFolder
from framework.tools.builtin.files import is_binary
from framework.tools.child_processes import child_environment
from framework.tools.files import is_hidden, open_file, open_folder, printable, readable_parts
from framework.tools.tool import ToolContext, tool
from framework.types.errors import ToolError

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
    search = _Search(context.files, readable_parts(context, root_dir), query, time.monotonic() + MAX_SEARCH_SECONDS)
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
        files = self._files()
        by_content = None if self._is_pattern else _ripgrep(self._folder, self.query, self.deadline)
        for parts in sorted(files, key="/".join):
            readable = not self._is_pattern and (by_content is None or parts[len(self.root) :] in by_content)
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

    @property
    def _folder(self) -> Path:
        return self.base.path.resolve().joinpath(*self.root)

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


def _ripgrep(folder: Path, query: str, deadline: float) -> set[_Parts] | None:
    """Return the files below `folder` that contain the query according to ripgrep, or None if it failed."""
    program = shutil.which("rg")
    if program is None:
        return None
    try:
        process = subprocess.run(
            [program, *_ripgrep_options(), "-e", query, "--", "."],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=child_environment(),
            timeout=max(deadline - time.monotonic(), 0.1) / 2,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    if process.returncode not in (0, 1):
        return None
    paths = (os.fsdecode(path) for path in process.stdout.split(b"\0") if path)
    return {tuple(path.removeprefix("./").split("/")) for path in paths}


def _ripgrep_options() -> Sequence[str]:
    # No ignore files and no detection of encodings, so that results are the same with and without ripgrep.
    plain = ("--no-config", "--no-ignore", "--no-messages", "--text", "--encoding=none")
    what = ("--fixed-strings", "--ignore-case", "--files-with-matches", "--null", f"--max-filesize={_MAX_FILE_BYTES}")
    return (*plain, *what, *(f"--glob=!{name}/" for name in _SKIPPED_FOLDERS))


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
