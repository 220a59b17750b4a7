"""The live generation: reload, preview, publish and roll back.

The next generation is built next to the current one, and published by a single assignment.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from time import perf_counter, time_ns
from types import MappingProxyType

from framework.config.agents.compile import Agent
from framework.config.agents.toolbox import EDIT_WAIT_SECONDS, ExternalTools, discover
from framework.config.generations.builder import GenerationBuilder
from framework.config.generations.generation import (
    Admission,
    Candidate,
    Compared,
    Gate,
    Generation,
    Lease,
    Leases,
    Preview,
    ReloadOutcome,
    compare,
    empty_generation,
)
from framework.config.generations.history import HOLD_FILE, History, Hold, HoldFile, Trigger
from framework.config.generations.reload_effects import SettingsFile
from framework.config.overlay import SETTINGS_FILE
from framework.config.settings import Settings
from framework.config.snapshot import Snapshot, take_single_file_snapshot, take_snapshot
from framework.telemetry import names
from framework.telemetry.metrics import ReloadMetrics
from framework.telemetry.spans import NOOP_SPAN, Spans, TraceSpan
from framework.tools.logins import LOGINS_FOLDER, LoginStore
from framework.tools.plugins import PluginLease, PluginLifecycle
from framework.tools.remote_sources import ConnectionPool
from framework.tools.tool import Tool
from framework.tools.tool_source import Contracts
from framework.types.events import ConfigRejected, ConfigReloaded
from framework.types.problem import Problem

log = logging.getLogger(__name__)


_MAX_ERRORS = 32
"""Limit of errors that are recorded as span events."""


def open_reload_span(candidate: Candidate, trigger: Trigger) -> TraceSpan:
    """Open the root span, with the finished build as its child. Return a no-op span for a start without errors."""
    if trigger == "startup" and not (candidate.generation.errors or candidate.generation.rejection):
        return NOOP_SPAN
    return _open_span(candidate, trigger)


def record_reload(span: TraceSpan, candidate: Candidate, trigger: Trigger, outcome: ReloadOutcome) -> None:
    """Record the outcome, the number of changes, and file and line of each error, but not its text."""
    if trigger == "startup" and span is NOOP_SPAN and outcome != "applied":  # rejected by the gate or by strict mode
        with _open_span(candidate, trigger) as late_span:
            _record(late_span, candidate, outcome)
        return
    _record(span, candidate, outcome)


def _open_span(candidate: Candidate, trigger: Trigger) -> TraceSpan:
    spans = Spans({names.GENERATION: candidate.generation.number})
    attributes = {names.PREVIOUS_GENERATION: candidate.before.number, names.RELOAD_TRIGGER: trigger}
    started, built = candidate.built or (None, None)
    span = spans.span("config.reload", "CHAIN", attributes, root=True, started_ns=started)
    if built is not None:
        with span.activate():
            spans.span("config.build", "CHAIN", started_ns=started).end(built)
    return span


def _record(span: TraceSpan, candidate: Candidate, outcome: ReloadOutcome) -> None:
    if not span.is_recording():
        return
    generation, event = candidate.generation, candidate.event()
    agents = sum(len(getattr(event, which, ())) for which in ("added", "changed", "removed"))
    span.set_attributes(
        {
            names.RELOAD_OUTCOME: outcome,
            names.DIGEST: candidate.digest,
            names.GENERATION: candidate.before.number if outcome == "rejected" else generation.number,
            names.RELOAD_AGENTS: agents,
            names.RELOAD_CHANGES: len(candidate.changes),
            names.RELOAD_WIDENS: candidate.widens,
        }
    )
    for problem in (generation.rejection or generation.errors)[:_MAX_ERRORS]:
        span.add_event(names.RELOAD_ERROR, {names.CONFIG_PATH: problem.path, names.CONFIG_LINE: problem.line})
    if outcome == "rejected":
        span.fail("rejected")


_CONTRACTS_FILE = ".agentsd/contracts.json"

_MAX_LOADS = 3
"""How often a reload loads plugins whose files changed meanwhile. After that it loads them while others wait."""

Subscriber = Callable[[ConfigReloaded | ConfigRejected], None]

_RejectedEdit = tuple[Snapshot, tuple[Problem, ...]]
"""Files that were rejected, and why."""


class Catalog:
    """Holds the current generation, in the attribute `current`. Only publishing changes it."""

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
        gate_start: bool = True,
        keep_holds: bool = False,
    ) -> None:
        """Create an empty catalog. The first `reload` reads the files.

        Args:
            root: the project's folder, or its single agent file.
            tools: tools that do not come from the project's files.
            executors: names of executors that do not come from plugins.
            models: names of models and providers, except the aliases in the settings.
            settings: the settings at the start of the process.
            fixed: ignore changes of `agentsd.yaml`.
            gate: an additional check of candidates; used if `reload.gate` is set.
            lifecycle: sets up plugins. Without it, agents can be inspected but not run.
            connect: connect to the tool servers that the files declare.
            gate_start: whether the gate also checks the files at the start.
            keep_holds: keep what a rollback holds back in a file, and start with it.
        """
        self.root, self.is_single_file = root, root.is_file()
        """Whether the project is a single agent file."""
        settings = settings or Settings()
        self.current: Generation = empty_generation(settings)
        self.history = History()
        self.problems: tuple[Problem, ...] = ()
        """Errors and warnings of the files that were last read, even if they were rejected."""
        self._admission = Admission(settings.reload, gate, gate_start=gate_start)
        home = root.parent if self.is_single_file else root
        self.logins = LoginStore(home / LOGINS_FOLDER, lambda: self.current.settings.tools.http)
        self._builder = GenerationBuilder(
            *(tools, executors, models, SettingsFile(settings, fixed=fixed), home, settings.skills.folders, self.logins)
        )
        self._leases = Leases(lifecycle, self.current, self._close_unused)
        self._set_up_ahead: list[PluginLease] = []
        """Leases of plugins that were set up before their generation is published."""
        self._pool = ConnectionPool(self.request_refresh, self.logins) if connect else None
        self.contracts = Contracts(home / _CONTRACTS_FILE)
        self.hold: Hold | None = None
        """The rollback that holds back the current files, if any."""
        self._hold_file = HoldFile(home / HOLD_FILE) if keep_holds else None
        self._last_snapshot: Snapshot | None = None
        """The files that were last published or rejected; None after a rollback."""
        self._live_snapshot: Snapshot | None = None
        """The files of the live generation, to build them again when the tools of tool servers change."""
        self._rejected_edits: tuple[_RejectedEdit, ...] = ()
        """The rejected files whose restrictions the live generation has, each with its problems."""
        self._is_restricted = self._has_source_changes = False
        """Whether the live generation has only the restrictions of an edit, the rest of which waits."""
        self._refreshing: asyncio.Task[None] | None = None
        # Names of the agents of which this process has loaded a valid version.
        self._metrics, self._loaded = ReloadMetrics(), set[str]()
        self._subscribers: list[Subscriber] = []
        self._lock = asyncio.Lock()
        self._rollbacks, self._rollback_requested = 0, asyncio.Event()
        """Number of rollbacks that wait for the lock, and whether one has been requested."""
        self._gates = set[asyncio.Task[tuple[Problem, ...]]]()
        """The cases that run, also those that were cancelled and have not ended yet."""
        self._published = asyncio.Event()
        """Set when the generation after the current one is published."""
        self._rejected_digests: tuple[str, str] | None = None
        """Digests of the files and the tool servers that were last rejected. They are not built again."""

    @property
    def skill_folders(self) -> tuple[str, ...]:
        """The folders of skills, relative to the project's folder."""
        return () if self.is_single_file else self._builder.skill_folders

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` after each reload that changed or rejected files. Returns a function to unsubscribe."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    def snapshot(self, texts: Mapping[str, bytes] = MappingProxyType({})) -> Snapshot:
        """Read the files of the project now, with these contents in place of those on the disk."""
        if self.is_single_file:
            snapshot = take_single_file_snapshot(self.root)
        else:
            snapshot = take_snapshot(self.root, self.skill_folders)
        if texts:
            snapshot = snapshot.with_texts(texts)
        return snapshot.with_cases_in_digest() if self._admission.runs_cases else snapshot

    def has_read(self, path: str, content: bytes) -> bool:
        """Return whether the files that were last published or rejected contain this text of a file."""
        read = self._last_snapshot
        return read is not None and content in (read.files.get(path), read.cases.get(path))

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The tools of the live generation, by name."""
        return self.current.tools

    def current_agent(self, pinned: Generation, name: str) -> Agent | None:
        """Return the live version of an agent, or None if it was deleted.

        If its file is invalid and this process has never loaded a valid version, return the one in `pinned`. An agent
        that was deleted, and whose file came back invalid, stays deleted: nobody knows what the file is to forbid.
        """
        if (agent := self.current.agents.get(name)) or (agent := pinned.agents.get(name)) is None:
            return agent
        was_live = name in self._loaded
        return agent if not was_live and any(one.path == agent.path for one in self.current.errors) else None

    async def reload(self, trigger: Trigger = "api") -> Generation:
        """Read the files and publish them. Unchanged files keep the current generation.

        Raises ConfigError at the start if a rollback holds the files back, and its record cannot be read.
        """
        if not self.current.number and self._hold_file is not None and await self._start_held(self._hold_file):
            return self.current
        while True:
            async with self._with_plugins(self.snapshot, trigger) as snapshot:
                candidate = await self._prepare(snapshot)
                if candidate is None or await self._publish(candidate, trigger):
                    return self.current

    async def refresh(self) -> Generation:
        """Build and publish the same files again, after the tools or the errors of a tool server have changed.

        The gate does not check the live files again: what it has checked them with no longer exists.
        """
        async with self._lock:
            if self._is_restricted:  # publishing the edit will discover the tools
                return self.current
            await self._refresh_live()
            if self._last_snapshot is not None and (candidate := await self._prepare(self._last_snapshot)):
                await self._publish(candidate, "source")
            return self.current

    def request_refresh(self) -> None:
        """Refresh in the background, after a change of the tool servers or of the accepted definitions."""
        self._has_source_changes = True
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._follow_sources(), context=Context())  # outside of any trace

    async def accept(self, names: Sequence[str]) -> Generation:
        """Accept the current definitions of these tools of tool servers. Raises ConfigError."""
        await asyncio.to_thread(self.contracts.accept, names)
        return await self.refresh()

    async def prepare(self, snapshot: Snapshot) -> Candidate | None:
        """Build a snapshot. Return None if it is already live, was rejected before, or is held back by a rollback.

        If `must_load` is true, this delays every other reload and rollback while plugins are loaded.
        """
        async with self._lock:
            return await self._prepare(snapshot)

    async def preview(self, texts: Mapping[str, bytes] | None = None) -> Preview:
        """Return the result of reading the files now. Nothing is published, no plugin is set up, no test case runs.

        Args:
            texts: contents of files, by path, to use in place of those on the disk.
        """
        async with self._with_plugins(partial(self.snapshot, texts or {}), None) as snapshot:
            external = await self._discover(snapshot)
            candidate = await self._build(snapshot, external)
            built, held = candidate.generation, self.held and self._is_ignored(snapshot)
            state = snapshot.digest, external.digest
            if state == (self.current.digest, self.current.external.digest):
                return Preview("unchanged", candidate, held, self.current.problems_with(external))
            reasons = self.problems if state == self._rejected_digests else self._admission.check_files(built)
            return Preview(_outcome(built, reasons), candidate, held, reasons or built.problems)

    async def must_load(self, snapshot: Snapshot) -> bool:
        """Return whether `load` must be called before a snapshot can be prepared without a delay."""
        rejected = self._rejected_digests and self._rejected_digests[0]
        if not self.current.number or snapshot.digest in (self.current.digest, rejected) or self._is_ignored(snapshot):
            return False
        if await asyncio.to_thread(self._builder.has_plugins_to_load, snapshot):
            return True
        declared = await asyncio.to_thread(self._builder.sources, snapshot)
        return self._pool is not None and not self._pool.is_open(declared.configs)

    async def load(self, snapshot: Snapshot, *, set_up: bool = True) -> None:
        """Load and set up the changed plugins of a snapshot, and connect to its new tool servers.

        No other reload, and no rollback, is delayed.

        Cancelling the call abandons the load.
        """
        abandoned = threading.Event()
        try:
            plugins = await asyncio.to_thread(self._builder.load_plugins, snapshot, abandoned)
        except asyncio.CancelledError:
            abandoned.set()
            raise
        if self._pool:
            declared = await asyncio.to_thread(self._builder.sources, snapshot)
            await self._pool.open(declared.configs, EDIT_WAIT_SECONDS)
        if set_up:
            lease = await self._leases.set_up(plugins)
            self._set_up_ahead.append(lease)
            if lease.failed:
                await asyncio.to_thread(self._builder.reject_plugins, lease.failed)

    async def prepare_restrictions(self, snapshot: Snapshot, young: frozenset[str] = frozenset()) -> Candidate | None:
        """Build only the restrictions of an edit, the rest of which must wait. None if it restricts nothing.

        With the gate there are none, because a failing case rejects the restrictions of an edit, too.

        Args:
            snapshot: the files.
            young: files that changed a moment ago. Those that are invalid or grant permissions may be half-written, so
                they restrict nothing yet.
        """
        if not self.current.number or self._admission.runs_cases or self._is_ignored(snapshot):
            return None
        before = self.current
        built = await asyncio.to_thread(self._builder.build_restrictions, snapshot, before, young)
        return Candidate.of(built, before, snapshot) if built else None

    async def publish_restrictions(self, candidate: Candidate, trigger: Trigger = "watch") -> bool:
        """Publish the result of `prepare_restrictions`. Return False if it is outdated, and must be prepared again."""
        async with self._lock:
            if candidate.before is not self.current:
                return False
            with open_reload_span(candidate, trigger) as span:
                candidate = candidate.with_traceparent(span.traceparent)
                with (lease := await self._leases.acquire(candidate.generation)):
                    edits = self._rejected_edits
                    self._swap(candidate, lease, trigger)
                assert candidate.snapshot is not None
                self._is_restricted, self._rejected_edits = True, (*edits, (candidate.snapshot, ()))
                self._rejected_digests = None  # an edit that goes back to these files is another one
                record_reload(span, candidate, trigger, "partial")
                return True

    async def publish(self, candidate: Candidate, trigger: Trigger = "watch") -> Generation:
        """Publish a candidate unless strict mode or the gate rejects it. An outdated candidate is ignored."""
        async with self._lock:
            if candidate.before is not self.current:
                return self.current
            await self._publish(candidate, trigger)
            return self.current

    async def rollback(self, number: int) -> Generation:
        """Publish an earlier generation again, under a new number. It stays live until the files change.

        The gate does not check it, because it was live; the cases of an edit that run at the moment are abandoned.
        Tools of tool servers that have changed since are treated as always, a moment later.

        Raises:
            GenerationNotFound: the generation is not in the history.
            ConfigError: its plugins cannot be set up again.
        """
        archived = self.history.entry(number).archived
        async with self._before_the_gate():
            restored = await asyncio.to_thread(archived.restore, self.current)
            earlier = replace(restored, number=self.current.number + 1)
            on_disk = await asyncio.to_thread(self.snapshot)
            lease = await self._leases.reacquire(earlier)
            with lease:
                self.hold, self._last_snapshot = Hold.of(archived, on_disk.digest), None
                self._live_snapshot = replace(self.hold.snapshot, digest=earlier.digest, cases=earlier.cases)
                self._swap(Candidate.of(earlier, self.current), lease, "rollback")
            if self._pool:
                self.request_refresh()
            if self._hold_file is not None:
                keep = partial(self._hold_file.write, self.hold) if self.held else self._hold_file.delete
                await asyncio.to_thread(keep)
            return self.current

    @property
    def held(self) -> bool:
        """Whether the current files are ignored because of a rollback, until they change again."""
        return self.hold is not None and self.hold.ignored != self.current.digest

    def lease(self) -> Lease:
        """Return the lease of the live generation. Its plugins stay set up while the lease is entered."""
        return self._leases.live

    async def reacquire_lease(self, generation: Generation) -> Lease:
        """Return the lease of an earlier generation. Raises ConfigError if its plugins cannot be set up again."""
        return await self._leases.reacquire(generation)

    def set_live(self, generation: Generation) -> None:
        """Make a prebuilt generation live without any check. The caller has set up its plugins."""
        self.current = generation
        self._loaded.update(generation.agents)
        self._leases.publish(Lease(generation, PluginLease(), lambda _: None))

    async def close(self) -> None:
        """Tear down all plugins and disconnect from all tool servers, even those in use."""
        if self._refreshing:
            self._refreshing.cancel()
            await asyncio.wait([self._refreshing])
        for gate in self._gates:
            gate.cancel()
        if self._gates:
            await asyncio.wait(self._gates)
        self._release_ahead()
        await self._leases.close()
        if self._pool:
            await self._pool.close()

    async def wait_generation(self, number: int) -> Generation:
        """Wait until a generation with at least this number is live, and return it."""
        while self.current.number < number:
            await self._published.wait()
        return self.current

    @asynccontextmanager
    async def _with_plugins(self, read: Callable[[], Snapshot], trigger: Trigger | None) -> AsyncIterator[Snapshot]:
        """Read the files, and hold the lock as soon as their plugins are loaded, which happens without it.

        The restrictions of the files are published before that. Without a trigger, nothing is published or set up.
        """
        for attempt in count(1):
            async with self._lock:
                snapshot = await asyncio.to_thread(read)
                if attempt > _MAX_LOADS or not await self.must_load(snapshot):
                    yield snapshot
                    return
            while trigger and (restricted := await self.prepare_restrictions(snapshot)):
                if await self.publish_restrictions(restricted, trigger):
                    break
            await self.load(snapshot, set_up=trigger is not None)

    @asynccontextmanager
    async def _before_the_gate(self) -> AsyncIterator[None]:
        """Hold the lock for a rollback: cases, which may take minutes, end or do not start meanwhile."""
        self._rollbacks += 1
        self._rollback_requested.set()
        try:
            async with self._lock:
                yield
        finally:
            self._rollbacks -= 1
            if not self._rollbacks:
                self._rollback_requested.clear()

    def _release_ahead(self) -> None:
        while self._set_up_ahead:
            self._set_up_ahead.pop().release()

    async def _start_held(self, hold_file: HoldFile) -> bool:
        """Publish the generation that an earlier process rolled back to, if the files have not changed since."""
        hold = await asyncio.to_thread(hold_file.read)
        if hold is None:
            return False
        async with self._lock:
            if (await asyncio.to_thread(self.snapshot)).digest != hold.ignored:
                log.info("the files have changed since the rollback to generation %d: it has ended", hold.generation)
                await asyncio.to_thread(hold_file.delete)
                return False
            if (candidate := await self._prepare(hold.snapshot)) is not None:
                await self._publish(candidate, "rollback", was_live=True)
            self.hold = hold
            log.warning("%s", hold)
        return True

    def _is_ignored(self, snapshot: Snapshot) -> bool:
        """Return whether a rollback holds these files back."""
        return self.hold is not None and snapshot.digest == self.hold.ignored

    def _end_hold(self) -> None:
        if self.hold is not None:
            self.hold = None
            if self._hold_file is not None:
                self._hold_file.delete()

    async def _refresh_live(self) -> None:
        """Publish the live files with the tools that the tool servers have now, if these have changed."""
        if self._live_snapshot is None:
            return
        external = await self._discover(self._live_snapshot)
        if external.digest == self.current.external.digest:
            if self._last_snapshot is None:
                self.problems = self.current.problems_with(external)
            return
        candidate = await self._build(self._live_snapshot, external)
        edits = self._rejected_edits
        # At once, so that no call meets the live files without the restrictions.
        if edits and not await self._publish_restricted(candidate.generation, edits, external, "source"):
            return
        await self._publish(candidate, "source", was_live=True)

    async def _prepare(self, snapshot: Snapshot) -> Candidate | None:
        if self._is_ignored(snapshot) and snapshot.digest != self.current.digest:
            return None
        started, external = time_ns(), await self._discover(snapshot)
        if (snapshot.digest, external.digest) == (self.current.digest, self.current.external.digest):
            self._rejected_digests, self._last_snapshot = None, snapshot
            self._end_hold()
            self._release_ahead()
            self.problems = self.current.problems_with(external)
            return None
        if (snapshot.digest, external.digest) == self._rejected_digests:
            self._last_snapshot = snapshot
            return None
        return replace(await self._build(snapshot, external), built=(started, time_ns()))

    async def _build(self, snapshot: Snapshot, external: ExternalTools) -> Candidate:
        """Build a snapshot and compare it with the live generation, in a thread."""
        before = self.current

        def build() -> Compared:
            return compare(self._builder.build(snapshot, before, external), before)

        generation, changes, different = await asyncio.to_thread(build)
        return Candidate(generation, before, changes, snapshot, different=different)

    async def _discover(self, snapshot: Snapshot) -> ExternalTools:
        declared = await asyncio.to_thread(self._builder.sources, snapshot)
        return await discover(declared, self._pool, self.contracts, starting=self.current.number == 0)

    async def _publish(self, candidate: Candidate, trigger: Trigger, *, was_live: bool = False) -> Generation | None:
        """Publish a candidate unless it is rejected. Return the live generation; None if a rollback came first.

        Args:
            candidate: the next generation.
            trigger: the reason.
            was_live: its files are or were live. The gate does not check them, and they end no hold.
        """
        started = perf_counter()
        with open_reload_span(candidate, trigger) as span:
            candidate, lease = await self._set_up(candidate.with_traceparent(span.traceparent))
            with lease:
                files_only = was_live or not self._admission.runs_cases
                reasons = self._admission.check_files(lease.generation) if files_only else await self._check(lease)
                if reasons is None:
                    self._release_ahead()
                    return None
                if not was_live:
                    self._last_snapshot = candidate.snapshot
                    self._end_hold()
                outcome = _outcome(candidate.generation, reasons)
                record_reload(span, candidate, trigger, outcome)
                if reasons:
                    await self._reject(candidate, reasons, trigger)
                else:
                    self._rejected_digests, self._live_snapshot = None, candidate.snapshot
                    self._swap(candidate, lease, trigger)
            self._release_ahead()
        self._metrics.record(
            trigger=trigger,
            outcome=outcome,
            seconds=perf_counter() - started,
            generation=self.current.number,
            agents=len(self.current.agents),
            stale=len(self.history.last.archived.stale) if self.history.last else 0,
        )
        return self.current

    async def _check(self, lease: Lease) -> tuple[Problem, ...] | None:
        """Return why strict mode or the cases reject a generation; None if a rollback was requested meanwhile."""

        async def check() -> tuple[Problem, ...]:
            with lease as generation:  # its plugins stay set up until cancelled cases have ended
                return await self._admission.check(generation, self.current)

        gate, rollback = asyncio.create_task(check()), asyncio.create_task(self._rollback_requested.wait())
        self._gates.add(gate)
        gate.add_done_callback(self._gates.discard)
        try:
            await asyncio.wait((gate, rollback), return_when=asyncio.FIRST_COMPLETED)
        finally:
            rollback.cancel()
            if not gate.done():
                gate.cancel()
        return gate.result() if gate.done() else None

    async def _set_up(self, candidate: Candidate) -> tuple[Candidate, Lease]:
        """Set up the plugins of a candidate. If one fails, rebuild the candidate with its last good version."""
        lease = await self._leases.acquire(candidate.generation)
        while lease.failed:
            assert candidate.snapshot is not None
            with lease:  # plugins that the next attempt uses as well stay set up
                await asyncio.to_thread(self._builder.reject_plugins, lease.failed)
                external = candidate.generation.external
                again = replace(await self._build(candidate.snapshot, external), built=candidate.built)
                candidate = again.with_traceparent(candidate.generation.traceparent)
                lease = await self._leases.acquire(candidate.generation)
        return candidate, lease

    async def _reject(self, candidate: Candidate, problems: tuple[Problem, ...], trigger: Trigger) -> None:
        """Publish only the restrictions of the rejected files. If the gate rejected them, publish nothing."""
        if candidate.snapshot and self.current.number and self._admission.check_files(candidate.generation):
            others = tuple(one for one in self._rejected_edits if one[0].digest != candidate.digest)
            edit, has_restrictions = (candidate.snapshot, problems), len(others) < len(self._rejected_edits)
            external = candidate.generation.external
            problems = await self._publish_restricted(self.current, (edit,), external, trigger)
            if has_restrictions or not problems:
                self._rejected_edits = (*others, edit)
            if not problems:
                return
        elif restricted := candidate.restricts:
            message = (
                f"the restrictions of this edit are NOT in effect for {', '.join(restricted)}: cases fail (reload.gate)"
            )
            problems = (*problems, Problem(path=SETTINGS_FILE, message=message, severity="warning"))
        self._record_rejection(candidate, problems)

    async def _publish_restricted(
        self, live: Generation, edits: tuple[_RejectedEdit, ...], external: ExternalTools, trigger: Trigger
    ) -> tuple[Problem, ...]:
        """Publish `live` with the restrictions of rejected edits; return the problems instead if there are none."""
        built, problems = live, tuple[Problem, ...]()
        for snapshot, reasons in edits:
            restricted = await asyncio.to_thread(self._builder.build_restricted, snapshot, built, external, reasons)
            problems = restricted.rejection
            built = built if problems else restricted
        if built is live:
            return problems
        built = replace(built, number=self.current.number + 1)
        with (lease := await self._leases.acquire(built)):
            self._swap(Candidate.of(built, self.current, edits[-1][0]), lease, trigger)
        self._rejected_edits = edits
        return ()

    def _record_rejection(self, candidate: Candidate, problems: tuple[Problem, ...]) -> None:
        self._rejected_digests, self._is_restricted = (candidate.digest, candidate.generation.external.digest), False
        self.problems = problems
        self._notify(ConfigRejected(generation=self.current.number, problems=problems))
        for problem in problems:
            log.error("%s (still serving generation %d)", problem, self.current.number)

    def _swap(self, candidate: Candidate, lease: Lease, trigger: Trigger) -> None:
        before, self.current = self.current, candidate.generation
        self._loaded.update(self.current.agents)
        self._is_restricted, self._rejected_edits = False, ()
        self._leases.publish(lease)
        self.problems = self.current.problems
        self.history.add(candidate, trigger)
        published, self._published = self._published, asyncio.Event()
        published.set()
        known, places = {*before.problems}, set[str]()
        for problem in self.current.problems if before.number else self.current.errors:
            if problem not in known:
                shown = problem.model_copy(update={"excerpt": None}) if problem.place in places else problem
                log.log(logging.ERROR if problem.severity == "error" else logging.WARNING, "%s", shown)
                places.add(problem.place)
        log.info("%s", self.current.summary)
        self._notify(candidate.event())

    async def _follow_sources(self) -> None:
        """Refresh until no change is pending. Changes during a refresh cause one more."""
        while self._has_source_changes:
            self._has_source_changes = False
            try:
                await self.refresh()
            except Exception:
                log.exception("failed to reload after a change of the tool servers")

    def _close_unused(self) -> None:
        if self._pool:
            used = [*self._leases.generations(), self.current]
            self._pool.close_unused({opened for generation in used for opened in generation.external.sources.values()})

    def _notify(self, event: ConfigReloaded | ConfigRejected) -> None:
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(event)
            except Exception:
                log.exception("a subscriber of configuration events failed")


def _outcome(generation: Generation, rejection: Sequence[Problem]) -> ReloadOutcome:
    return "rejected" if rejection else "partial" if generation.errors else "applied"
