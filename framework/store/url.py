"""Opens a store by its URL. SQLAlchemy is imported only then."""

from __future__ import annotations

from pathlib import Path

from framework.store.memory import MemoryStore
from framework.store.protocol import Store

MEMORY_URL = "memory:"


async def open_store(url: str, root: Path) -> Store:
    """Open a store, and migrate its tables to the current version.

    Args:
        url: `sqlite:///state.db` (relative to `root`; absolute with four slashes), `postgresql://user@host/database`,
            or `memory:` for a store that lasts as long as the process.
        root: the project folder.

    Raises:
        ConfigError: the URL is invalid.
        StoreError: the database cannot be opened, or is not a store.
        StoreTooNew: a newer version of agentsd wrote it.
    """
    if url == MEMORY_URL:
        return MemoryStore(keep_spans=True)
    from framework.store.sql.store import SqlStore

    return await SqlStore.open(url, root)
