"""A runtime whose files are watched, with every generation that went live."""

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
"""Seconds after which what does not come is missing."""


def one(name: str, description: str = "Old.", **keys: str) -> str:
    return agent(name, model="offline", description=description, **keys)


@dataclass
class Watched:
    """What happened since the watch began."""

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
        """Wait for a generation."""
        async with asyncio.timeout(PATIENCE):
            while not holds(self.current):
                await self.runtime.wait_generation(self.current.number + 1)
        return self.current

    async def live(self, name: str, description: str | None) -> Generation:
        """Wait until an agent is live in this version; None: until it is gone."""
        return await self.until(lambda _: self.description(name) == description)

    async def probe(self) -> None:
        """Make an edit of its own and see it live: whatever was noticed before it is live by then."""
        self.probes += 1
        write(self.root, {PROBE: one("probe", f"Probe {self.probes}.")})
        await self.live("probe", f"Probe {self.probes}.")


@asynccontextmanager
async def watched(root: Path, **reload: str) -> AsyncIterator[Watched]:
    """Open a project that holds a probe, with the watch in place; what the defaults are not stands in `reload`."""
    (root / "agents.d").mkdir(exist_ok=True)
    write(root, {PROBE: one("probe")})
    settings = Settings.model_validate({"reload": reload})
    async with Runtime.open(root, settings=settings) as runtime:
        found = Watched(root, runtime)
        await found.probe()  # seen by the first looks, maybe
        await found.probe()
        runtime.catalog.subscribe(lambda _: found.generations.append(found.current))
        yield found
