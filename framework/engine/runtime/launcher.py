"""Starts the tasks in which runs go on, and stops them when the runtime closes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from framework.config.agents.compile import Agent
from framework.config.generations.generation import Generation
from framework.engine.context.concurrency import RateLimiter
from framework.engine.context.journal import Journal
from framework.engine.context.model_clients import ModelClients
from framework.engine.context.services import Services
from framework.engine.context.stream import Channel, RunStream
from framework.engine.context.tool_threads import ToolThreads
from framework.engine.drive import drive
from framework.engine.model_call.context_window import tool_tokens
from framework.engine.routing.rules import Route
from framework.engine.run import Run
from framework.engine.runtime.heartbeat import LeaseHeartbeat
from framework.engine.runtime.project import Project
from framework.engine.runtime.root import drive_root
from framework.engine.runtime.trace import configured_content, run_spans
from framework.llm.client import ModelClient
from framework.llm.request_cache import ToolsetCache
from framework.store.database_files import database_paths
from framework.store.protocol import NullRecord, RunRecord, Store
from framework.telemetry.content import Content
from framework.telemetry.metrics import RunMetrics
from framework.telemetry.spans import Spans
from framework.types.state import RunResult, RunState


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """All that a run is started with."""

    state: RunState
    record: RunRecord
    generation: Generation
    agent: Agent
    chosen: Route | None = None
    """How its agent was chosen; none for one that goes on."""
    output_type: type[BaseModel] | None = None
    decided: Collection[str] = ()
    """What a human has just answered: ids of confirmations."""


@dataclass(frozen=True, slots=True)
class _ActiveRun:
    """A run that goes on in this process."""

    stream: RunStream
    journal: Journal
    state: RunState

    def cancel(self) -> None:
        """Stop it."""
        self.stream.cancel()


class Launcher:
    """The runs of this process that go on."""

    def __init__(self, project: Project, store: Store, models: Mapping[str, ModelClient], deps: Any) -> None:
        self.models = ModelClients(models)
        self.store = store
        self.pinned_generations: dict[str, Generation] = {}
        """By run, also of those that wait, where the store does not keep what their agents are made of."""
        self._root, self._catalog, self._deps = project.root, project.catalog, deps
        self._rate_limiter = RateLimiter()
        self._tool_tokens = ToolsetCache(tool_tokens)
        self._meters = RunMetrics()
        self._threads = ToolThreads(self._meters.count_abandoned_threads)
        self._running: dict[str, _ActiveRun] = {}
        self._reserved = (*store.files, *database_paths(project.settings.store.url.get_secret_value(), project.root))
        self._closing = False
        self._on_pause: Callable[[RunState, bool], object] = lambda _, __: None
        self._heartbeat = LeaseHeartbeat(store, self._running)

    @asynccontextmanager
    async def launch(self, start: PreparedRun, *, listening: bool) -> AsyncIterator[RunStream]:
        """Drive a run in a task of its own; leaving the context before its end was waited for cancels it."""
        stream = self.drive(start, listening=listening)
        try:
            yield stream
        finally:
            await stream.leave()

    def drive(self, start: PreparedRun, *, listening: bool) -> RunStream:
        """The same, for a run that goes on whoever listens."""
        run_id, channel = start.state.run_id, Channel()
        spans = self._spans(start)
        journal = Journal(start.state, start.record, channel, durable=self.store.durable, take_spans=spans.drain)
        services = self._services(start, channel, journal, spans, listening=listening)
        run = Run(start.state, start.agent, services, drive)
        if not self.store.durable:
            self.pinned_generations[run_id] = start.generation
        stream = RunStream(run_id, channel, asyncio.create_task(self._drive(run, start.chosen), name=run_id))
        self._running[run_id] = _ActiveRun(stream, journal, start.state)
        journal.call_on_cancel(stream.cancel)
        if self._closing:
            journal.close()
        else:
            self._heartbeat.start()
        return stream

    def ephemeral(self, state: RunState, agent: Agent, generation: Generation, *, traced: bool = True) -> Run:
        """A run of which nothing is kept or told, for a call that is part of no run; nor traced, if it is not to be."""
        start, channel = PreparedRun(state, NullRecord(), generation, agent), Channel()
        channel.close()
        journal = Journal(state, start.record, channel, durable=False)
        services = self._services(start, channel, journal, self._spans(start, traced=traced), listening=False)
        return Run(state, agent, services, drive)

    def call_on_pause(self, callback: Callable[[RunState, bool], object]) -> None:
        """Set what is called with each run that pauses, and whether it was cancelled meanwhile."""
        self._on_pause = callback

    def is_running(self, run_id: str) -> bool:
        """Does it go on in this process?"""
        return run_id in self._running

    def cancel(self, run_id: str) -> bool:
        """Stop a run that is in progress in this process, and held by it; returns whether there is one."""
        ongoing = self._running.get(run_id)
        if ongoing is None or ongoing.journal.lease_lost:
            return False
        ongoing.journal.mark_cancelled()
        ongoing.cancel()
        return True

    def _spans(self, start: PreparedRun, *, traced: bool = True) -> Spans:
        keep = self.store.keeps_spans and not isinstance(start.record, NullRecord)
        return run_spans(start.state, start.generation, keep=keep, traced=traced)

    def _services(
        self, start: PreparedRun, channel: Channel, journal: Journal, spans: Spans, *, listening: bool
    ) -> Services:
        """What a run and its sub-runs use."""
        state, generation = start.state, start.generation
        settings = generation.settings
        base_path = Path(state.base_path) if state.base_path else self._root / settings.tools.base_path
        return Services(
            root=state,
            generation=generation,
            current_agent=partial(self._current_agent, generation),
            model=partial(self.models.for_agent, settings),
            breakers=self.models.breakers,
            journal=journal,
            channel=channel,
            spans=spans,
            content=configured_content(settings) if spans.recording else Content(),
            meters=self._meters.if_enabled(),
            threads=self._threads,
            rate_limiter=self._rate_limiter,
            tool_tokens=self._tool_tokens,
            base_path=base_path.resolve(),
            reserved_files=self._reserved,
            tools=lambda: settings.tools.narrowed_by(self._catalog.current.settings.tools),
            deps=self._deps,
            listening=listening,
            output_type=start.output_type,
            decided=start.decided,
        )

    def _current_agent(self, pinned: Generation, name: str) -> Agent | None:
        """The live version of an agent; none if it was deleted.

        After a restart, a file that is broken has no last good version here: the run's own version takes its place.
        """
        live = self._catalog.current
        if (agent := live.agents.get(name)) or (agent := pinned.agents.get(name)) is None:
            return agent
        return agent if any(problem.path == agent.path for problem in live.errors) else None

    async def close(self, grace: float) -> None:
        """End the runs that go on, or begin meanwhile; those on a durable record are left as they are, to be resumed.

        Args:
            grace: seconds for tool calls that are under way: one that is cut off may have taken effect.
        """
        self._closing = True
        for ongoing in self._running.values():
            ongoing.journal.close()
        if self.store.durable:
            await self._stop(
                [ongoing for ongoing in self._running.values() if not _has_calls_in_progress(ongoing.state)]
            )
            if acting := [ongoing.stream.end() for ongoing in self._running.values()]:
                await asyncio.wait(acting, timeout=grace)
        while self._running:
            await self._stop(list(self._running.values()))
        await self._heartbeat.close()
        await self.models.close()
        self._threads.close()

    async def _stop(self, runs: Sequence[_ActiveRun]) -> None:
        for ongoing in runs:
            ongoing.cancel()
        if runs:
            await asyncio.wait([ongoing.stream.end() for ongoing in runs])

    async def _drive(self, run: Run, chosen: Route | None) -> RunResult:
        try:
            return await drive_root(run, chosen)
        finally:
            del self._running[run.state.run_id]
            if run.state.status == "paused":
                self._on_pause(run.state, run.services.journal.cancel_requested)
            else:
                self.pinned_generations.pop(run.state.run_id, None)


def _has_calls_in_progress(state: RunState) -> bool:
    """Whether a tool is at work; a sub-agent's call is what its own tools do."""
    return any(
        record.started and record.result is None and key not in run.children
        for run in state.with_sub_runs()
        for key, record in run.calls.items()
    )
