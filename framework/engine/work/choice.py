"""Opens the work source that the settings of a server process ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from framework.config.settings import Settings
from framework.engine.work.source import EmbeddedSource, WorkSource
from framework.store.types import EVERYTHING, WorkScope
from framework.store.url import MEMORY_URL
from framework.types.errors import ConfigError
from framework.types.extras import install_command


@asynccontextmanager
async def open_work(
    settings: Settings, root: Path, capacity: int, scope: WorkScope = EVERYTHING
) -> AsyncIterator[WorkSource]:
    """Open the work source of a server process.

    Args:
        settings: the store, and `work.engine`.
        root: the project folder.
        capacity: number of runs that the process executes at once; 0: it only accepts them.
        scope: the runs that it executes.

    Raises:
        ConfigError: the work source does not fit the store, or its package is missing.
        StoreError: its tables cannot be created.
    """
    url, engine = settings.store.url.get_secret_value(), settings.work.engine
    is_postgres = url.partition("+")[0].partition(":")[0] in ("postgresql", "postgres")
    if engine == "procrastinate" and not is_postgres:
        raise ConfigError(
            "work.engine: procrastinate needs a store in PostgreSQL: set store.url to one, or work.engine to auto"
        )
    if capacity == 0 and url == MEMORY_URL:
        raise ConfigError(
            "store.url: nothing would execute the runs, because other processes cannot see a store in memory: "
            "set store.url to a SQLite file or PostgreSQL, or leave out --no-work"
        )
    if engine == "embedded" or not is_postgres:
        yield EmbeddedSource(capacity, scope)
        return
    try:
        from framework.engine.work.procrastinate import ProcrastinateSource
    except ModuleNotFoundError as missing:
        if missing.name in {"procrastinate", "psycopg", "psycopg_pool", "sqlalchemy"}:
            raise ConfigError(
                "work.engine: delivering runs through PostgreSQL needs Procrastinate:"
                f" {install_command('agentsd[postgres]')}, or set work.engine to embedded in all processes of the store"
            ) from None
        raise
    async with ProcrastinateSource.open(url, root, capacity, scope) as source:
        yield source
