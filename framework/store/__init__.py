"""Persistence of runs and conversations in SQLite, in a file or in memory, or PostgreSQL.

In reading order; each module imports only from those below it:

    memory              A store in memory, until the process ends: a SQLite database without a file.
    store               The store: each method is one transaction.
    record              Writes one run that this process holds: each step is one transaction.
    pruning             Deletes old data in many small transactions, and shrinks a SQLite file.
    queue               Queued runs: enqueue, claim, start; runs of other processes: take over, release.
    conversations       SQL for conversations and the files in messages: load, list, fork, delete.
    notes               Notes that agents keep across conversations: save, find, list, forget.
    run_links           What outlives runs: triggers, remembered approvals, push receivers, results of test cases.
    limits              Slots of limited agents and models, offers of ready runs, counters of shared budgets.
    usage               Figures of many runs: periods, what the database counts, and the report.
    lists               SQL for lists and counts of runs, what waits where and why, and the processes of the fleet.
    runs                SQL for the rows of one run: its state, figures, events, spans; packed once it has ended.
    processes           Processes that share a store: their leases, and the signals between them.
    database            Connections, threads, transactions and retries for SQLite or PostgreSQL.
    schema              The tables and their indexes, and the migrations to them.
    types               What a store takes and returns: runs, conversations, queries, queued work, signals.
"""

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
