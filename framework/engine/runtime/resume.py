"""Runs that are not new: resumed after a pause or a crash, or ended without being resumed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from framework.config.generations.blueprint import Blueprints
from framework.config.generations.catalog import Catalog
from framework.config.generations.generation import Generation
from framework.engine.context.journal import Journal
from framework.engine.context.stream import Channel, RunStream
from framework.engine.routing.rules import choose_route
from framework.engine.runtime.expiry import expired
from framework.engine.runtime.launcher import Launcher, PreparedRun
from framework.engine.runtime.request import RUNTIME_CALLER, Caller, check_decisions, storable_decisions
from framework.engine.runtime.result import closing_events
from framework.store.protocol import RunInfo, RunQuery, RunRecord
from framework.types.errors import AgentsdError, ConfigError, DecisionRefused, RequestError, RunBusy, RunNotFound
from framework.types.report import ErrorInfo
from framework.types.state import Confirmation, Decision, Reject, RunState
from framework.types.status import Status

log = logging.getLogger(__name__)

_EXPIRED_REASON = "nobody decided in time"
MAX_RESUME_ATTEMPTS = 3
"""So often a run is taken over without one more step on record: after that it is what ends the processes."""
MAX_LOGGED_ERRORS = 1000
"""Runs of which it is remembered why they could not go on."""


class RunResumer:
    """Goes on with runs, and ends those that wait."""

    def __init__(self, catalog: Catalog, launcher: Launcher, blueprints: Blueprints) -> None:
        self._catalog, self._launcher, self._blueprints = catalog, launcher, blueprints
        self._store = launcher.store
        self._background: set[asyncio.Task[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """Of the runs that began to wait in this process, with questions that expire."""
        self._logged_errors: dict[str, str] = {}
        """Why runs could not be gone on with, as the log has it."""
        launcher.call_on_pause(self._on_pause)

    async def load(self, run_id: str, caller: Caller) -> RunState:
        """A run as it was last put on record; raises RunNotFound, also for a run of somebody else."""
        state = await self._store.load_run(run_id)
        if not caller.can_access(state.user, state.tenant):
            raise RunNotFound(f"there is no run {run_id!r}")
        return state

    @asynccontextmanager
    async def stream(self, run_id: str, decisions: Mapping[str, Decision], caller: Caller) -> AsyncIterator[RunStream]:
        """Resume a run with decisions; see `Runtime.resume`."""
        given = storable_decisions(decisions)
        with await self._catalog.reacquire_lease(
            self._launcher.pinned_generations.get(run_id, self._catalog.current)
        ) as leased:
            state = await self.load(run_id, caller)
            late = await self._expired_confirmations(state, given)
            kept = given | {key: Reject(reason=_EXPIRED_REASON) for key in late}
            generation = await self._original_generation(state, leased)
            agent = choose_route("", generation.agents, explicit=state.agent).agent
            record = await self._store.take(state, kept, caller.user)
            if timer := self._timers.pop(run_id, None):
                timer.cancel()
            if record.cancel_requested:
                await self._record_end(state, record, "cancelled", "cancelled")
                raise DecisionRefused(f"the run {run_id} is cancelled: that was asked for before")
            state.decisions.update(kept)
            state.pending = []
            start = PreparedRun(state, record, generation, agent, decided=frozenset(kept))
            async with self._launcher.launch(start, listening=True) as stream:
                yield stream

    async def cancel(self, run_id: str, caller: Caller) -> None:
        """End a run that goes on, here or elsewhere, or that waits, or was left behind; see `Runtime.cancel`."""
        while True:
            state = await self.load(run_id, caller)
            if self._launcher.cancel(run_id):
                return
            if state.status not in ("running", "paused") or await self._store.request_cancel(run_id):
                return
            with suppress(RunBusy):  # somebody goes on with it just now: they are to be asked
                await self._end_inactive(state, "cancelled", "cancelled")
                return

    async def orphans(self) -> Sequence[RunInfo]:
        """Runs that were under way when their process ended, oldest first."""
        return await self._store.runs(RunQuery(orphaned=True))

    async def resume_orphans(self) -> list[str]:
        """Go on with the runs whose process has ended, in the background; see `Runtime.resume_orphans`."""
        resumed = []
        for info in await self.orphans():
            if info.attempts >= MAX_RESUME_ATTEMPTS:
                await self._fail_crashed(info)
            else:
                self._resume_in_background(info.run_id)
                resumed.append(info.run_id)
        return resumed

    async def expire(self, now: float) -> list[str]:
        """Go on with the runs that wait with a question nobody can answer any more, in the background."""
        waiting = [info.run_id for info in await self._store.runs(RunQuery(expired_at=now))]
        for run_id in waiting:
            self._resume_in_background(run_id)
        return waiting

    async def close(self) -> None:
        """Wait for what was begun in the background: it ends when the launcher closes."""
        for timer in self._timers.values():
            timer.cancel()
        if self._background:
            await asyncio.wait(self._background)

    # --- inside

    async def _expired_confirmations(
        self, state: RunState, decisions: Mapping[str, Decision]
    ) -> dict[str, Confirmation]:
        """What of the run's questions has expired.

        Raises:
            RequestError: the run, or what it asks, cannot be decided like that.
        """
        if self._launcher.is_running(state.run_id):
            raise RunBusy(f"run {state.run_id} is already in progress in this process")
        if state.status not in ("paused", "running"):
            raise RequestError(f"the run {state.run_id} is {state.status}: it waits for no decision")
        late = expired(state.pending)
        if any(asked.on_expiry == "cancel" for asked in late.values()):
            await self._end_inactive(state, "cancelled", "cancelled")
            raise DecisionRefused(f"the run {state.run_id} is cancelled: {_EXPIRED_REASON}")
        asked = {confirmation.id for confirmation in state.pending}
        for key in sorted(decisions.keys()):
            if key in late:
                raise DecisionRefused(f"{key} expired at {late[key].expires_at:%Y-%m-%d %H:%M:%S} UTC: it is rejected")
            if key not in asked and key in state.decisions:
                raise DecisionRefused(f"{key} was decided before")
        if unknown := sorted(decisions.keys() - asked):
            listed = ", ".join(sorted(asked)) or "nothing"
            raise RequestError(f"nothing named {', '.join(unknown)} is asked; asked: {listed}")
        check_decisions(state.pending, decisions)
        return late

    async def _original_generation(self, state: RunState, current: Generation) -> Generation:
        """What the run began with: its own agents' files, with the plugins that there are now."""
        if not state.blueprint or self._blueprints.matches(state.blueprint, current, state.agent):
            return current
        kept = await self._store.blueprint(state.blueprint)
        if kept is None:
            raise ConfigError(f"the store has lost what the agent {state.agent!r} of the run {state.run_id} is made of")
        agents = self._blueprints.agents(kept, current)
        return replace(current, number=state.generation, digest=state.digest, agents=agents)

    def _on_pause(self, state: RunState, unwanted: bool) -> None:
        """When the first of its questions expires, go on; if the process ends before, whoever looks does it.

        A run that somebody wanted to end while its pause was put on record does not wait.
        """
        if unwanted:
            self._in_background(state.run_id, self.cancel(state.run_id, RUNTIME_CALLER))
            return
        expiries = [asked.expires_at for asked in state.pending if asked.expires_at is not None]
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
                if self._logged_errors.get(run_id) != str(
                    error
                ):  # whoever looks after runs tries again every few seconds
                    self._logged_errors[run_id] = str(error)
                    level = logging.INFO if isinstance(error, RequestError) else logging.WARNING
                    log.log(level, "run %s: %s", run_id, error)
            else:
                self._logged_errors.pop(run_id, None)

        task = asyncio.create_task(log_errors(), name=f"resume {run_id}")
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _fail_crashed(self, info: RunInfo) -> None:
        message = f"{info.attempts} processes in a row have ended while they worked on its next step"
        try:
            state = await self._store.load_run(info.run_id)
            await self._end_inactive(state, "failed", "crashed", ErrorInfo(code="crashed", message=message))
        except RequestError:
            return  # somebody else was faster

    async def _end_inactive(
        self, state: RunState, status: Status, finish_reason: str, error: ErrorInfo | None = None
    ) -> None:
        record = await self._store.take(state, {})
        await self._record_end(state, record, status, finish_reason, error)

    async def _record_end(
        self, state: RunState, record: RunRecord, status: Status, finish_reason: str, error: ErrorInfo | None = None
    ) -> None:
        """Put down that a run has ended that was not gone on with."""
        self._launcher.pinned_generations.pop(state.run_id, None)
        state.status, state.finish_reason, state.error, state.pending = status, finish_reason, error, []
        told = [*closing_events(state)]
        channel = Channel()
        channel.close()
        ending = asyncio.ensure_future(Journal(state, record, channel, durable=self._store.durable).end(told))
        self._background.add(ending)
        ending.add_done_callback(self._background.discard)
        await asyncio.shield(ending)  # who is cancelled meanwhile does not wait for it: `close` does
