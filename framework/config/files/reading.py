"""Reads a project's folders: which files count, and each of them in one piece, never half of what is being written."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from framework.config.yaml.document import MAX_FILE_BYTES

_MAX_ATTEMPTS, _RETRY_SECONDS = 5, 0.005
"""How often, and how far apart, a file is read that changes while it is read."""
_HIDDEN_FOLDERS, _HIDDEN_FILES = (".", "__"), (".", "_")
_HELPER_SUFFIXES = (".py", ".j2")
"""Helpers of plugins and parts of templates have names that begin with `_`: these are not hidden."""
FINE_NS, COARSE_NS = 50_000_000, 2_000_000_000
"""How far apart two changes of a file must be to have different times; coarse where times are whole seconds."""

Fingerprint = tuple[int, int, int, int, int]
"""Device, inode, size, mtime and ctime. The ctime, which no program can set, tells an edit that puts the mtime back."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file that counts, or what stands in the way of it."""

    path: str
    link: bool = False
    status: os.stat_result | None = None
    error: OSError | None = None


def fingerprint(status: os.stat_result) -> Fingerprint:
    """What differs once a file was changed, up to changes that follow one another too fast for its times."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def was_stable(read: Fingerprint, began_ns: int) -> bool:
    """Whether a file had been left alone long enough, when reading it began, for its next change to have another time.

    Args:
        read: of the file that was read.
        began_ns: when reading began, in nanoseconds since 1970.
    """
    changed = read[-1]
    return began_ns - changed > (FINE_NS if changed % 1_000_000_000 else COARSE_NS)


def find_files(folder: str, suffixes: tuple[str, ...]) -> Iterator[FoundFile]:
    """The files of a folder that count, and what could not be looked into; in no order.

    Hidden and private names are passed over. A link must not lead out of the folder. One to another folder is followed
    only into what is hidden, as Kubernetes mounts its files: what it shows is otherwise there already.
    """
    waiting: list[tuple[str, tuple[Path, ...]]] = [(folder, ())]
    while waiting:  # no recursion: folders may be nested deeper than calls can be
        where, followed = waiting.pop()
        try:
            entries = _entries(where)
        except OSError as error:
            yield FoundFile(where, error=error)
            continue
        for entry in entries:
            if not _is_folder(entry):
                yield from _file(entry, folder, suffixes)
            elif not entry.name.startswith(_HIDDEN_FOLDERS):
                try:
                    target = _link_target(entry.path, folder) if entry.is_symlink() else None
                except OSError as error:
                    yield FoundFile(entry.path, link=True, error=error)
                    continue
                if target is None:
                    waiting.append((entry.path, followed))
                elif _is_hidden(target) and target not in followed:
                    waiting.append((entry.path, (*followed, target)))


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as listed:
            return list(listed)
    except FileNotFoundError:
        return []  # never made, or deleted just now


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(_HIDDEN_FOLDERS) for part in path.parts)


def _file(entry: os.DirEntry[str], folder: str, suffixes: tuple[str, ...]) -> Iterator[FoundFile]:
    name = entry.name
    hidden = "." if name.endswith(_HELPER_SUFFIXES) else _HIDDEN_FILES
    if not name.endswith(suffixes) or name.startswith(hidden) or name.endswith("~"):
        return
    link = entry.is_symlink()
    try:
        if link:
            _link_target(entry.path, folder)
        yield FoundFile(entry.path, link, entry.stat())
    except OSError as error:
        if link or not isinstance(error, FileNotFoundError):  # a file may be deleted after it was listed
            yield FoundFile(entry.path, link, error=error)


def _link_target(path: str, folder: str) -> Path:
    """Where a link leads, relative to the folder; raises OSError if out of it: what is served lies in the folder."""
    target, inside = Path(os.path.realpath(path, strict=True)), os.path.realpath(folder)
    if not target.is_relative_to(inside):
        raise OSError(errno.EXDEV, "it is a link that leads out of the folder")
    return target.relative_to(inside)


def read_consistent(path: str) -> tuple[bytes, Fingerprint]:
    """Read a file as it was at one moment.

    Raises:
        OSError: it cannot be read, is no regular file, has more than `MAX_BYTES` bytes, or never stopped changing.
    """
    for attempt in range(_MAX_ATTEMPTS):
        if attempt:
            time.sleep(_RETRY_SECONDS)
        # without O_NONBLOCK a FIFO of that name would hang the reader
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            source = _read(descriptor)
            after = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if len(source) > MAX_FILE_BYTES:
            raise OSError(errno.EFBIG, f"it has more than {MAX_FILE_BYTES} bytes")
        if fingerprint(before) == fingerprint(after) and len(source) == after.st_size:
            return source, fingerprint(after)
    raise OSError(errno.EBUSY, "it is being written")


def _read(descriptor: int) -> bytes:
    """All of a file, or a byte more than may be."""
    parts: list[bytes] = []
    left = MAX_FILE_BYTES + 1
    while left and (part := os.read(descriptor, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
