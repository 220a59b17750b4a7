"""Bounds the memory of ended runs in a store in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


class EndedRuns:
    """The ended runs of a store in memory, in the order in which they ended, and the memory that they need."""

    def __init__(self, keep_bytes: int) -> None:
        """Initialize. `keep_bytes`: the memory that the runs may need, except that the last one is always kept."""
        self._keep_bytes = keep_bytes
        self._sizes: dict[str, int] = {}
        self._files: dict[str, Mapping[str, int]] = {}
        self._users: Counter[str] = Counter()
        """Number of these runs that use each file, by digest."""
        self.size = 0
        """Number of bytes of all runs. A file of several runs counts once."""

    def add(self, run_id: str, size: int, files: Mapping[str, int]) -> None:
        """Add a run that has just ended.

        Args:
            run_id: the run.
            size: number of bytes without files.
            files: size of each file that is deleted with the last run that uses it, by digest.
        """
        self.remove(run_id)
        self._sizes[run_id], self.size = size, self.size + size
        if files:
            self._files[run_id] = files
            self.size += sum(length for digest, length in files.items() if not self._users[digest])
            self._users.update(files.keys())

    def remove(self, run_id: str) -> None:
        """Remove a run, if it is one of these."""
        self.size -= self._sizes.pop(run_id, 0)
        files = self._files.pop(run_id, {})
        self._users.subtract(files.keys())
        for digest, length in files.items():
            if not self._users[digest]:
                del self._users[digest]
                self.size -= length

    @property
    def oldest(self) -> str | None:
        """The run that ended first; None if there is none."""
        return next(iter(self._sizes), None)

    @property
    def surplus(self) -> str | None:
        """The run that ended first, if all of them together are too large; None otherwise."""
        return self.oldest if self.size > self._keep_bytes and len(self._sizes) > 1 else None
