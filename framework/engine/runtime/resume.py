"""Resumes runs after a pause or a crash, and ends paused and interrupted runs without resuming them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from framework.config.generations.blueprint import Blueprints
from framework.config.generations.catalog import Catalog
from framework.config.generations.generation import Generation
from framework.engine.context.journal import Journal
from framework.engine.context.stream import RunStream
from framework.engine.routing.rules import choose_route
from framework.engine.runtime.launcher import Launcher, PreparedRun
from framework.engine.runtime.request import RUNTIME_CALLER, Caller, check_decisions, storable_decisions
from framework.engine.runtime.result import closing_events
from framework.store.protocol import RunInfo, RunQuery, RunRecord
from framework.types.errors import AgentsdError, ConfigError, DecisionRefused, RequestError, RunBusy, RunNotFound
from framework.types.report import ErrorInfo
from framework.types.state import Confirmation, Decision, Reject, RunState
from framework.types.status import Status

log = logging.getLogger(__name__)

_EXPIRED_REASON = "no decision was made in time"
MAX_RESUME_ATTEMPTS = 3
"""A run that was resumed this often without saving another step is failed: it probably crashes its processes."""
MAX_LOGGED_ERRORS = 1000
"""Number of runs whose last logged error is remembered, so that it is logged once."""


class RunResumer:
    """Resumes and cancels runs of a store."""

    def __init__(self, catalog: Catalog, launcher: Launcher, blueprints: Blueprints) -> None:
        self._catalog, self._launcher, self._blueprints = catalog, launcher, blueprints
        self._store = launcher.store
        self._background: set[asyncio.Task[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """Timers of the runs that paused in this process with confirmations that expire, by run id."""
        self._logged_errors: dict[str, str] = {}
        """Last logged error of each run that could not be resumed, by run id."""
        launcher.call_on_pause(self._on_pause)

    async def load(self, run_id: str, caller: Caller) -> RunState:
        """Return a run's saved state; raises RunNotFound, also if the caller may not access the run."""
        state = await self._store.load_run(run_id)
        if not caller.can_access(state.user, state.tenant):
            raise RunNotFound(f"there is no run {run_id!r}")
        return state

    @asynccontextmanager
    async def stream(self, run_id: str, decisions: Mapping[str, Decision], caller: Caller) -> AsyncIterator[RunStream]:
        """Resume a run with decisions; see `Runtime.resume`."""
        decisions = storable_decisions(decisions)
        with await self._catalog.reacquire_lease(
            self._launcher.pinned_generations.get(run_id, self._catalog.current)
        ) as leased:
            state = await self.load(run_id, caller)
            expired = await self._expired_confirmations(state, decisions)
            decided = decisions | {key: Reject(reason=_EXPIRED_REASON) for key in expired}
            generation = await self._original_generation(state, leased)
            agent = choose_route("", generation.agents, explicit=state.agent).agent
            record = await self._store.take(state, decided, caller.user)
            if timer := self._timers.pop(run_id, None):
                timer.cancel()
            if record.cancel_requested:
                await self._record_end(state, record, "cancelled", "cancelled")
                raise DecisionRefused(f"run {run_id} was cancelled: cancellation had already been requested")
            state.decisions.update(decided)
            state.pending = []
            prepared = PreparedRun(state, record, generation, agent, decided_ids=frozenset(decided))
            async with self._launcher.launch(prepared, listening=True) as stream:
                yield stream

    async def cancel(self, run_id: str, caller: Caller) -> None:
        """Cancel a run that is in progress in any process, paused or interrupted; see `Runtime.cancel`."""
        while True:
            state = await self.load(run_id, caller)
            if self._launcher.cancel(run_id):
                return
            if state.status not in ("running", "paused") or await self._store.request_cancel(run_id):
                return
            with suppress(RunBusy):  # another process has just resumed it: request cancellation from that process
                await self._end_inactive(state, "cancelled", "cancelled")
                return

    async def orphans(self) -> Sequence[RunInfo]:
        """Return runs that were in progress when their process ended, oldest first."""
        return await self._store.runs(RunQuery(orphaned=True))

    async def resume_orphans(self) -> list[str]:
        """Resume interrupted runs in the background and return their ids; see `Runtime.resume_orphans`."""
        resumed = []
        for info in await self.orphans():
            if info.attempts >= MAX_RESUME_ATTEMPTS:
                await self._fail_crashed(info)
            else:
                self._resume_in_background(info.run_id)
                resumed.append(info.run_id)
        return resumed

    async def expire(self, now: float) -> list[str]:
        """Resume, in the background, runs with a confirmation that expired by `now`; returns their ids."""
        run_ids = [info.run_id for info in await self._store.runs(RunQuery(expired_at=now))]
        for run_id in run_ids:
            self._resume_in_background(run_id)
        return run_ids

    async def close(self) -> None:
        """Stop the timers and wait for background work, which ends when the launcher closes."""
        for timer in self._timers.values():
            timer.cancel()
        if self._background:
            await asyncio.wait(self._background)

    async def _expired_confirmations(
        self, state: RunState, decisions: Mapping[str, Decision]
    ) -> dict[str, Confirmation]:
        """Check that the run accepts the decisions, and return its expired confirmations by id.

        If an expired confirmation has `on_expiry: cancel`, the run is cancelled.

        Raises:
            RequestError: the run is in progress or has ended, or a decision does not fit a pending confirmation.
        """
        if self._launcher.is_running(state.run_id):
            raise RunBusy(f"run {state.run_id} is already in progress in this process")
        if state.status not in ("paused", "running"):
            raise RequestError(f"run {state.run_id} is {state.status}: no decision is pending")
        expired = _expired(state.pending)
        if any(confirmation.on_expiry == "cancel" for confirmation in expired.values()):
            await self._end_inactive(state, "cancelled", "cancelled")
            raise DecisionRefused(f"run {state.run_id} was cancelled: {_EXPIRED_REASON}")
        pending = {confirmation.id for confirmation in state.pending}
        for key in sorted(decisions.keys()):
            if key in expired:
                raise DecisionRefused(
                    f"{key} expired at {expired[key].expires_at:%Y-%m-%d %H:%M:%S} UTC and is rejected"
                )
            if key not in pending and key in state.decisions:
                raise DecisionRefused(f"{key} has already been decided")
        if unknown := sorted(decisions.keys() - pending):
            listed = ", ".join(sorted(pending)) or "none"
            raise RequestError(f"no pending decision {', '.join(unknown)}; pending: {listed}")
        check_decisions(state.pending, decisions)
        return expired

    async def _original_generation(self, state: RunState, current: Generation) -> Generation:
        """Return the generation that the run began with: its own agents' files, with the current plugins."""
        if not state.blueprint or self._blueprints.matches(state.blueprint, current, state.agent):
            return current
        blueprint = await self._store.blueprint(state.blueprint)
        if blueprint is None:
            raise ConfigError(
                f"cannot resume run {state.run_id}: the stored definition of agent {state.agent!r} is missing"
            )
        agents = self._blueprints.agents(blueprint, current)
        return replace(current, number=state.generation, digest=state.digest, agents=agents)

    def _on_pause(self, state: RunState, cancel_requested: bool) -> None:
        """Schedule the resume of a paused run for when its first confirmation expires.

        If this process ends before that, another one that calls `expire` resumes the run. A run whose cancellation was
        requested while its pause was being saved is cancelled now.
        """
        if cancel_requested:
            self._in_background(state.run_id, self.cancel(state.run_id, RUNTIME_CALLER))
            return
        expiries = [one.expires_at for one in state.pending if one.expires_at is not None]
        if expiries:
            delay = (min(expiries) - datetime.now(UTC)).total_seconds()
            self._timers[state.run_id] = asyncio.get_running_loop().call_later(
                delay, self._resume_in_background, state.run_id
            )

    def _resume_in_background(self, run_id: str) -> None:
        self._timers.pop(run_id, None)

        async def resume() -> None:
            async with self.stream(run_id, {}, RUNTIME_CALLER) as stream:
                await stream.result()

        self._in_background(run_id, resume())

    def _in_background(self, run_id: str, work: Coroutine[Any, Any, None]) -> None:
        async def log_errors() -> None:
            try:
                await work
            except AgentsdError as error:
                if len(self._logged_errors) >= MAX_LOGGED_ERRORS:
                    self._logged_errors.clear()
                if self._logged_errors.get(run_id) != str(error):  # retried every few seconds
                    self._logged_errors[run_id] = str(error)
                    level = logging.INFO if isinstance(error, RequestError) else logging.WARNING
                    log.log(level, "run %s: %s", run_id, error)
            else:
                self._logged_errors.pop(run_id, None)

        task = asyncio.create_task(log_errors(), name=f"resume {run_id}")
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _fail_crashed(self, info: RunInfo) -> None:
        message = f"{info.attempts} processes in a row ended during the next step of the run"
        try:
            state = await self._store.load_run(info.run_id)
            await self._end_inactive(state, "failed", "crashed", ErrorInfo(code="crashed", message=message))
        except RequestError:
            return  # another process resumed or ended it first

    async def _end_inactive(
        self, state: RunState, status: Status, finish_reason: str, error: ErrorInfo | None = None
    ) -> None:
        record = await self._store.take(state, {})
        await self._record_end(state, record, status, finish_reason, error)

    async def _record_end(
        self, state: RunState, record: RunRecord, status: Status, finish_reason: str, error: ErrorInfo | None = None
    ) -> None:
        """Save the end of a run that is not resumed."""
        self._launcher.pinned_generations.pop(state.run_id, None)
        state.status, state.finish_reason, state.error, state.pending = status, finish_reason, error, []
        hub = self._launcher.hub(state.run_id)
        journal = Journal(state, record, hub, durable=self._store.durable)
        ending = asyncio.ensure_future(journal.end([*closing_events(state)]))
        self._background.add(ending)
        ending.add_done_callback(self._background.discard)
        ending.add_done_callback(lambda _: hub.close())
        await asyncio.shield(ending)  # if the caller is cancelled, `close` waits for the write instead


def _expired(confirmations: Iterable[Confirmation]) -> dict[str, Confirmation]:
    """Return the confirmations whose deadline has passed, by id."""
    now = datetime.now(UTC)
    return {one.id: one for one in confirmations if one.expires_at is not None and one.expires_at <= now}
