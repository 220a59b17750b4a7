"""The base folder of file tools: splits paths, matches them with patterns, and names the files that are denied."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from framework.types.errors import ToolError


@dataclass(frozen=True, slots=True)
class BaseFolder:
    """The folder that relative paths start from, and the files in it that tools do not touch."""

    path: Path
    denied: tuple[str, ...] = ()
    """Patterns from `skill_policy.files.deny`: these files are neither read, listed nor written."""
    reserved: tuple[Path, ...] = ()
    """Absolute paths of the store's files, which no agent reads or writes, whatever its settings."""
    ignores_case: bool | None = None
    """Whether `A` and `a` name the same file. None: check the file system when the answer matters."""

    def is_case_insensitive(self) -> bool:
        """Return whether names that differ only in case are the same file below this folder."""
        return _is_case_insensitive(self.path) if self.ignores_case is None else self.ignores_case

    def matches(self, path: str, pattern: str) -> bool:
        """Return whether a canonical path matches a pattern in any spelling, such as `./a//b` for `a/b`.

        A pattern that ends in `/` matches a folder and everything in it. `**/` matches any number of folders, or none.
        """
        forms = [*_pattern_variants(_canonical_pattern(pattern, self.path))]
        if any(_matches(path, form) for form in forms):
            return True
        return any(_matches(_normalized(path), _normalized(form)) for form in forms) and self.is_case_insensitive()

    def denying_pattern(self, parts: Sequence[str]) -> str | None:
        """Return the pattern that denies a file or one of its parent folders, or None."""
        for pattern in self.denied:
            if any(self.matches(path, pattern) for path in _path_and_parents(parts)):
                return pattern
        return None

    def is_reserved(self, parts: Sequence[str]) -> bool:
        """Return whether a path names one of the reserved files, in any spelling."""
        if not self.reserved:
            return False
        location = self.path.resolve().joinpath(*parts)
        if location in self.reserved:
            return True
        reserved = {_normalized(str(path)) for path in self.reserved}
        return _normalized(str(location)) in reserved and self.is_case_insensitive()

    def permits(self, parts: Sequence[str]) -> bool:
        """Return whether tools may see a file or folder: it is neither reserved nor denied."""
        return not self.is_reserved(parts) and self.denying_pattern(parts) is None


def split_path(path: str) -> tuple[str, ...]:
    """Split a path into its parts, without `.`, empty parts and a trailing `/`. An absolute path begins with `/`.

    Raises:
        ToolError: the path contains `..`, or a character that is not allowed, or begins with `~`.
    """
    if not is_printable(path):
        raise ToolError("a path must not contain control characters or broken Unicode")
    if "\\" in path:
        raise ToolError("a path must not contain a backslash: write / between folders")
    if path.startswith("~"):
        raise ToolError("a path must not begin with '~': give it from the base folder, like 'docs/notes.txt'")
    parts = tuple([part for part in path.split("/") if part not in ("", ".")])
    if ".." in parts:
        raise ToolError("a path must not contain '..': give it from the base folder, like 'docs/notes.txt'")
    return ("/", *parts) if path.startswith("/") else parts


def relative_to_base(base: Path, path: PurePosixPath) -> PurePosixPath | None:
    """Return an absolute path relative to the base folder, as given or resolved, or None if it is outside."""
    for root in (base.absolute(), base.resolve()) if path.is_absolute() else ():
        if path.is_relative_to(root):
            return path.relative_to(root)
    return None


def is_inside(parts: Sequence[str], folder: str) -> bool:
    """Return whether a path is inside a folder, at any depth; `.` is the base folder."""
    folder_parts = split_path(folder)
    return len(parts) > len(folder_parts) and tuple(parts[: len(folder_parts)]) == folder_parts


def is_printable(text: str) -> bool:
    """Return whether a text has no control characters, line separators or broken Unicode."""
    return text.isprintable() or not any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in text)


def _path_and_parents(parts: Sequence[str]) -> Iterator[str]:
    for length in range(len(parts), 0, -1):
        yield "/".join(parts[:length])


def _canonical_pattern(pattern: str, base: Path) -> str:
    """Return a pattern in canonical form, relative to the base folder if it can be; a trailing `/` is kept."""
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    path = ("/" if pattern.startswith("/") else "") + "/".join(parts)
    if path.startswith("/"):
        for root in (str(base.absolute()), str(base.resolve())):
            if path == root or path.startswith(f"{root.rstrip('/')}/"):
                path = path[len(root) :].lstrip("/")
                break
    return f"{path or '.'}{'/' if pattern.endswith('/') and parts else ''}"


def _pattern_variants(pattern: str) -> Iterator[str]:
    """Yield a pattern, and its variants with fewer `**/`, because `fnmatch` requires a folder for each."""
    yield pattern
    parts = pattern.split("/")
    while "**" in parts[:-1]:
        parts.remove("**")
        yield "/".join(parts)


def _matches(path: str, pattern: str) -> bool:
    if not pattern.endswith("/"):
        return fnmatchcase(path, pattern)
    return fnmatchcase(path, pattern[:-1]) or fnmatchcase(path, pattern + "*")


def _normalized(text: str) -> str:
    return unicodedata.normalize("NFC", text).casefold()


def _is_case_insensitive(folder: Path) -> bool:
    """Return whether the file system finds the same folder under its name with upper and lower case swapped."""
    cased = next((path for path in (folder, *folder.parents) if path.name.swapcase() != path.name), None)
    try:
        return cased is not None and Path(cased).samefile(cased.with_name(cased.name.swapcase()))
    except OSError:
        return False
