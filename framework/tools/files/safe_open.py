"""Opens files and folders below a base folder without following symbolic links.

Each folder of a path is opened relative to its parent, so replacing a folder between the check and the use cannot
lead outside. Every rejection is a ToolError that names relative paths only.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal

from framework.tools.base_folder import BaseFolder, is_printable, relative_to_base, split_path
from framework.types.errors import ToolError
from framework.types.text import did_you_mean, shorten

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a named pipe would block until a writer opens it, too.
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_MAX_NAMES_COMPARED = 5_000
_MAX_QUOTED_CHARS = 200


def relative_parts(base: Path, path: str) -> tuple[str, ...]:
    """Split `path` into parts relative to `base`; empty for `base` itself.

    An absolute path is accepted if it begins with the base path, as given or resolved.

    Raises:
        ToolError: the path is outside the base folder, or contains a part or character that is not allowed.
    """
    parts = split_path(path)
    if parts[:1] != ("/",):
        return parts
    inside = relative_to_base(base, PurePosixPath(*parts))
    if inside is None:
        raise ToolError("the path is outside the base folder: give one that starts in it, like 'docs/notes.txt'")
    return inside.parts


def refuse_symlinks(base: Path, parts: Sequence[str]) -> None:
    """Raise ToolError if a part of the path is a symbolic link: policy rules would not see where it points."""
    here = str(base)
    for depth, name in enumerate(parts, start=1):
        here = f"{here}/{name}"
        try:
            mode = os.lstat(here).st_mode
        except OSError:
            return  # a part that does not exist is not a link
        if stat.S_ISLNK(mode):
            raise ToolError(f"{quoted(parts[:depth])} is a symbolic link; links are not followed")


@contextmanager
def open_folder(base: BaseFolder, parts: Sequence[str], *, create: bool = False) -> Iterator[int]:
    """Open the folder `parts` below `base` and yield its descriptor; `create` creates missing folders.

    Raises:
        ToolError: the folder is denied, does not exist, or cannot be opened or created.
    """
    require_permitted(base, parts)
    folder = _open_base(base.path)
    try:
        for depth, name in enumerate(parts, start=1):
            if create:
                _create_folder(folder, name, parts[:depth])
            inner = _open_entry(folder, name, parts[:depth], "folder", base)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def open_file(base: BaseFolder, parts: Sequence[str]) -> BinaryIO:
    """Open the regular file `parts` below `base` for reading.

    Raises:
        ToolError: the file is denied, does not exist (similar names are suggested), or is a folder, a symbolic or
            hard link, a pipe or a device.
    """
    if not parts:
        raise ToolError("the path is the base folder itself, not a file: list its content with list_dir")
    with open_folder(base, parts[:-1]) as folder:
        return open_file_at(base, folder, parts)


def open_file_at(base: BaseFolder, folder: int, parts: Sequence[str]) -> BinaryIO:
    """Open a file like `open_file`, in a folder that is already open."""
    require_permitted(base, parts)
    descriptor = _open_entry(folder, parts[-1], parts, "file", base)
    try:
        _require_regular_file(os.fstat(descriptor), quoted(parts))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def require_permitted(base: BaseFolder, parts: Sequence[str]) -> None:
    """Raise ToolError for the store's files and for files that the agent's policy denies."""
    if base.is_reserved(parts):
        raise ToolError(f"{quoted(parts)} belongs to the store of runs and conversations: tools cannot access it")
    if pattern := base.denying_pattern(parts):
        raise ToolError(f"{quoted(parts)} is denied by skill_policy.files.deny: {pattern}")


def printable(name: str) -> str:
    """Return a name or path as one line of UTF-8, with characters that cannot be printed escaped."""
    if is_printable(name):
        return name
    return "".join(char if is_printable(char) else char.encode("unicode_escape").decode() for char in name)


def quoted(parts: Sequence[str]) -> str:
    """Return a path for a message: in quotes, escaped, at most 200 characters."""
    text = printable("/".join(parts))
    return f"'{shorten(text, _MAX_QUOTED_CHARS)}'"


def is_hidden(name: str) -> bool:
    """Return whether a name is omitted from listings, searches and suggestions: `.name`, or `*.env` in any case."""
    return name.startswith(".") or name.lower().endswith(".env")


def _open_base(base: Path) -> int:
    try:
        return os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ToolError(f"the base folder cannot be opened: {error.strerror}") from None


def _open_entry(folder: int, name: str, parts: Sequence[str], kind: Literal["file", "folder"], base: BaseFolder) -> int:
    try:
        return os.open(name, _FOLDER_FLAGS if kind == "folder" else _FILE_FLAGS, dir_fd=folder)
    except FileNotFoundError:
        names = [printable(other) for other in _visible_names(folder) if base.permits((*parts[:-1], other))]
        hint = did_you_mean(printable(name), names)
        raise ToolError(f"there is no {kind} {quoted(parts)}{hint}") from None
    except OSError as error:
        raise ToolError(_open_error(folder, name, parts, error)) from None


def _create_folder(folder: int, name: str, parts: Sequence[str]) -> None:
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        pass  # if it is not a folder, opening it fails next
    except OSError as error:
        raise ToolError(f"the folder {quoted(parts)} cannot be created: {error.strerror}") from None


def _open_error(folder: int, name: str, parts: Sequence[str], error: OSError) -> str:
    where = quoted(parts)
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except OSError:
        return f"{where} cannot be opened: {error.strerror}"
    if stat.S_ISLNK(mode):
        return f"{where} is a symbolic link; links are not followed"
    if isinstance(error, NotADirectoryError):
        return f"{where} is not a folder"
    return f"{where} cannot be opened: {error.strerror}"


def _require_regular_file(status: os.stat_result, where: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise ToolError(f"{where} is a folder, not a file: list its content with list_dir")
    if not stat.S_ISREG(status.st_mode):
        raise ToolError(f"{where} is a pipe or a device, not a file with content")
    if status.st_nlink > 1:
        raise ToolError(f"{where} is a hard link: its content may be outside the base folder, so it is not read")


def _visible_names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in islice(entries, _MAX_NAMES_COMPARED) if not is_hidden(entry.name))
