"""Atomic writes below a base folder: a file gets its whole new content, or stays unchanged.

The new content is written to a temporary file in the same folder and renamed over the file, so that readers never see
a partial write. The folder is locked from reading to renaming, so that concurrent edits of one file build on each
other.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Sequence

from framework.tools.base_folder import BaseFolder
from framework.tools.files.safe_open import open_file_at, open_folder, quoted, require_permitted
from framework.types.errors import ToolError

MAX_FILE_BYTES = 1024 * 1024
"""Maximum size of a file, before and after a change."""
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE_MODE = 0o666
"""Permissions of a new file, before the process's umask is applied."""

Update = Callable[[bytes | None], bytes]
"""Maps a file's content, None for a new file, to its new content. A ToolError leaves the file unchanged."""


def write_atomically(base: BaseFolder, parts: Sequence[str], update: Update, *, create_folders: bool = False) -> None:
    """Replace the content of the file `parts` below `base` by what `update` returns for it; keep its permissions.

    Raises:
        ToolError: the file is denied, is not a regular file, has hard links, is read-only or too large, or cannot be
            written.
    """
    if not parts:
        raise ToolError("the path is the base folder itself, not a file")
    require_permitted(base, parts)
    with open_folder(base, parts[:-1], create=create_folders) as folder:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            _write_at(base, folder, parts, update)
        except OSError as error:
            raise ToolError(f"{quoted(parts)} cannot be written: {error.strerror}") from None


def preview_write(base: BaseFolder, parts: Sequence[str], update: Update) -> tuple[bytes, bytes]:
    """Return the content of a file now (empty if there is none) and after `write_atomically`. Nothing is written.

    Raises:
        ToolError: `write_atomically` would fail.
    """
    if not parts:
        raise ToolError("the path is the base folder itself, not a file")
    require_permitted(base, parts)
    content = None
    if _folder_exists(base, parts[:-1]):
        with open_folder(base, parts[:-1]) as folder:
            content = None if _stat(folder, parts[-1]) is None else _read(base, folder, parts)
    new_content = update(content)
    _require_size(parts, new_content)
    return content or b"", new_content


def _folder_exists(base: BaseFolder, parts: Sequence[str]) -> bool:
    """Return whether a folder exists, also if a part of its path is no folder, which is an error when it is opened."""
    return all(os.path.lexists(base.path.joinpath(*parts[:depth])) for depth in range(1, len(parts) + 1))


def _require_size(parts: Sequence[str], content: bytes) -> None:
    if len(content) > MAX_FILE_BYTES:
        raise ToolError(f"{quoted(parts)} would have {len(content)} bytes; the limit is {MAX_FILE_BYTES}")


def _write_at(base: BaseFolder, folder: int, parts: Sequence[str], update: Update) -> None:
    name = parts[-1]
    old_stat = _stat(folder, name)
    content = None if old_stat is None else _read(base, folder, parts)
    new_content = update(content)
    _require_size(parts, new_content)
    if new_content == content:
        return
    temporary = _write_temporary(folder, new_content, None if old_stat is None else stat.S_IMODE(old_stat.st_mode))
    try:
        if old_stat is None:
            _reserve_name(folder, parts)
        elif _identity(old_stat) != _identity(_stat(folder, name)):
            raise ToolError(f"{quoted(parts)} was changed by another process during this call: read it again")
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(temporary, dir_fd=folder)
        raise
    os.fsync(folder)


def _stat(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _identity(status: os.stat_result | None) -> tuple[int, ...] | None:
    return status and (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _read(base: BaseFolder, folder: int, parts: Sequence[str]) -> bytes:
    with open_file_at(base, folder, parts) as file:
        if not os.fstat(file.fileno()).st_mode & 0o222:
            raise ToolError(f"{quoted(parts)} is read-only")
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ToolError(f"{quoted(parts)} is larger than {MAX_FILE_BYTES} bytes: it is too large to change")
    return content


def _write_temporary(folder: int, content: bytes, mode: int | None) -> str:
    """Write a hidden temporary file, sync it to disk, and return its name."""
    name = f".{secrets.token_hex(8)}.tmp"
    descriptor = os.open(name, _CREATE_FLAGS, _NEW_FILE_MODE, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if mode is not None:
                os.fchmod(descriptor, mode)
            os.fsync(descriptor)
    except BaseException:
        os.unlink(name, dir_fd=folder)
        raise
    return name


def _reserve_name(folder: int, parts: Sequence[str]) -> None:
    """Create an empty file to rename over: a rename alone would replace a file created since the check."""
    try:
        os.close(os.open(parts[-1], _CREATE_FLAGS, _NEW_FILE_MODE, dir_fd=folder))
    except FileExistsError:
        raise ToolError(f"{quoted(parts)} was created by another process during this call: read it first") from None
