"""Starts each root run in its own task, drives it to its end, and stops all runs when the runtime closes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakValueDictionary

from pydantic import BaseModel

from framework.config.agents.compile import Agent
from framework.config.agents.models import Budgets
from framework.config.generations.generation import Generation
from framework.engine.context.events import (
    EventHub,
    EventReader,
    Journal,
    MessageKey,
    RunStream,
    TextDelta,
    TextKind,
    split,
)
from framework.engine.context.grants import GrantBook, end_changed_grants
from framework.engine.context.policy import BudgetLedger
from framework.engine.context.run_context import ModelClients, RateLimiter, RunMedia, Services
from framework.engine.plan.executor import EXECUTORS
from framework.engine.routing import Route
from framework.engine.run import Run
from framework.engine.run_report import RunTrace, configured_content, finish_run, run_spans, suspend_run
from framework.engine.runtime.background import BackgroundWork, essential, is_passing
from framework.engine.runtime.project import Project
from framework.llm.client import ModelClient
from framework.store.types import (
    MISSED,
    NEW,
    OPEN_STATUSES,
    RunRecord,
    Signal,
    SignalCallback,
    UnstoredRecord,
    database_paths,
)
from framework.telemetry.metrics import RunMetrics
from framework.telemetry.spans import Content, Spans, log_as_run
from framework.tools.mcp.source import McpSource
from framework.tools.remote_sources import A2aSource
from framework.tools.threads import ToolThreads
from framework.tools.tool import source_of
from framework.types.errors import StoreError
from framework.types.events import ContentReceived, Routed, Thought, Warned
from framework.types.state import Confirmation, RunResult, RunState

if TYPE_CHECKING:
    from framework.store.store import Store

log = logging.getLogger(__name__)


class SignalReceiver:
    """Passes the signals of a store to the parts of one runtime."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._handlers: list[SignalCallback] = []
        self._is_open = self._is_closed = False
        self._stop: Callable[[], None] = lambda: None

    def add(self, handler: SignalCallback) -> None:
        """Pass each signal to a handler, once `open` was called."""
        self._handlers.append(handler)

    async def open(self) -> None:
        """Receive signals from now on. Idempotent."""
        if not (self._is_open or self._is_closed):
            self._is_open = True
            try:
                self._stop = await self._store.listen(self._deliver)
            except BaseException:
                self._is_open = False
                raise

    def close(self) -> None:
        """Receive no more signals."""
        self._is_closed = True
        self._stop()

    def _deliver(self, signal: Signal) -> None:
        if not self._is_closed:
            for handler in self._handlers:
                handler(signal)


BATCH_SECONDS = 0.1
"""Interval at which texts are sent."""


class TextSender:
    """The texts of one process. They are sent only while another process follows their run."""

    def __init__(self, store: Store, signals: SignalReceiver, hub_of: Callable[[str], EventHub | None]) -> None:
        """Initialize. `hub_of` returns the hub of a run that is in progress in this process."""
        self._store, self._hub_of = store, hub_of
        self._runs: dict[str, _SentRun] = {}
        self._sources = WeakKeyDictionary[EventHub, str]()
        self._answers: list[Signal] = []
        """Tell new followers that this process executes their run, and how far it has come."""
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        signals.add(self._receive)

    def start(self, run_id: str) -> None:
        """Send the texts of a run in progress in this process, and answer its followers."""
        hub = self._hub_of(run_id)
        if hub is None:
            return
        if run_id in self._runs:
            self._runs[run_id].close()
        self._runs[run_id] = _SentRun(hub, self._sources.setdefault(hub, uuid4().hex))
        self._answers.append(Signal("events", run_id, hub.number))
        self._woken.set()
        if self._task is None:
            sending, loop = self._send(), asyncio.get_running_loop()
            self._task = essential(loop.create_task(sending, name="texts for other processes", context=Context()))

    async def close(self) -> None:
        """Stop sending."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _receive(self, signal: Signal) -> None:
        if signal.kind == "listen" and (signal.body == NEW or signal.run_id not in self._runs):
            self.start(signal.run_id)

    async def _send(self) -> None:
        try:
            while self._runs:
                with suppress(TimeoutError):
                    async with asyncio.timeout(BATCH_SECONDS):
                        await self._woken.wait()
                self._woken.clear()
                signals, self._answers = [*self._answers, *self._texts()], []
                if signals:
                    try:
                        await self._store.signal(*signals)
                    except (StoreError, OSError) as error:  # the followers get the whole texts from the store
                        if not is_passing(error):
                            raise
        finally:
            self._task = None
            for run in self._runs.values():
                run.close()
            self._runs.clear()

    def _texts(self) -> Iterator[Signal]:
        for run_id, run in list(self._runs.items()):
            if run.hub.is_closed or not self._store.is_followed(run_id):
                run.close()
                del self._runs[run_id]
                continue
            number = run.hub.number
            for piece in run.take():
                yield Signal("deltas", run_id, number, piece.encode())


class _SentRun:
    """One run, and what was sent of its texts since the last follower joined."""

    def __init__(self, hub: EventHub, source: str) -> None:
        self.hub, self._source = hub, source
        self._reader = hub.reader(hub.number)
        self._sent: dict[MessageKey, dict[TextKind, int]] = {}
        """Number of characters that were sent of each text in progress."""

    def take(self) -> Iterator[TextDelta]:
        """Yield the pieces that have arrived since the last call, of texts that are still in progress."""
        pieces: dict[MessageKey, list[TextDelta]] = {}
        while (event := self._reader.take()) is not None:
            if not isinstance(event, (ContentReceived, Thought, Warned)) or event.message_id is None:
                continue
            message = (event.path, event.message_id)
            if event.seq:
                self._sent.pop(message, None)
                pieces.pop(message, None)
            elif not isinstance(event, Warned):
                sent = self._sent.setdefault(message, {})
                begin = sent.get(type(event), 0)
                sent[type(event)] = begin + len(event.text)
                pieces.setdefault(message, []).extend(split(event, self._source, begin))
        for some in pieces.values():
            yield from some

    def close(self) -> None:
        """Stop reading."""
        self._reader.close()


RENEWAL_SECONDS = 1.0
"""Maximum of seconds between two renewals while this process holds runs; a quarter of the lease if that is shorter."""


class HeldRun(Protocol):
    """A run that this process holds: the journal of a run in progress, or a claimed run that is being started."""

    def request_cancel(self) -> None:
        """Cancel the run: a cancel request is in the store."""
        ...

    def mark_lease_lost(self) -> None:
        """Stop working on the run without ending it: this process no longer holds it."""
        ...


class LeaseHeartbeat:
    """One task per runtime, alive only while it holds runs."""

    def __init__(self, store: Store, signals: SignalReceiver) -> None:
        self._store, self._signals = store, signals
        self._woken = asyncio.Event()
        signals.add(self._receive)
        self._held: dict[str, HeldRun] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def hold(self, run_id: str, run: HeldRun) -> None:
        """Renew the lease of a run until `drop`. A run in progress replaces the claim that it was started from."""
        self._held[run_id] = run
        if self._store.durable and self._task is None and not self._is_closed:
            renewing = self._renew_while_held()
            self._task = essential(  # outside any trace
                asyncio.get_running_loop().create_task(renewing, name="renewal of leases", context=Context())
            )

    def drop(self, run_id: str) -> None:
        """Stop renewing the lease of a run."""
        self._held.pop(run_id, None)

    async def close(self) -> None:
        """Stop the heartbeat."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _receive(self, signal: Signal) -> None:
        """Renew the leases at once if a run is cancelled: the store says whether that is so."""
        if signal == MISSED or (signal.kind == "cancel" and signal.run_id in self._held):
            self._woken.set()

    async def _renew_while_held(self) -> None:
        try:
            while self._held:
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(RENEWAL_SECONDS, self._store.lease_seconds / 4)):
                        await self._woken.wait()
                self._woken.clear()
                try:
                    await self._renew_leases()
                    await self._signals.open()  # only now, because most programs end earlier
                except (StoreError, OSError) as error:  # a run fails with its next write, if that fails, too
                    if not is_passing(error):
                        raise
                    log.warning("the lease on %d runs was not renewed: %s", len(self._held), error)
        finally:
            self._task = None

    async def _renew_leases(self) -> None:
        mine = dict(self._held)
        renewed = await self._store.renew(tuple(mine))
        for run_id, run in mine.items():
            if self._held.get(run_id) is not run:
                continue  # it has ended since, and may have been resumed as another object
            if run_id not in renewed:
                run.mark_lease_lost()
            elif renewed[run_id]:
                run.request_cancel()


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A root run that is recorded in the store and ready to start."""

    state: RunState
    record: RunRecord
    generation: Generation
    agent: Agent
    route: Route | None = None
    """How the agent was chosen; None for a resumed run."""
    output_type: type[BaseModel] | None = None
    decided_ids: Collection[str] = ()
    """Ids of the confirmations that were decided just now."""


class _ActiveRun(NamedTuple):
    """A run in progress in this process."""

    stream: RunStream
    journal: Journal
    state: RunState


class Launcher:
    """Starts and stops the runs of this process."""

    def __init__(
        self,
        project: Project,
        store: Store,
        models: Mapping[str, ModelClient],
        deps: Any,
        clock: Callable[[], float] | None = None,
        *,
        observed: bool = True,
    ) -> None:
        """Initialize. `observed`: whether spans and metrics of the runs are recorded."""
        self.models = ModelClients(models)
        self.store = store
        self.pinned_generations: dict[str, Generation] = {}
        """Generation of each active or paused run, by run id. Only for stores that keep no blueprints."""
        self._root, self._catalog, self._deps = project.root, project.catalog, deps
        self._rate_limiter = RateLimiter()
        self.meters = RunMetrics()
        self._threads = ToolThreads(self.meters.count_abandoned_threads)
        self._running: dict[str, _ActiveRun] = {}
        self.works = False
        """Whether this process executes runs: it has started one, or looks for those that wait."""
        self._reserved = (*store.files, *database_paths(project.settings.store.url.get_secret_value(), project.root))
        self._hubs = WeakValueDictionary[str, EventHub]()
        self._abandoning: set[asyncio.Task[None]] = set()
        self._closing = self._closed = False
        self._clock, self._observed = clock or store.now, observed
        self._on_pause: Callable[[RunState, bool], object] = lambda _, __: None
        self._on_end: Callable[[str], object] = lambda _: None
        self.started = 0
        """Number of new runs that this process has started."""
        self._claims: dict[str, HeldRun] = {}
        """The queued runs that this process has claimed, and not started yet."""
        self.signals = SignalReceiver(store)
        """Signals of other processes, once it is open."""
        self._heartbeat = LeaseHeartbeat(store, self.signals)
        self._texts = TextSender(store, self.signals, lambda key: self.hub(key) if key in self._running else None)
        self._ending, self._checked = BackgroundWork(), self._catalog.current
        """Ends the grants that depend on what edits have changed, and the last generation that it has checked."""
        self._catalog.subscribe(self._end_grants)

    @asynccontextmanager
    async def launch(self, prepared: PreparedRun, *, listening: bool) -> AsyncIterator[RunStream]:
        """Start a run and yield its stream. Leaving the context cancels the run unless its result was awaited.

        Args:
            prepared: the run.
            listening: whether the stream is read; without, it has no events.
        """
        stream = self._start(prepared, self.hub(prepared.state.run_id).reader() if listening else None)
        try:
            yield stream
        finally:
            await stream.leave()

    def start(self, prepared: PreparedRun) -> asyncio.Task[RunResult]:
        """Start a run whose events are read through `hub`, at any time or never; return the task that ends with it."""
        hub = self.hub(prepared.state.run_id)  # without readers, only this reference keeps it
        hub.expect_readers()
        return self._start(prepared).end()

    def hold(self, run_id: str, claim: HeldRun) -> None:
        """Renew the lease of a claimed run, and pass cancel requests to the claim, until it starts or `drop`."""
        self._claims[run_id] = claim
        self._heartbeat.hold(run_id, claim)

    def drop(self, run_id: str, claim: HeldRun) -> None:
        """Stop renewing the lease of a claimed run that does not start here, unless it has been claimed again."""
        if self._claims.get(run_id) is claim:
            del self._claims[run_id]
            self._heartbeat.drop(run_id)

    def hub(self, run_id: str) -> EventHub:
        """Return the hub of a run's events; new if the run is not in progress here and nobody waits for it.

        After `close`, it is closed.
        """
        hub = self._hubs.get(run_id)
        if hub is None or hub.is_closed:
            hub = self._hubs[run_id] = EventHub(run_id)
            if self._closed:
                hub.close()
        return hub

    def _start(self, prepared: PreparedRun, reader: EventReader | None = None) -> RunStream:
        run_id, hub = prepared.state.run_id, self.hub(prepared.state.run_id)
        hub.start_after(prepared.state.seq)
        spans = self._spans(prepared)
        journal = Journal(prepared.state, prepared.record, hub, durable=self.store.durable, take_spans=spans.drain)
        services = self._services(prepared, hub, journal, spans)
        run = Run(prepared.state, prepared.agent, services, EXECUTORS)
        self.started, self.works = self.started + (prepared.route is not None), True
        if not self.store.durable:
            self.pinned_generations[run_id] = prepared.generation
        task = asyncio.create_task(self._run_and_release(run, prepared.route), name=run_id)
        stream = RunStream(run_id, task, reader)
        self._running[run_id] = _ActiveRun(stream, journal, prepared.state)
        self._claims.pop(run_id, None)
        self._heartbeat.hold(run_id, journal)
        if self.store.is_followed(run_id):
            self._texts.start(run_id)
        journal.call_on_cancel(stream.cancel)
        if self._closing:
            journal.close()
        return stream

    def ephemeral(self, state: RunState, agent: Agent, generation: Generation) -> Run:
        """Return a run that is not recorded and has no listeners, for a tool call that is part of no run."""
        prepared, hub = (
            PreparedRun(state, UnstoredRecord(self.store.count_use), generation, agent),
            EventHub(state.run_id),
        )
        journal = Journal(state, prepared.record, hub, durable=False)
        services = self._services(prepared, hub, journal, self._spans(prepared))
        return Run(state, agent, services, EXECUTORS)

    def call_on_pause(self, callback: Callable[[RunState, bool], object]) -> None:
        """Set the callback for paused runs. Arguments: the state, and whether cancellation was requested."""
        self._on_pause = callback

    def call_on_end(self, callback: Callable[[str], object]) -> None:
        """Set the callback for runs that have ended or paused in this process. Argument: the run id."""
        self._on_end = callback

    @property
    def is_closed(self) -> bool:
        """Whether all runs were stopped, and no more events follow."""
        return self._closed

    def task(self, run_id: str) -> asyncio.Task[RunResult] | None:
        """Return the task of a run that is in progress in this process."""
        active = self._running.get(run_id)
        return active.stream.end() if active else None

    def executes_only(self, run_id: str) -> bool:
        """Return whether this process executes no other run, and is about to start none."""
        return not (self._running.keys() | self._claims.keys()) - {run_id}

    def is_running(self, run_id: str) -> bool:
        """Return whether the run is in progress in this process."""
        return run_id in self._running

    async def wait_until_released(self, run_id: str) -> None:
        """Wait until a run whose end or pause is being written is no longer in progress: its readers may know first."""
        active = self._running.get(run_id)
        if active is not None and active.journal.is_ending:
            await asyncio.wait([active.stream.end()])

    def cancel(self, run_id: str) -> bool:
        """Cancel a run that this process executes or starts. Return False if there is none, or its lease was lost.

        Also False if its end or pause is being saved: then only the store knows whether the request is in time.
        """
        if run_id in self._claims:
            self._claims[run_id].request_cancel()
            return True
        active = self._running.get(run_id)
        if active is None or active.journal.lease_lost:
            return False
        active.journal.mark_cancelled()
        if active.journal.is_ending and self.store.durable:
            return False
        active.stream.cancel()
        return True

    def _spans(self, prepared: PreparedRun) -> Spans:
        if not self._observed:
            return Spans({}, traced=False)
        is_wanted = prepared.generation.settings.telemetry.store_traces
        keep = is_wanted and self.store.keeps_spans and not isinstance(prepared.record, UnstoredRecord)
        return run_spans(prepared.state, prepared.generation, keep=keep)

    def _services(self, prepared: PreparedRun, hub: EventHub, journal: Journal, spans: Spans) -> Services:
        """Return the services that a run shares with its sub-runs."""
        state, generation = prepared.state, prepared.generation
        settings = generation.settings
        base_path = Path(state.base_path) if state.base_path else self._root / settings.tools.base_path
        return Services(
            root=state,
            generation=generation,
            current_agent=partial(self._catalog.current_agent, generation),
            clients=self.models,
            journal=journal,
            media=RunMedia(state, None if isinstance(prepared.record, UnstoredRecord) else self.store),
            hub=hub,
            spans=spans,
            content=configured_content(settings) if spans.recording else Content(),
            meters=self.meters.if_enabled() if self._observed else None,
            threads=self._threads,
            rate_limiter=self._rate_limiter,
            now=self.store.now,
            notes=self.store.notes,
            ledger=BudgetLedger(state, self.store, partial(self._budgets, generation), self._clock),
            base_path=base_path.resolve(),
            reserved_files=self._reserved,
            tools=lambda: settings.tools.narrowed_by(self._catalog.current.settings.tools),
            deps=self._deps,
            grants=GrantBook(
                None if isinstance(prepared.record, UnstoredRecord) else self.store.grants,
                lambda: (settings, self._catalog.current.settings),
                self.store.now,
                self.store.grants,
                self._ending.close,
            ),
            output_type=prepared.output_type,
            decided=prepared.decided_ids,
        )

    def _end_grants(self, _: object) -> None:
        before, self._checked = self._checked, self._catalog.current
        if before is not self._checked:
            self._ending.start("grants", end_changed_grants(self.store, before, self._checked), Context())

    def _budgets(self, generation: Generation) -> tuple[Budgets, Budgets]:
        return generation.budgets, self._catalog.current.budgets

    async def close(self, grace: float) -> None:
        """Stop every run, including those that start during the call. Runs in a durable store can be resumed later.

        Args:
            grace: seconds to wait for tool calls in progress; a call that is interrupted may have taken effect.
        """
        self._closing = True
        for active in self._running.values():
            active.journal.close()
        if self.store.durable:
            await self._stop([active for active in self._running.values() if not _has_calls_in_progress(active.state)])
            if waiting := [active.stream.end() for active in self._running.values()]:
                await asyncio.wait(waiting, timeout=grace)
        while self._running:
            await self._stop(list(self._running.values()))
        if self._abandoning:
            await asyncio.wait(self._abandoning)
        self._closed = True
        for hub in list(self._hubs.values()):
            hub.close()
        self.signals.close()
        await self._texts.close()
        await self._heartbeat.close()
        await self._ending.close()
        await self.models.close()
        self._threads.close()

    async def _stop(self, runs: Sequence[_ActiveRun]) -> None:
        for active in runs:
            active.stream.cancel()
        if runs:
            await asyncio.wait([active.stream.end() for active in runs])

    def abandon_calls(self, state: RunState) -> None:
        """Cancel, in the background, what servers still do for calls that an ended run will not continue."""
        sources = self._catalog.current.external.sources
        for record in (record for run in state.with_sub_runs() for record in run.calls.values()):
            opened = sources.get(source_of(record.call.tool))
            if record.continuation and opened is not None and isinstance(opened.source, A2aSource | McpSource):
                task = asyncio.create_task(opened.source.abandon(record.continuation), name=record.call.tool)
                self._abandoning.add(task)
                task.add_done_callback(self._abandoning.discard)

    async def _run_and_release(self, run: Run, route: Route | None) -> RunResult:
        try:
            return await _run_to_end(run, route)
        finally:
            del self._running[run.state.run_id]
            self._heartbeat.drop(run.state.run_id)
            if run.state.status == "paused":
                self._on_pause(run.state, run.services.journal.cancel_requested)
            else:
                self.pinned_generations.pop(run.state.run_id, None)
            if run.state.status not in OPEN_STATUSES:
                self.abandon_calls(run.state)
            self._on_end(run.state.run_id)


async def _run_to_end(run: Run, route: Route | None) -> RunResult:
    """Run a new or resumed root run until it ends or pauses, and return its result.

    Must be called in a separate task, so that no span or timeout of the caller applies to the run.

    Raises:
        RunSuspended: the runtime closed, or the lease was lost, while the run was in progress.
        StoreError: the result could not be saved.
    """
    log_as_run(run.state.run_id)
    pending: tuple[Confirmation, ...] = ()
    try:
        with RunTrace(run, route) as trace:
            with suppress(asyncio.CancelledError):  # the state has the reason; the run still has to be saved
                if route is not None:
                    about = {"reason": route.reason, "confidence": route.confidence, "executor": route.executor or None}
                    await run.emit(Routed, agent=route.agent.name, digest=run.state.digest, **about)
                pending = await run.drive()
            if run.services.journal.is_suspended and run.state.status == "running":
                await suspend_run(run, trace)
            return await finish_run(run, pending, trace)
    finally:
        run.services.hub.close()


def _has_calls_in_progress(state: RunState) -> bool:
    """Return whether a tool is executing. A call that delegates to a sub-agent does not count; its tools do."""
    return any(
        record.started and record.result is None and key not in run.children
        for run in state.with_sub_runs()
        for key, record in run.calls.items()
    )
