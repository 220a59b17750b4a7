"""Resumes runs after a pause or a crash, and ends paused and interrupted runs without resuming them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime

from framework.config.generations.blueprint import Blueprints
from framework.config.generations.catalog import Catalog
from framework.config.generations.generation import Generation
from framework.engine.context.journal import Journal
from framework.engine.context.stream import RunStream
from framework.engine.routing.rules import choose_route
from framework.engine.runtime.background import BackgroundWork
from framework.engine.runtime.launcher import Launcher, PreparedRun
from framework.engine.runtime.request import RUNTIME_CALLER, Caller, check_decisions, storable_decisions
from framework.engine.runtime.result import closing_events
from framework.store.protocol import OPEN_STATUSES, RunInfo, RunQuery, RunRecord
from framework.types.errors import ConfigError, DecisionRefused, RequestError, RunBusy, RunNotFound
from framework.types.report import ErrorInfo
from framework.types.state import Confirmation, Decision, Reject, RunState
from framework.types.status import Status

_EXPIRED_REASON = "no decision was made in time"
MAX_RESUME_ATTEMPTS = 3
"""A run that was resumed this often without saving another step is failed: it probably crashes its processes."""


class RunResumer:
    """Resumes and cancels runs of a store."""

    def __init__(
        self, catalog: Catalog, launcher: Launcher, blueprints: Blueprints, background: BackgroundWork
    ) -> None:
        self._catalog, self._launcher, self._blueprints = catalog, launcher, blueprints
        self._store, self._background = launcher.store, background
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """Timers of the runs that paused in this process with confirmations that expire, by run id."""
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
        async with (
            self._decided(run_id, decisions, caller) as prepared,
            self._launcher.launch(prepared, listening=True) as stream,
        ):
            yield stream

    async def decide(
        self, run_id: str, decisions: Mapping[str, Decision], caller: Caller, by: str | None = None
    ) -> None:
        """Save decisions, and resume the run in the background; see `Runtime.decide`."""
        resumed = asyncio.get_running_loop().create_future()
        resumed.add_done_callback(lambda future: future.cancelled() or future.exception())  # the caller may have left
        self._background.start(f"run {run_id}", self._resume(run_id, decisions, caller, resumed, by))
        await asyncio.shield(resumed)

    @asynccontextmanager
    async def _decided(
        self, run_id: str, decisions: Mapping[str, Decision], caller: Caller, by: str | None = None
    ) -> AsyncIterator[PreparedRun]:
        """Take a run and save decisions, made by `by` or, without it, the caller's user.

        The plugins of its generation stay set up while the context is open.
        """
        decisions = storable_decisions(decisions)
        with await self._catalog.reacquire_lease(
            self._launcher.pinned_generations.get(run_id, self._catalog.current)
        ) as leased:
            state = await self.load(run_id, caller)
            expired = await self._expired_confirmations(state, decisions)
            decided = decisions | {key: Reject(reason=_EXPIRED_REASON) for key in expired}
            generation = await self._original_generation(state, leased)
            agent = choose_route("", generation.agents, explicit=state.agent).agent
            record = await self._store.take(state, decided, by or caller.user)
            if timer := self._timers.pop(run_id, None):
                timer.cancel()
            if record.cancel_requested:
                await self._record_end(state, record, "cancelled", "cancelled")
                raise DecisionRefused(f"run {run_id} was cancelled: cancellation had already been requested")
            state.decisions.update(decided)
            state.pending = []
            yield PreparedRun(state, record, generation, agent, decided_ids=frozenset(decided))

    async def _resume(
        self,
        run_id: str,
        decisions: Mapping[str, Decision],
        caller: Caller,
        resumed: asyncio.Future[None] | None = None,
        by: str | None = None,
    ) -> None:
        """Resume a run and wait for its end or pause. `resumed` gets a result, or the error, once it is in progress."""
        try:
            async with self._decided(run_id, decisions, caller, by) as prepared:
                run = self._launcher.start(prepared)
                if resumed is not None:
                    resumed.set_result(None)
                await run
        except Exception as error:
            if resumed is None or resumed.done():
                raise
            resumed.set_exception(error)

    async def cancel(self, run_id: str, caller: Caller) -> None:
        """Cancel a run that is in progress in any process, paused or interrupted; see `Runtime.cancel`."""
        while True:
            state = await self.load(run_id, caller)
            if self._launcher.cancel(run_id):
                return
            if state.status not in OPEN_STATUSES or await self._store.request_cancel(run_id):
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

    async def fail_queued(self, run_id: str, error: ErrorInfo) -> None:
        """Fail a queued run that cannot begin, unless another process has claimed it."""
        with suppress(RunBusy, RunNotFound):
            state = await self._store.load_run(run_id)
            if state.status == "queued":
                await self._end_inactive(state, "failed", error.code, error)

    def close(self) -> None:
        """Stop the timers."""
        for timer in self._timers.values():
            timer.cancel()

    async def _expired_confirmations(
        self, state: RunState, decisions: Mapping[str, Decision]
    ) -> dict[str, Confirmation]:
        """Check that the run accepts the decisions, and return its expired confirmations by id.

        If an expired confirmation has `on_expiry: cancel`, the run is cancelled.

        Raises:
            RequestError: the run is in progress or has ended, or a decision does not fit a pending confirmation.
        """
        if state.status == "queued":
            raise DecisionRefused(f"run {state.run_id} waits in the queue and has not begun: it begins by itself")
        if self._launcher.is_running(state.run_id):
            raise RunBusy(f"run {state.run_id} is already in progress in this process")
        if state.status not in ("paused", "running"):
            raise DecisionRefused(f"run {state.run_id} is {state.status}: no decision is pending")
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
            self._background.start(f"run {state.run_id}", self.cancel(state.run_id, RUNTIME_CALLER))
            return
        expiries = [one.expires_at for one in state.pending if one.expires_at is not None]
        if expiries:
            delay = (min(expiries) - datetime.now(UTC)).total_seconds()
            self._timers[state.run_id] = asyncio.get_running_loop().call_later(
                delay, self._resume_in_background, state.run_id
            )

    def _resume_in_background(self, run_id: str) -> None:
        self._timers.pop(run_id, None)
        self._background.start(f"run {run_id}", self._resume(run_id, {}, RUNTIME_CALLER))

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
        ending.add_done_callback(lambda _: hub.close())
        await asyncio.shield(ending)  # if the caller is cancelled, `close` waits for the write instead


def _expired(confirmations: Iterable[Confirmation]) -> dict[str, Confirmation]:
    """Return the confirmations whose deadline has passed, by id."""
    now = datetime.now(UTC)
    return {one.id: one for one in confirmations if one.expires_at is not None and one.expires_at <= now}
