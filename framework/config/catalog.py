"""What is live now, and how it changes: build the next generation beside the current one, then swap."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from framework.config.generation import EMPTY, Builder, Generation
from framework.config.snapshot import Snapshot, single_file, take_snapshot
from framework.telemetry import names
from framework.telemetry.spans import Spans
from framework.tools.tool import Tool
from framework.types.events import ConfigRejected, ConfigReloaded

log = logging.getLogger(__name__)

Subscriber = Callable[[ConfigReloaded | ConfigRejected], None]


class Catalog:
    """Holds the current Generation. Reading `current` is a plain attribute; only `reload` changes it."""

    def __init__(
        self, root: Path, *, tools: Iterable[Tool], executors: Collection[str], models: Collection[str]
    ) -> None:
        self.root = root
        self.single = root.is_file()
        """The project is one agent file."""
        self.current: Generation = EMPTY
        self._builder = Builder(tools, executors, models)
        self._subscribers: list[Subscriber] = []
        self._reloading = asyncio.Lock()
        self._published = asyncio.Condition()

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` after every reload that changed or refused something; returns how to stop that."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    def snapshot(self) -> Snapshot:
        """The files as they are now: the project's folders, or the one file that is the project."""
        return single_file(self.root) if self.single else take_snapshot(self.root)

    async def reload(self) -> Generation:
        """Read the files and publish what they say; equal bytes leave the current generation as it is."""
        async with self._reloading:
            snapshot = await asyncio.to_thread(self.snapshot)
            if snapshot.digest == self.current.digest:
                return self.current
            reload = Spans({}).span(
                "config.reload", "CHAIN", {"agentsd.config.previous_generation": self.current.number}
            )
            with reload as span:
                built = await asyncio.to_thread(self._builder.build, snapshot, self.current)
                span.set_attributes(
                    {
                        names.GENERATION: built.number,
                        names.DIGEST: built.digest,
                        names.RELOAD_OUTCOME: "partial" if built.errors else "applied",
                    }
                )
            await self._publish(built)
            return built

    async def wait_generation(self, number: int) -> Generation:
        """Wait until a generation of at least this number is live."""
        async with self._published:
            await self._published.wait_for(lambda: self.current.number >= number)
            return self.current

    async def _publish(self, built: Generation) -> None:
        before, self.current = self.current, built
        async with self._published:
            self._published.notify_all()
        for problem in built.errors:
            if problem not in before.errors:
                log.error("%s", problem)
        log.info("generation %d is live: %d agents, %d tools", built.number, len(built.agents), len(built.tools))
        event = _difference(before, built)
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(event)
            except Exception:
                log.exception("a subscriber of the configuration failed")


def _difference(before: Generation, after: Generation) -> ConfigReloaded | ConfigRejected:
    old, new = before.agents, after.agents
    added, removed = sorted(new.keys() - old.keys()), sorted(old.keys() - new.keys())
    changed = sorted(name for name in new.keys() & old.keys() if new[name].digest != old[name].digest)
    if after.errors and not (added or removed or changed):
        return ConfigRejected(generation=after.number, problems=after.problems)
    return ConfigReloaded(
        generation=after.number,
        digest=after.digest,
        added=tuple(added),
        changed=tuple(changed),
        removed=tuple(removed),
        problems=after.problems,
    )
