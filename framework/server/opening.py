"""Opens the store, the work source and the runtime of a process that executes or accepts runs of a store."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from framework.config.agents.models import named_models
from framework.config.generations.generation import Generation
from framework.config.settings import Settings
from framework.engine.routing.rules import NO_AGENTS
from framework.engine.runtime.presence import Presence, ProcessKind
from framework.engine.runtime.project import project_folder
from framework.engine.runtime.runtime import Runtime
from framework.engine.work.choice import open_work
from framework.llm.providers import import_sdks
from framework.store.protocol import Store
from framework.store.url import open_store
from framework.store.work import EVERYTHING, WorkScope
from framework.types.errors import ConfigError, StoreError, StoreTooNew

log = logging.getLogger(__name__)

START_RETRY_SECONDS = 30.0
"""How long a part of a fleet waits at its start for a store that is unreachable; then a supervisor starts it again."""
RETRY_INTERVAL_SECONDS = 3.0


@asynccontextmanager
async def open_working(
    root: str | Path,
    settings: Settings,
    capacity: int,
    scope: WorkScope = EVERYTHING,
    *,
    kind: ProcessKind,
    name: str | None = None,
    retry_seconds: float = 0,
    allow_empty: bool = False,
) -> AsyncIterator[Runtime]:
    """Open a project with the store and the work source of its settings, and report this process to the others.

    Args:
        root: the project's folder, or its single agent file.
        settings: the store and the work source. The project reads its other settings itself.
        capacity: number of queued and continued runs that this process executes at once; 0: it only accepts runs.
        scope: the runs that it executes.
        kind: the command that this process executes.
        name: its name in reports. Default: host and process id.
        retry_seconds: how long to wait for a store that is unreachable.
        allow_empty: open a project without any valid agent, too.

    Raises:
        ConfigError: the settings or files are invalid, no agent is valid, or the work source does not fit the store.
        StoreError: the store cannot be opened.
    """
    folder = project_folder(root)
    store = await _open_store(settings, folder, time.monotonic() + retry_seconds)
    presence: Presence | None = None
    try:
        async with (
            open_work(settings, folder, capacity, scope) as work,
            Runtime.open(root, store=store, work=work) as runtime,
        ):
            if not (allow_empty or runtime.catalog.current.agents):
                raise _without_agents(runtime.catalog.current)
            if capacity:  # before it claims runs, which would wait for the import
                await asyncio.to_thread(import_sdks, model_names(runtime.catalog.current))
            presence = runtime.presence
            await presence.announce(kind, name)
            yield runtime
    finally:
        if presence is not None:
            await presence.close()  # after the runtime, whose runs are in progress until then
        await store.close()


def _without_agents(generation: Generation) -> ConfigError:
    """Return the error of a start without agents: a supervisor starts the process again, or reports it."""
    cause = "no valid agent" if generation.errors else NO_AGENTS
    return ConfigError(f"{cause}; --allow-empty starts without one", generation.errors)


def model_names(generation: Generation) -> set[str]:
    """Return the models that the agents of a generation call, as `provider/model`."""
    settings = generation.settings
    names = {settings.model, settings.routing.model or settings.model}
    names |= {model for agent in generation.agents.values() for _, model in named_models(agent.spec)}
    return {alias.model if (alias := settings.models.get(name)) else name for name in names}


async def _open_store(settings: Settings, root: Path, deadline: float) -> Store:
    while True:
        try:
            return await open_store(settings.store.url.get_secret_value(), root, settings.store.lease)
        except StoreTooNew:
            raise
        except StoreError as error:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise
            log.warning("%s; trying again for %.0f s", error.message, remaining)
            await asyncio.sleep(min(RETRY_INTERVAL_SECONDS, remaining))
