"""Checks whether the store of a server responds."""

from __future__ import annotations

import asyncio
import logging

from framework.store.protocol import Store
from framework.types.errors import AgentsdError

log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 2.0
_MAX_AGE_SECONDS = 1.0


class StoreCheck:
    """Reads from the store: at most once a second and one read at a time, however often it is called."""

    def __init__(self, store: Store, timeout: float = _TIMEOUT_SECONDS) -> None:
        self._store, self._timeout = store, timeout
        self._read: asyncio.Task[bool] | None = None
        self._read_at = 0.0

    async def responds(self) -> bool:
        """Return whether the store answered a read within the time limit. A slow read counts as no answer."""
        now = asyncio.get_running_loop().time()
        if self._read is None or (self._read.done() and now - self._read_at >= _MAX_AGE_SECONDS):
            self._read, self._read_at = asyncio.create_task(self._try_read()), now
        await asyncio.wait([self._read], timeout=self._timeout)
        return self._read.done() and self._read.result()

    async def _try_read(self) -> bool:
        try:
            await self._store.blueprint("")  # one lookup by key, which finds nothing
        except AgentsdError as error:
            log.warning("the store does not respond: %s", error.message)
            return False
        return True
