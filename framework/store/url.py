"""Opens a store by its URL. SQLAlchemy is imported only then."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from framework.store.types import DEFAULT_LEASE_SECONDS

if TYPE_CHECKING:
    from framework.store.store import Store


MEMORY_URL = "memory:"


async def open_store(url: str, root: Path, lease_seconds: float = DEFAULT_LEASE_SECONDS) -> Store:
    """Open a store, and migrate its tables to the current version.

    Args:
        url: `sqlite:///state.db` (relative to `root`; absolute with four slashes), `postgresql://user@host/database`,
            or `memory:` for a store that lasts as long as the process.
        root: the project folder.
        lease_seconds: how long after its last renewal of the lease other processes take over the runs of this one.

    Raises:
        ConfigError: the URL is invalid.
        StoreError: the database cannot be opened, or is not a store.
        StoreTooNew: a newer version of agentsd wrote it.
    """
    if url == MEMORY_URL:
        return memory_store(keep_spans=True)
    from framework.store.store import Store

    return await Store.open(url, root, lease_seconds=lease_seconds)


def memory_store(*, keep_spans: bool = False) -> Store:
    """Return a new store in memory, with its traces if they are to be kept."""
    from framework.store.memory import MemoryStore

    return MemoryStore(keep_spans=keep_spans)


def shown_url(url: str) -> str:
    """Return the URL of a store without what may be confidential: the password and the options of a connection."""
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    name = user.partition(":")[0]
    return parts._replace(netloc=f"{name}@{host}" if name else host, query="").geturl() if parts.netloc else url
