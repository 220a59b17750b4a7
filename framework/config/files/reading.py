"""Finds the relevant files below a folder and reads each one consistently: never a half-written version."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path

from framework.config.yaml.document import MAX_DOCUMENT_BYTES

_MAX_ATTEMPTS, _RETRY_SECONDS = 5, 0.005
"""Attempts to read a file that changes while it is read, and the pause between them."""
_HIDDEN_FOLDERS, _HIDDEN_FILES = (".", "__"), (".", "_")
_HELPER_SUFFIXES = (".py", ".j2")
"""Helper modules of plugins and partial templates may begin with `_`; they are not hidden."""
FINE_NS, COARSE_NS = 50_000_000, 2_000_000_000
"""Resolution of file times, in nanoseconds; the coarse one applies where times are whole seconds."""

Fingerprint = tuple[int, int, int, int, int]
"""Device, inode, size, mtime and ctime. No program can set the ctime, so it reveals an edit that restores the mtime."""


FoundFile = tuple[str, os.stat_result | OSError, bool]
"""Path, status or the error that prevents reading it, and whether it is a symbolic link. A tuple: there may be many."""


fingerprint: Callable[[os.stat_result], Fingerprint] = attrgetter(
    "st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns"
)
"""Returns a value that changes with the file, except for edits within the resolution of its times."""


def was_stable(read: Fingerprint, began_ns: int) -> bool:
    """Return whether the file's last change was old enough that its next change will have a different time.

    Args:
        read: the fingerprint of the file that was read.
        began_ns: when reading began, in Unix nanoseconds.
    """
    changed = read[-1]
    return began_ns - changed > (FINE_NS if changed % 1_000_000_000 else COARSE_NS)


def find_files(folder: str, suffixes: tuple[str, ...]) -> Iterator[FoundFile]:
    """Yield the files below a folder, and the folders that cannot be read, in no order.

    Hidden and private names are skipped. A symbolic link must not point outside the folder. A link to a folder is
    followed only if the folder is hidden, as in Kubernetes volume mounts: a visible folder is listed anyway.
    """
    pending: list[tuple[str, tuple[Path, ...]]] = [(folder, ())]
    while pending:  # not recursive: folders may be nested deeper than the call stack allows
        current, followed = pending.pop()
        try:
            entries = _entries(current)
        except OSError as error:
            yield current, error, False
            continue
        while entries:
            entry = entries.pop()  # it holds its status; many of them would cause garbage collections
            if entry.is_file(follow_symlinks=False) or not _is_folder(entry):
                if _is_read(entry.name, suffixes) and (file := _file(entry, folder)):
                    yield file
            elif not is_hidden_folder(entry.name):
                try:
                    target = _link_target(entry.path, folder) if entry.is_symlink() else None
                except OSError as error:
                    yield entry.path, error, True
                    continue
                if target is None:
                    pending.append((entry.path, followed))
                elif _is_hidden(target) and target not in followed:
                    pending.append((entry.path, (*followed, target)))


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []  # never created, or deleted a moment ago


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def is_hidden_folder(name: str) -> bool:
    """Return whether a scan skips folders of this name."""
    return name.startswith(_HIDDEN_FOLDERS)


def _is_hidden(path: Path) -> bool:
    return any(is_hidden_folder(part) for part in path.parts)


def _file(entry: os.DirEntry[str], folder: str) -> FoundFile | None:
    """Return a file, or the error that prevents reading it; None if it was deleted after it was listed."""
    link = entry.is_symlink()
    try:
        if link:
            _link_target(entry.path, folder)
        return entry.path, entry.stat(), link
    except OSError as error:
        return (entry.path, error, link) if link or not isinstance(error, FileNotFoundError) else None


def is_read_below(parts: Sequence[str], suffixes: tuple[str, ...]) -> bool:
    """Return whether a scan of a folder reads a file with this path below it: neither hidden nor private."""
    *folders, name = parts
    return _is_read(name, suffixes) and not any(map(is_hidden_folder, folders))


def _is_read(name: str, suffixes: tuple[str, ...]) -> bool:
    hidden = "." if name.endswith(_HELPER_SUFFIXES) else _HIDDEN_FILES
    return name.endswith(suffixes) and not name.startswith(hidden)


def _link_target(path: str, folder: str) -> Path:
    """Return the target of a link, relative to the folder; raise OSError if it is outside the folder."""
    target, base = Path(os.path.realpath(path, strict=True)), os.path.realpath(folder)
    if not target.is_relative_to(base):
        raise OSError(errno.EXDEV, "symbolic link points outside its folder")
    return target.relative_to(base)


def read_consistent(path: str) -> tuple[bytes, Fingerprint]:
    """Read a file as it was at one moment.

    Raises:
        OSError: the file cannot be read, is not a regular file, is larger than `MAX_DOCUMENT_BYTES`, or kept changing.
    """
    for attempt in range(_MAX_ATTEMPTS):
        if attempt:
            time.sleep(_RETRY_SECONDS)
        # without O_NONBLOCK, opening a FIFO of that name would block
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            source = _read(descriptor)
            after = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if len(source) > MAX_DOCUMENT_BYTES:
            raise OSError(errno.EFBIG, f"larger than {MAX_DOCUMENT_BYTES} bytes")
        if fingerprint(before) == fingerprint(after) and len(source) == after.st_size:
            return source, fingerprint(after)
    raise OSError(errno.EBUSY, "still being written")


def _read(descriptor: int) -> bytes:
    """Read the whole file, or one byte more than allowed."""
    parts: list[bytes] = []
    remaining = MAX_DOCUMENT_BYTES + 1
    while remaining and (part := os.read(descriptor, remaining)):
        parts.append(part)
        remaining -= len(part)
    return b"".join(parts)
