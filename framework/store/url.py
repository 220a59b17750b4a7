"""Stores by their URL. What a database needs is only loaded when one is opened."""

from __future__ import annotations

from pathlib import Path

from framework.store.protocol import Store


async def open_store(url: str, root: Path) -> Store:
    """Open a store, and bring its tables up to date.

    Args:
        url: `sqlite:///state.db` (relative to `root`; four slashes: absolute) or `postgresql://user@host/database`.
        root: the project's folder.

    Raises:
        StoreError: it cannot be opened, or is no store.
        StoreTooNew: a newer version has written it.
    """
    from framework.store.sql.store import SqlStore

    return await SqlStore.open(url, root)
