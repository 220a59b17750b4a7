"""Runs the body of a test on a store in memory or in a database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from framework.store.memory import MemoryStore
from framework.store.store import Store
from tests.support.clocks import MovableClock


def with_store(body: Callable[[Store], Awaitable[None]], url: str | None) -> None:
    """Run the body on a store with a `MovableClock`."""

    async def main() -> None:
        clock = MovableClock()
        store = MemoryStore(clock=clock) if url is None else await Store.open(url, Path("/"), clock=clock)
        try:
            await body(store)
        finally:
            await store.close()

    asyncio.run(main())
