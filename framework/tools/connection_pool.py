"""Connections to tool servers. Generations that declare the same server share one connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from framework.tools.logins import LoginStore
from framework.tools.mcp.source import McpSource
from framework.tools.openapi.source import ApiSource
from framework.tools.remote_sources import A2aSource, SkillSource
from framework.tools.tool_source import OnChange, ToolSource
from framework.types.errors import ConfigError
from framework.types.redact import redact
from framework.types.tool_servers import A2aAgent, McpServer, OpenApi, SkillHost

log = logging.getLogger(__name__)

SourceConfig = A2aAgent | McpServer | SkillHost | OpenApi
_QUIET_SECONDS = 2.0
"""Time after which servers that have not responded yet are logged, in seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class PooledSource:
    """A tool source in the pool."""

    name: str
    config: SourceConfig
    source: ToolSource
    number: int
    """Number that distinguishes it from other sources with the same name."""
    started: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_started(self) -> bool:
        """Whether the first connection attempt has finished, successfully or not."""
        return self.started.is_set()

    async def start(self) -> None:
        """Connect. Errors are logged, not raised."""
        try:
            await self.source.start()
        except Exception as error:  # noqa: BLE001 - one server must not prevent the others from starting
            log.error("starting %s failed: %s", self.name, redact(f"{type(error).__name__}: {error}"))
        finally:
            self.started.set()


class ConnectionPool:
    """Starts each source when it is first needed, and closes it when no generation uses it any longer."""

    def __init__(self, changed: OnChange, logins: LoginStore | None = None) -> None:
        """Create an empty pool."""
        self._changed, self._logins = changed, logins
        self._opened: list[PooledSource] = []
        self._wanted: list[PooledSource] = []
        self._rejected: dict[str, str] = {}
        self._count = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    async def open(self, wanted: Mapping[str, SourceConfig], patience: float | None) -> list[PooledSource]:
        """Start the declared sources that are not in the pool, and return every source.

        Args:
            wanted: configurations by name.
            patience: seconds to wait, after the first two, for sources that have not responded. They keep connecting in
                the background. None waits until each has connected or failed.
        """
        self._rejected = {}
        fresh: list[PooledSource] = []
        found = (self._known(name, config) or self._new(name, config, fresh) for name, config in wanted.items())
        self._wanted = [opened for opened in found if opened]
        starting = [self._spawn(opened.start()) for opened in fresh]
        if starting and (await asyncio.wait(starting, timeout=_QUIET_SECONDS))[1]:
            slow = ", ".join(opened.name for opened in fresh if not opened.is_started)
            log.info("waiting for %s to respond", slow)
            await asyncio.wait(starting, timeout=patience)
        return list(self._wanted)

    def is_open(self, wanted: Mapping[str, SourceConfig]) -> bool:
        """Return whether `open` would start no source."""
        return all(name in self._rejected or self._known(name, config) for name, config in wanted.items())

    @property
    def rejected(self) -> Mapping[str, str]:
        """Errors of sources with an invalid configuration, by name."""
        return self._rejected

    def close_unused(self, needed: Collection[PooledSource]) -> None:
        """Close, in the background, every source that is neither in `needed` nor part of the last `open` call."""
        for opened in [one for one in self._opened if one not in needed and one not in self._wanted]:
            self._opened.remove(opened)
            self._spawn(self._close(opened))

    async def close(self) -> None:
        """Close all sources and wait until they are closed."""
        self._wanted = []
        self.close_unused(())
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _known(self, name: str, config: SourceConfig) -> PooledSource | None:
        return next((one for one in self._opened if one.name == name and one.config == config), None)

    def _new(self, name: str, config: SourceConfig, fresh: list[PooledSource]) -> PooledSource | None:
        short = name.partition(".")[2]
        try:
            if isinstance(config, McpServer):
                source: ToolSource = McpSource(short, config, self._changed, self._logins)
            elif isinstance(config, A2aAgent):
                source = A2aSource(short, config, self._changed)
            elif isinstance(config, OpenApi):
                source = ApiSource(name, config, self._changed, self._logins)
            else:
                source = SkillSource(short, config, self._changed)
        except ConfigError as error:
            self._rejected[name] = error.message
            return None
        self._count += 1
        opened = PooledSource(name, config, source, self._count)
        self._opened.append(opened)
        fresh.append(opened)
        return opened

    async def _close(self, opened: PooledSource) -> None:
        try:
            await opened.source.close()
        except Exception as error:  # noqa: BLE001 - nothing uses the source any longer
            log.error("closing %s failed: %s", opened.name, redact(f"{type(error).__name__}: {error}"))

    def _spawn(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
