"""Checks whether a server can save to its store."""

from __future__ import annotations

import asyncio
import logging

from framework.store.protocol import Store
from framework.types.errors import AgentsdError

log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 2.0
_MAX_AGE_SECONDS = 1.0


class StoreCheck:
    """Writes to the store: at most once a second and one write at a time, however often it is called.

    A store on a full disk can still be read.
    """

    def __init__(self, store: Store, timeout: float = _TIMEOUT_SECONDS) -> None:
        self._store, self._timeout = store, timeout
        self._write: asyncio.Task[bool] | None = None
        self._written_at = 0.0

    async def can_save(self) -> bool:
        """Return whether the store saved within the time limit. A slow write counts as a failure."""
        now = asyncio.get_running_loop().time()
        if self._write is None or (self._write.done() and now - self._written_at >= _MAX_AGE_SECONDS):
            self._write, self._written_at = asyncio.create_task(self._try_write()), now
        await asyncio.wait([self._write], timeout=self._timeout)
        return self._write.done() and self._write.result()

    async def _try_write(self) -> bool:
        try:
            await self._store.renew(())  # writes the row of this process
        except AgentsdError as error:
            log.warning("the store cannot save: %s", error.message)
            return False
        return True
