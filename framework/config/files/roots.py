"""The folders that are watched, told apart from others that stand in their place later."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path

TICK_SECONDS = 0.2
"""How often the folders themselves are looked at."""

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

    async def until_changed(self, seconds: float) -> None:
        """Wait until other folders stand there, but no longer than so many seconds."""
        now = asyncio.get_running_loop().time
        ends = now() + seconds
        while (left := ends - now()) > 0:
            await asyncio.sleep(min(left, TICK_SECONDS))
            if self.changed():
                return

    def close(self) -> None:
        """Let go of the folders."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _open(self, path: Path) -> Identity | None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._descriptors.append(descriptor)
            status = os.fstat(descriptor)  # fails on network mounts whose folder is gone
        except OSError:
            return None
        return os.path.realpath(path), status.st_dev, status.st_ino
