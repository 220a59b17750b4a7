"""What is live now, and how it changes: build the next generation beside the current one, then swap."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import Context
from dataclasses import replace
from pathlib import Path
from time import perf_counter, time_ns

from framework.config.agents.external_tools import ExternalTools, discover
from framework.config.files.snapshot import Snapshot, take_single_file_snapshot, take_snapshot
from framework.config.generations.admission import Admission, Gate
from framework.config.generations.builder import GenerationBuilder
from framework.config.generations.candidate import Candidate, Preview, ReloadOutcome
from framework.config.generations.generation import Generation, empty_generation
from framework.config.generations.history import History, Trigger
from framework.config.generations.leases import Lease, Leases
from framework.config.generations.reload_effects import SettingsFile
from framework.config.generations.reload_trace import open_reload_span, record_reload
from framework.config.settings import SETTINGS_FILE, Settings
from framework.telemetry.metrics import ReloadMetrics
from framework.tools.connection_pool import ConnectionPool
from framework.tools.contracts import Contracts
from framework.tools.plugins.lifecycle import PluginLease, PluginLifecycle
from framework.tools.tool import Tool
from framework.types.events import ConfigRejected, ConfigReloaded
from framework.types.problem import Problem

log = logging.getLogger(__name__)

_CONTRACTS_FILE = ".agentsd/contracts.json"

Subscriber = Callable[[ConfigReloaded | ConfigRejected], None]


class Catalog:
    """Holds the current Generation. Reading `current` is a plain attribute; only publishing changes it."""

    def __init__(
        self,
        root: Path,
        *,
        tools: Iterable[Tool],
        executors: Collection[str],
        models: Collection[str],
        settings: Settings | None = None,
        fixed: bool = True,
        gate: Gate | None = None,
        lifecycle: PluginLifecycle | None = None,
        connect: bool = False,
    ) -> None:
        """Nothing is read yet.

        Args:
            root: the project's folder, or its one file.
            tools: that do not come from its files.
            executors: that agents may name.
            models: that agents may name, besides the aliases of the settings.
            settings: that the process starts with.
            fixed: what `agentsd.yaml` says changes nothing in them.
            gate: what else may keep a candidate from going live, if the settings want that.
            lifecycle: sets plugins up; without it nothing may be run, only looked at.
            connect: to the tool servers that the files declare.
        """
        self.root = root
        self.single = root.is_file()
        """The project is one agent file."""
        settings = settings or Settings()
        self.current: Generation = empty_generation(settings)
        self.history = History()
        self.problems: tuple[Problem, ...] = ()
        """What is wrong with the files as they were last read, whether or not they went live."""
        self._admission = Admission(settings.reload, gate)
        self._builder = GenerationBuilder(tools, executors, models, SettingsFile(settings, fixed=fixed))
        self._leases = Leases(lifecycle, self.current, self._close_unused)
        self._pool = ConnectionPool(self._sources_changed) if connect else None
        self._contracts = Contracts((root.parent if self.single else root) / _CONTRACTS_FILE)
        self._seen: Snapshot | None = None
        """The files that were dealt with last, live or refused; none after a rollback."""
        self._has_source_changes = False
        self._refreshing: asyncio.Task[None] | None = None
        self._metrics = ReloadMetrics()
        self._subscribers: list[Subscriber] = []
        self._changing = asyncio.Lock()
        self._published = asyncio.Event()
        """Of the generation after the current one."""
        self._rejected: tuple[str, str] | None = None
        """Digests of rejected files, and of what tool servers gave then: they are not tried again."""
        self._held: str | None = None
        """Digest of the files that a rollback holds back."""

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` after every reload that changed or refused something; returns how to stop that."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    def snapshot(self) -> Snapshot:
        """The files as they are now: the project's folders, or the one file that is the project."""
        snapshot = take_single_file_snapshot(self.root) if self.single else take_snapshot(self.root)
        return snapshot.with_cases_in_digest() if self._admission.runs_cases else snapshot

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The tools of the live generation, by name."""
        return self.current.tools

    async def reload(self, trigger: Trigger = "api") -> Generation:
        """Read the files and publish what they say; equal bytes leave the current generation as it is."""
        async with self._changing:
            snapshot = await asyncio.to_thread(self.snapshot)
            candidate = await self._prepare(snapshot)
            return await self._publish(candidate, trigger) if candidate else self.current

    async def refresh(self) -> Generation:
        """Build anew from the same files, since a tool server has other tools, or other faults, than before."""
        async with self._changing:
            candidate = await self._prepare(self._seen) if self._seen else None
            return await self._publish(candidate, "source") if candidate else self.current

    async def accept(self, names: Sequence[str]) -> Generation:
        """Take tools of servers as they are now, whatever they said of themselves; raises ConfigError."""
        await asyncio.to_thread(self._contracts.accept, names)
        return await self.refresh()

    async def prepare(self, snapshot: Snapshot) -> Candidate | None:
        """Build what a snapshot would make live; none if that is nothing new, or was refused before."""
        async with self._changing:
            return await self._prepare(snapshot)

    async def preview(self) -> Preview:
        """What the files would do if they were read now. Nothing goes live, no plugin is set up, no case is run."""
        async with self._changing:
            snapshot = await asyncio.to_thread(self.snapshot)
            external = await self._discover(snapshot)
            built = await asyncio.to_thread(self._builder.build, snapshot, self.current, external)
            candidate, held = Candidate.of(built, self.current, snapshot), self.held and snapshot.digest == self._held
            state = snapshot.digest, external.digest
            if state == (self.current.digest, self.current.external.digest):
                return Preview("unchanged", candidate, held, self.current.problems_with(external))
            refused = self.problems if state == self._rejected else self._admission.check_files(built)
            errors = bool(built.errors)
            outcome: ReloadOutcome = "rejected" if refused else "partial" if errors else "applied"
            return Preview(outcome, candidate, held, refused or built.problems)

    async def publish(self, candidate: Candidate, trigger: Trigger = "watch") -> Generation:
        """Make a candidate live, unless strict mode or the gate refuses it; one that was overtaken is dropped."""
        async with self._changing:
            if candidate.before is not self.current:
                return self.current
            return await self._publish(candidate, trigger)

    async def rollback(self, number: int) -> Generation:
        """Make an earlier generation live again, as a new one. It stays until the files change once more.

        Raises:
            GenerationNotFound: that generation is not kept.
            ConfigError: its plugins cannot be set up again.
        """
        async with self._changing:
            archived = self.history.entry(number).archived
            restored = await asyncio.to_thread(archived.restore, self.current)
            earlier = replace(restored, number=self.current.number + 1)
            on_disk = await asyncio.to_thread(self.snapshot)
            lease = await self._leases.reacquire(earlier)
            with lease:
                self._held, self._seen = on_disk.digest, None
                self._swap(Candidate.of(earlier, self.current), lease, "rollback")
            return self.current

    @property
    def held(self) -> bool:
        """A rollback holds back what the files say, until they change once more."""
        return self._held not in (None, self.current.digest)

    def lease(self) -> Lease:
        """Hold the live generation: its plugins stay set up for as long as the lease is entered."""
        return self._leases.live

    async def reacquire_lease(self, generation: Generation) -> Lease:
        """Hold a generation that has been live. Raises ConfigError if its plugins cannot be set up again."""
        return await self._leases.reacquire(generation)

    def set_live(self, generation: Generation) -> None:
        """Make a generation live as it is: whoever built it has its plugins set up."""
        self.current = generation
        self._leases.publish(Lease(generation, PluginLease(), lambda _: None))

    async def close(self) -> None:
        """Tear down all plugins, and disconnect from all tool servers, whoever holds them."""
        if self._refreshing:
            self._refreshing.cancel()
            await asyncio.wait([self._refreshing])
        await self._leases.close()
        if self._pool:
            await self._pool.close()

    async def wait_generation(self, number: int) -> Generation:
        """Wait until a generation of at least this number is live."""
        while self.current.number < number:
            await self._published.wait()
        return self.current

    async def _prepare(self, snapshot: Snapshot) -> Candidate | None:
        if snapshot.digest == self._held and snapshot.digest != self.current.digest:
            return None
        began, external = time_ns(), await self._discover(snapshot)
        if (snapshot.digest, external.digest) == (self.current.digest, self.current.external.digest):
            self._rejected, self._held, self._seen = None, None, snapshot
            self.problems = self.current.problems_with(external)
            return None
        if (snapshot.digest, external.digest) == self._rejected:
            self._seen = snapshot
            return None
        built = await asyncio.to_thread(self._builder.build, snapshot, self.current, external)
        return Candidate.of(built, self.current, snapshot, (began, time_ns()))

    async def _discover(self, snapshot: Snapshot) -> ExternalTools:
        declared = await asyncio.to_thread(self._builder.sources, snapshot)
        return await discover(declared, self._pool, self._contracts, starting=self.current.number == 0)

    async def _publish(self, candidate: Candidate, trigger: Trigger) -> Generation:
        started = perf_counter()
        with open_reload_span(candidate, trigger) as span:
            candidate, lease = await self._set_up(candidate.with_traceparent(span.traceparent))
            with lease:
                refused = await self._admission.check(candidate.generation)
                outcome: ReloadOutcome = (
                    "rejected" if refused else "partial" if candidate.generation.errors else "applied"
                )
                record_reload(span, candidate, trigger, outcome)
                self._held, self._seen = None, candidate.snapshot
                if refused:
                    await self._refuse(candidate, refused, trigger)
                else:
                    self._rejected = None
                    self._swap(candidate, lease, trigger)
        self._metrics.record(
            trigger=trigger,
            outcome=outcome,
            seconds=perf_counter() - started,
            generation=self.current.number,
            agents=len(self.current.agents),
            stale=sum(bool(agent.stale) for agent in self.current.agents.values()),
        )
        return self.current

    async def _set_up(self, candidate: Candidate) -> tuple[Candidate, Lease]:
        """Set up the plugins of a candidate; one that fails is built again with its last good version instead."""
        lease = await self._leases.acquire(candidate.generation)
        while lease.failed:
            assert candidate.snapshot is not None
            with lease:  # so that what the next try uses as well stays set up
                await asyncio.to_thread(self._builder.reject_plugins, lease.failed)
                external = candidate.generation.external
                built = await asyncio.to_thread(self._builder.build, candidate.snapshot, self.current, external)
                where = candidate.generation.traceparent
                candidate = Candidate.of(built, self.current, candidate.snapshot, candidate.built).with_traceparent(
                    where
                )
                lease = await self._leases.acquire(candidate.generation)
        return candidate, lease

    async def _refuse(self, candidate: Candidate, problems: tuple[Problem, ...], trigger: Trigger) -> None:
        """Keep what is live, but for what the refused files restrict; what the gate refuses does not go live at all."""
        if candidate.snapshot and self.current.number and self._admission.check_files(candidate.generation):
            given = candidate.snapshot, self.current, candidate.generation.external, problems
            held = await asyncio.to_thread(self._builder.build_restricted, *given)
            if not held.rejection:
                with (lease := await self._leases.acquire(held)):
                    self._swap(Candidate.of(held, self.current, candidate.snapshot), lease, trigger)
                return
            problems = held.rejection
        elif restricted := candidate.restricts:
            message = f"what this edit restricts is NOT live for {', '.join(restricted)}: cases fail (reload.gate)"
            problems = (*problems, Problem(path=SETTINGS_FILE, message=message, severity="warning"))
        self._reject(candidate, problems)

    def _reject(self, candidate: Candidate, problems: tuple[Problem, ...]) -> None:
        self._rejected = candidate.digest, candidate.generation.external.digest
        self.problems = problems
        self._notify(ConfigRejected(generation=self.current.number, problems=problems))
        for problem in problems:
            log.error("%s (still serving generation %d)", problem, self.current.number)

    def _swap(self, candidate: Candidate, lease: Lease, trigger: Trigger) -> None:
        before, self.current = self.current, candidate.generation
        self._leases.publish(lease)
        self.problems = self.current.problems
        self.history.add(self.current, trigger, candidate.changes)
        published, self._published = self._published, asyncio.Event()
        published.set()
        for problem in self.current.problems if before.number else self.current.errors:
            if problem not in before.problems:
                log.log(logging.ERROR if problem.severity == "error" else logging.WARNING, "%s", problem)
        log.info("%s", self.current.summary)
        self._notify(candidate.event())

    def _sources_changed(self) -> None:
        self._has_source_changes = True
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._follow_sources(), context=Context())  # part of nobody's trace

    async def _follow_sources(self) -> None:
        """Several changes at once are one generation; one that comes while it is built is another."""
        while self._has_source_changes:
            self._has_source_changes = False
            try:
                await self.refresh()
            except Exception:
                log.exception("what tool servers have now could not be taken over")

    def _close_unused(self) -> None:
        if self._pool:
            used = [*self._leases.generations(), self.current]
            self._pool.close_unused({opened for generation in used for opened in generation.external.sources.values()})

    def _notify(self, event: ConfigReloaded | ConfigRejected) -> None:
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(event)
            except Exception:
                log.exception("a subscriber of the configuration failed")
