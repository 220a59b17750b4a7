"""Writing files below a base folder: a whole new content takes a file's place at once, or nothing changes.

The new content is written beside the file and renamed over it, so no reader ever sees half of it. The folder is locked
from reading to renaming: of calls that change the same file side by side, each sees what the one before it wrote.
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
"""The largest file that is written, and the largest that is changed."""
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE_MODE = 0o666
"""Permissions of a new file, less what the process's umask takes away."""

Update = Callable[[bytes | None], bytes]
"""From a file's content, None where there is no file, to its new content; may raise ToolError: then nothing changes."""


def write_atomically(base: BaseFolder, parts: Sequence[str], update: Update, *, create_folders: bool = False) -> None:
    """Give the file `parts` below `base` the content that `change` makes of what is in it; its permissions are kept.

    Raises:
        ToolError: it is denied, is no regular file with a single name, is read-only or too large, or cannot be written.
    """
    if not parts:
        raise ToolError("the path names the base folder itself, not a file")
    require_permitted(base, parts)
    with open_folder(base, parts[:-1], create=create_folders) as folder:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            _write_at(base, folder, parts, update)
        except OSError as error:
            raise ToolError(f"{quoted(parts)} cannot be written: {error.strerror}") from None


def _write_at(base: BaseFolder, folder: int, parts: Sequence[str], update: Update) -> None:
    name = parts[-1]
    old_stat = _stat(folder, name)
    content = None if old_stat is None else _read(base, folder, parts)
    new_content = update(content)
    if len(new_content) > MAX_FILE_BYTES:
        raise ToolError(f"{quoted(parts)} would have {len(new_content)} bytes; at most {MAX_FILE_BYTES} are written")
    if new_content == content:
        return
    temporary = _write_temporary(folder, new_content, None if old_stat is None else stat.S_IMODE(old_stat.st_mode))
    try:
        if old_stat is None:
            _reserve_name(folder, parts)
        elif _identity(old_stat) != _identity(_stat(folder, name)):
            raise ToolError(f"{quoted(parts)} was changed by somebody else meanwhile: read it again")
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
        raise ToolError(f"{quoted(parts)} is larger than {MAX_FILE_BYTES} bytes: such files are not changed")
    return content


def _write_temporary(folder: int, content: bytes, mode: int | None) -> str:
    """A new file with that content, safely on disk; returns its name: hidden, so that nobody takes it for a file."""
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
    """Make an empty file to rename over: a rename alone would replace what somebody else has made meanwhile."""
    try:
        os.close(os.open(parts[-1], _CREATE_FLAGS, _NEW_FILE_MODE, dir_fd=folder))
    except FileExistsError:
        raise ToolError(f"{quoted(parts)} was made by somebody else meanwhile: read it first") from None
