"""The files of one run: saved before messages refer to them, loaded before model calls."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from framework.store.protocol import RunQuery
from framework.types.file import File
from framework.types.media import MediaPart
from framework.types.state import RunState

_INLINE_BYTES = 1_000_000
"""Size from which on files are examined in a thread: computing a digest of 20 MB takes about 30 ms."""


class MediaStore(Protocol):
    """The part of a store that contains files."""

    async def save_media(self, run_id: str, files: Mapping[str, bytes]) -> None:
        """Save files by digest."""
        ...

    async def load_media(self, digests: Collection[str], of: RunQuery | None = None) -> Mapping[str, bytes]:
        """Return the stored files with these digests, or those that a run with this owner refers to."""
        ...


class RunMedia:
    """The files of a root run and its sub-runs."""

    def __init__(self, state: RunState, store: MediaStore | None) -> None:
        """Create the files of a run.

        Args:
            state: the root run.
            store: saves the files; None for a run that is not stored.
        """
        self._run_id, self._store = state.run_id, store
        self._owner = RunQuery.of_owner(state.tenant, state.user)
        self._loaded: dict[str, bytes] = {}
        self._reported: set[str] = set()
        self.in_use = any(message.parts for run in state.with_sub_runs() for message in (*run.history, *run.messages))
        """Whether any message of the run contains a file. If not, model calls do nothing about files."""

    async def save(self, files: Sequence[File]) -> tuple[MediaPart, ...]:
        """Save files, and return the parts of messages that refer to them; raises StoreError."""
        parts = await media_parts(files)
        contents = {part.digest: file.data for part, file in zip(parts, files, strict=True)}
        if self._store is not None:
            await self._store.save_media(self._run_id, contents)
        self._loaded |= contents
        self.in_use = True
        return parts

    async def load(self, digests: Collection[str]) -> Mapping[str, bytes]:
        """Return the files with these digests; those that were deleted are missing. Raises StoreError."""
        missing = set(digests) - self._loaded.keys()
        if missing and self._store is not None:
            self._loaded |= await self._store.load_media(missing, self._owner)
        return {digest: self._loaded[digest] for digest in digests if digest in self._loaded}

    def newly_omitted(self, parts: Sequence[MediaPart]) -> list[MediaPart]:
        """Return those of the files that no model call has omitted before."""
        new = [part for part in parts if part.digest not in self._reported]
        self._reported.update(part.digest for part in new)
        return new


async def media_parts(files: Sequence[File]) -> tuple[MediaPart, ...]:
    """Return the parts of messages that refer to files; large files are examined in a thread."""
    if sum(len(file.data) for file in files) < _INLINE_BYTES:
        return tuple(file.part for file in files)
    return await asyncio.to_thread(lambda: tuple(file.part for file in files))
