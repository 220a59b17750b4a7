"""The folder that file tools work below: how paths in it are spelled, and which of them patterns match."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from framework.types.errors import ToolError


@dataclass(frozen=True, slots=True)
class BaseFolder:
    """The folder that relative paths start from, and what in it tools leave alone."""

    path: Path
    denied: tuple[str, ...] = ()
    """Patterns of files that are neither read, listed nor written: `skill_policy.files.deny`."""
    reserved: tuple[Path, ...] = ()
    """Absolute paths of files that no agent reads or writes, whatever the settings: those of the store."""
    ignores_case: bool | None = None
    """Whether `A` and `a` name the same file here; None: ask the file system when the answer matters."""

    def is_case_insensitive(self) -> bool:
        """Whether names that differ only in case are one file below this folder."""
        return _is_case_insensitive(self.path) if self.ignores_case is None else self.ignores_case

    def matches(self, path: str, pattern: str) -> bool:
        """Whether a canonical path matches a pattern, whatever the spelling of the pattern.

        A pattern that ends in `/` stands for a folder and everything in it. `**/` stands for any number of folders.
        """
        forms = [*_pattern_variants(_canonical_pattern(pattern, self.path))]
        if any(_matches(path, form) for form in forms):
            return True
        return any(_matches(_normalized(path), _normalized(form)) for form in forms) and self.is_case_insensitive()

    def denying_pattern(self, parts: Sequence[str]) -> str | None:
        """The pattern that denies a file or one of the folders it lies in."""
        for pattern in self.denied:
            if any(self.matches(path, pattern) for path in _path_and_parents(parts)):
                return pattern
        return None

    def is_reserved(self, parts: Sequence[str]) -> bool:
        """Whether it is one of the reserved files, whatever its spelling."""
        if not self.reserved:
            return False
        location = self.path.resolve().joinpath(*parts)
        if location in self.reserved:
            return True
        reserved = {_normalized(str(path)) for path in self.reserved}
        return _normalized(str(location)) in reserved and self.is_case_insensitive()

    def permits(self, parts: Sequence[str]) -> bool:
        """Whether tools may see the file or folder at all."""
        return not self.is_reserved(parts) and self.denying_pattern(parts) is None


def split_path(path: str) -> tuple[str, ...]:
    """The parts of a path, without what does not change which file it names: `.`, `//` and a `/` at its end.

    Raises:
        ToolError: it has `..`, or characters that paths of tools must not have.
    """
    if not is_printable(path):
        raise ToolError("a path must not contain control characters or broken Unicode")
    if "\\" in path:
        raise ToolError("a path must not contain a backslash: write / between folders")
    if path.startswith("~"):
        raise ToolError("the home folder is out of reach: give a path from the base folder, like 'docs/notes.txt'")
    parts = tuple([part for part in path.split("/") if part not in ("", ".")])
    if ".." in parts:
        raise ToolError("a path must not contain '..': give it from the base folder, like 'docs/notes.txt'")
    return ("/", *parts) if path.startswith("/") else parts


def relative_to_base(base: Path, path: PurePosixPath) -> PurePosixPath | None:
    """An absolute path relative to the base folder, in its given or resolved form; None where it lies outside."""
    for root in (base.absolute(), base.resolve()) if path.is_absolute() else ():
        if path.is_relative_to(root):
            return path.relative_to(root)
    return None


def is_inside(parts: Sequence[str], folder: str) -> bool:
    """Whether something lies in a folder, or in a folder of it; `.` is the base folder."""
    folder_parts = split_path(folder)
    return len(parts) > len(folder_parts) and tuple(parts[: len(folder_parts)]) == folder_parts


def is_printable(text: str) -> bool:
    """Whether a text has neither control characters nor line separators nor broken Unicode."""
    return text.isprintable() or not any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in text)


def _path_and_parents(parts: Sequence[str]) -> Iterator[str]:
    for length in range(len(parts), 0, -1):
        yield "/".join(parts[:length])


def _canonical_pattern(pattern: str, base: Path) -> str:
    """A pattern in the form that paths have, with a `/` at its end if it stands for a whole folder."""
    kept = [part for part in pattern.split("/") if part not in ("", ".")]
    path = ("/" if pattern.startswith("/") else "") + "/".join(kept)
    if path.startswith("/"):
        for root in (str(base.absolute()), str(base.resolve())):
            if path == root or path.startswith(f"{root.rstrip('/')}/"):
                path = path[len(root) :].lstrip("/")
                break
    return f"{path or '.'}{'/' if pattern.endswith('/') and kept else ''}"


def _pattern_variants(pattern: str) -> Iterator[str]:
    """A pattern, and its readings with fewer folders: `fnmatch` demands one for each `**/`."""
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
    """Whether the file system takes the folder's name in the other case for the same folder."""
    named = next((one for one in (folder, *folder.parents) if one.name.swapcase() != one.name), None)
    try:
        return named is not None and Path(named).samefile(named.with_name(named.name.swapcase()))
    except OSError:
        return False
