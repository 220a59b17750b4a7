"""A runtime whose files are watched, with every published generation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from framework import Runtime
from framework.config.generations.generation import Generation
from framework.config.settings import Settings
from tests.support.projects import agent, write

PROBE = "agents.d/probe.yaml"
PATIENCE = 20.0
"""Timeout of a wait, in seconds."""


def one(name: str, description: str = "Old.", **keys: str) -> str:
    return agent(name, model="offline", description=description, **keys)


@dataclass
class Watched:
    """A watching runtime, and its generations since the start."""

    root: Path
    runtime: Runtime
    generations: list[Generation] = field(default_factory=list)
    probes: int = 0

    @property
    def current(self) -> Generation:
        return self.runtime.catalog.current

    def description(self, name: str) -> str | None:
        found = self.current.agents.get(name)
        return found.spec.description if found else None

    async def until(self, holds: Callable[[Generation], bool]) -> Generation:
        """Wait until the condition `holds` is true for the current generation."""
        async with asyncio.timeout(PATIENCE):
            while not holds(self.current):
                await self.runtime.wait_generation(self.current.number + 1)
        return self.current

    async def live(self, name: str, description: str | None) -> Generation:
        """Wait until an agent has this description; None waits until it is removed."""
        return await self.until(lambda _: self.description(name) == description)

    async def probe(self) -> None:
        """Edit the probe agent and wait until the edit is active; earlier edits are active by then."""
        self.probes += 1
        write(self.root, {PROBE: one("probe", f"Probe {self.probes}.")})
        await self.live("probe", f"Probe {self.probes}.")


@asynccontextmanager
async def watched(root: Path, **reload: str) -> AsyncIterator[Watched]:
    """Open a project with a probe agent and an active watch; `reload` overrides reload settings."""
    (root / "agents.d").mkdir(exist_ok=True)
    write(root, {PROBE: one("probe")})
    settings = Settings.model_validate({"reload": reload})
    async with Runtime.open(root, settings=settings) as runtime:
        watch = Watched(root, runtime)
        await watch.probe()  # may be found by the initial scan instead of the watcher
        await watch.probe()
        runtime.catalog.subscribe(lambda _: watch.generations.append(watch.current))
        yield watch
