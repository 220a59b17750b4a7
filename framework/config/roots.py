"""The folders that are watched, told apart from others that stand in their place later."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

Identity = tuple[str, int, int]
"""Where a path really leads, and the device and inode of what is there."""


class Roots:
    """The folders among some paths, as they are now.

    Holds them open until `close`: a folder that is deleted and made again could have the same inode otherwise.
    """

    def __init__(self, wanted: Iterable[Path]) -> None:
        self._wanted = tuple(wanted)
        self._descriptors: list[int] = []
        self._identities = [self._open(path) for path in self._wanted]

    @property
    def folders(self) -> tuple[Path, ...]:
        """Those of the paths that are folders."""
        return tuple(path for path, found in zip(self._wanted, self._identities, strict=True) if found)

    def changed(self) -> bool:
        """Whether another folder, or none, stands where one of these stood, or one where there was none."""
        now = Roots(self._wanted)
        now.close()
        return now._identities != self._identities

    def close(self) -> None:
        """Let go of the folders."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _open(self, path: Path) -> Identity | None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return None
        self._descriptors.append(descriptor)
        status = os.fstat(descriptor)
        return os.path.realpath(path), status.st_dev, status.st_ino
