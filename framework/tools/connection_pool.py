"""The connections to tool servers: one for each way in which a project declares one, kept while somebody needs it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from framework.tools.mcp.source import McpSource
from framework.tools.skills.source import SkillSource
from framework.tools.tool_source import OnChange, ToolSource
from framework.types.errors import ConfigError
from framework.types.redact import redact
from framework.types.tool_servers import McpServer, SkillHost

log = logging.getLogger(__name__)

SourceConfig = McpServer | SkillHost
_QUIET_SECONDS = 2.0
"""After how long it is told which servers are waited for."""


@dataclass(frozen=True, slots=True, eq=False)
class PooledSource:
    """A source that was started."""

    name: str
    config: SourceConfig
    source: ToolSource
    number: int
    """Tells it from another one of the same name."""
    started: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_started(self) -> bool:
        """It has said which tools it has, or why it cannot."""
        return self.started.is_set()

    async def start(self) -> None:
        """Connect; nothing that goes wrong in it is raised."""
        try:
            await self.source.start()
        except Exception as error:  # noqa: BLE001 - one server must not keep the others from being started
            log.error("%s could not be started: %s", self.name, redact(f"{type(error).__name__}: {error}"))
        finally:
            self.started.set()


class ConnectionPool:
    """Starts sources when they are wanted first, and closes them when nobody needs them any more."""

    def __init__(self, changed: OnChange) -> None:
        """Call `changed` whenever a source has other tools or faults than before."""
        self._changed = changed
        self._opened: list[PooledSource] = []
        self._wanted: list[PooledSource] = []
        self._rejected: dict[str, str] = {}
        self._count = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    async def open(self, wanted: Mapping[str, SourceConfig], patience: float | None) -> list[PooledSource]:
        """The sources of these names, started.

        Args:
            wanted: what is declared, by name.
            patience: seconds, after the first two, for those that are not connected yet; then they go on trying behind
                it. None waits until each is connected or has failed to be.
        """
        self._rejected = {}
        fresh: list[PooledSource] = []
        found = (self._known(name, config) or self._new(name, config, fresh) for name, config in wanted.items())
        self._wanted = [opened for opened in found if opened]
        starting = [self._spawn(opened.start()) for opened in fresh]
        if starting and (await asyncio.wait(starting, timeout=_QUIET_SECONDS))[1]:
            slow = ", ".join(opened.name for opened in fresh if not opened.is_started)
            log.info("waiting for %s to answer", slow)
            await asyncio.wait(starting, timeout=patience)
        return list(self._wanted)

    @property
    def rejected(self) -> Mapping[str, str]:
        """Sources that could not even be made, and why."""
        return self._rejected

    def close_unused(self, needed: Collection[PooledSource]) -> None:
        """Close, in the background, what is neither among these nor wanted last."""
        for opened in [one for one in self._opened if one not in needed and one not in self._wanted]:
            self._opened.remove(opened)
            self._spawn(self._close(opened))

    async def close(self) -> None:
        """Close all."""
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
                source: ToolSource = McpSource(short, config, self._changed)
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
        except Exception as error:  # noqa: BLE001 - what is left of it is nobody's concern any more
            log.error("%s could not be closed: %s", opened.name, redact(f"{type(error).__name__}: {error}"))

    def _spawn(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
