"""Resumes runs after a pause or a crash, and ends paused and interrupted runs without resuming them."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from framework.config.generations.catalog import Catalog
from framework.config.generations.generation import Blueprints, Generation
from framework.engine.context.events import Journal, RunStream
from framework.engine.context.grants import changed_since, count_matches, new_grant
from framework.engine.routing import choose_route
from framework.engine.run_report import closing_events
from framework.engine.runtime.background import BackgroundWork, WorkerSlots, limits_of
from framework.engine.runtime.launcher import Launcher, PreparedRun
from framework.engine.runtime.presence import CannotExecute, RunReleaser
from framework.engine.runtime.request import RUNTIME_CALLER, Caller, check_decisions, storable_decisions
from framework.store.types import OPEN_STATUSES, UNLIMITED, RunInfo, RunQuery, RunRecord
from framework.tools.tool import Tool
from framework.types.errors import (
    ConfigError,
    DecisionRefused,
    RequestError,
    RunBlocked,
    RunBusy,
    RunNotFound,
    RunSuspended,
    StoreError,
)
from framework.types.grant import Grant, GrantUsage, Remember, Width
from framework.types.redact import redact
from framework.types.report import ErrorInfo, Status
from framework.types.state import EXPIRED, Approve, Confirmation, Decision, RunState

if TYPE_CHECKING:
    from framework.store.store import Store

log = logging.getLogger(__name__)


MAX_RESUME_ATTEMPTS = 3
"""Number of times that a run is resumed at least before it can be failed, and of ends that it must have caused."""
CRASH_PRONE_ATTEMPTS = MAX_RESUME_ATTEMPTS - 1
"""Number of times from which on a run is resumed only if no other resumed run has still to save a step."""


class CrashLoopGuard:
    """Resumes runs that may crash their process one at a time, so that they take no others with them."""

    def __init__(self, store: Store, executes_only: Callable[[str], bool]) -> None:
        """Initialize. `executes_only`: returns whether this process executes no other run than the one with this id."""
        self._store, self._executes_only = store, executes_only
        self._unproven: set[str] = set()
        """Runs that had not saved a step when that was last checked."""
        self._alone: str | None = None
        """One of them, beside which this process takes no other run."""

    def __contains__(self, run_id: str) -> bool:
        """Return whether a run is being resumed or started here, and had saved no step when that was last checked."""
        return run_id in self._unproven

    async def tries_alone(self) -> bool:
        """Return whether this process takes no run now, because it tries one alone."""
        if self._alone is not None:
            await self._forget_proven()
        return self._alone is not None

    async def candidates(self, limit: int) -> Sequence[RunInfo]:
        """Return up to `limit` interrupted runs and all crash-prone ones, those with the fewest interruptions first."""
        found = await self._store.runs(RunQuery(orphaned=True, limit=limit))
        if all(info.attempts < CRASH_PRONE_ATTEMPTS for info in found):
            return found
        others = await self._store.runs(RunQuery(orphaned=True, max_attempts=CRASH_PRONE_ATTEMPTS - 1, limit=limit))
        crash_prone = await self._store.runs(RunQuery(orphaned=True, min_attempts=CRASH_PRONE_ATTEMPTS))
        return *others, *sorted(crash_prone, key=lambda info: info.attempts)

    async def admit(self, run_id: str, attempts: int) -> bool:
        """Return whether a run may be taken now, for `trying`. Only crash-prone runs have to wait."""
        if await self.tries_alone():
            return False
        if attempts >= CRASH_PRONE_ATTEMPTS:
            await self._forget_proven()
            is_alone = attempts >= MAX_RESUME_ATTEMPTS
            if self._unproven or (is_alone and not self._executes_only(run_id)):
                return False
            self._alone = run_id if is_alone else None
        self._unproven.add(run_id)
        return True

    async def has_crashed(self, run_id: str, attempts: int) -> bool:
        """Return whether a run ended the processes that resumed or claimed it, so that it is failed."""
        if attempts < MAX_RESUME_ATTEMPTS:
            return False
        await self._store.sweep(0)  # counts the ends of processes until now
        return any(info.crashes >= MAX_RESUME_ATTEMPTS for info in await self._store.runs(RunQuery(run_id=run_id)))

    @contextmanager
    def trying(self, run_id: str) -> Iterator[None]:
        """Count a run as unproven until it has saved a step, paused or ended."""
        self._unproven.add(run_id)
        try:
            yield
        finally:
            self.drop(run_id)

    def drop(self, run_id: str) -> None:
        """Forget a run that is not in progress here."""
        self._unproven.discard(run_id)
        if self._alone == run_id:
            self._alone = None

    async def _forget_proven(self) -> None:
        """Forget the runs that have saved a step: the store has set their attempts back."""
        if self._unproven:
            known = frozenset(self._unproven)
            found = await self._store.runs(RunQuery(statuses=("queued", "running"), min_attempts=1))
            for run_id in known - {info.run_id for info in found}:
                self.drop(run_id)


MAX_LEFT_TO_OTHERS = 100
"""Number of runs with expired confirmations that one call of `expire` leaves to other processes."""


class RunResumer:
    """Resumes and cancels runs of a store."""

    def __init__(
        self,
        catalog: Catalog,
        launcher: Launcher,
        blueprints: Blueprints,
        background: BackgroundWork,
        slots: WorkerSlots,
        releaser: RunReleaser,
        *,
        leaves_runs: bool = False,
    ) -> None:
        """Initialize.

        Args:
            catalog: the generations.
            launcher: starts the runs.
            blueprints: of the agents.
            background: of the runtime.
            slots: one for each run that is continued in the background.
            releaser: leaves runs to other processes.
            leaves_runs: save decisions, and leave it to the work source which process continues the run.
        """
        self._catalog, self._launcher, self._blueprints = catalog, launcher, blueprints
        self._store, self._background = launcher.store, background
        self._slots, self._releaser, self._leaves_runs = slots, releaser, leaves_runs
        self.crash_loop_guard = CrashLoopGuard(launcher.store, launcher.executes_only)
        self._resuming = asyncio.Lock()
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
        self,
        run_id: str,
        decisions: Mapping[str, Decision],
        caller: Caller,
        by: str | None = None,
        key: str = "",
        *,
        execute: bool | None = None,
    ) -> None:
        """Save decisions, and resume the run in the background, here or elsewhere; see `Runtime.decide`."""
        await self._slots.known()
        if not self._executes(execute) or not self._slots.acquire():
            await self._leave_to_any_process(run_id, decisions, caller, by, key, execute=execute)
            return
        resumed = asyncio.get_running_loop().create_future()
        resumed.add_done_callback(lambda future: future.cancelled() or future.exception())  # the caller may have left
        resuming = self._slots.execute(self._resume(run_id, decisions, caller, resumed, by, key))
        self._background.start(f"run {run_id}", resuming)
        await asyncio.shield(resumed)

    def _executes(self, execute: bool | None = None) -> bool:
        """Return whether this process continues the runs that it releases: by default, if it executes runs at all."""
        if self._leaves_runs or not self._store.durable:  # no other process sees a store in memory
            return not self._leaves_runs
        return self._launcher.works if execute is None else execute

    async def _leave_to_any_process(
        self,
        run_id: str,
        decisions: Mapping[str, Decision],
        caller: Caller,
        by: str | None = None,
        key: str = "",
        *,
        execute: bool | None = None,
    ) -> None:
        """Save decisions, and let the run continue in any process that has a free place, which may be this one."""
        decisions = storable_decisions(decisions)
        await self._launcher.wait_until_released(run_id)
        state = await self.load(run_id, caller)
        decided = await self._all_decisions(state, decisions, caller)
        grants = self._new_grants(state, decisions, by or caller.user, key)
        await self._store.save_decisions(state, decided, dict.fromkeys(decisions, by or caller.user), grants)
        self._stop_timer(run_id)
        if self._executes(execute):
            self._background.start(f"run {run_id}", self._continue_when_free(run_id))
        elif not self._leaves_runs:
            log.info("run %s is left to the processes that execute runs: this one has started none", run_id)

    @asynccontextmanager
    async def _decided(
        self,
        run_id: str,
        decisions: Mapping[str, Decision],
        caller: Caller,
        by: str | None = None,
        key: str = "",
        *,
        is_limited: bool = False,
    ) -> AsyncIterator[PreparedRun]:
        """Take a run and save decisions, made by `by` or, without it, the caller's user, with an API key.

        If it `is_limited`, and a limit on runs in progress is reached, the decisions are saved, and RunBlocked is
        raised.

        The plugins of its generation stay set up while the context is open.
        """
        decisions = storable_decisions(decisions)
        with await self._catalog.reacquire_lease(
            self._launcher.pinned_generations.get(run_id, self._catalog.current)
        ) as leased:
            await self._launcher.wait_until_released(run_id)
            state = await self.load(run_id, caller)
            decided = await self._all_decisions(state, decisions, caller)
            generation = await self._original_generation(state, leased)
            if caller is RUNTIME_CALLER:  # a person who resumes a run here does not want another process to do it
                await self._releaser.check(state, generation, self._catalog.current)
            agent = choose_route("", generation.agents, explicit=state.answering).agent
            limits = limits_of(state, agent, self._catalog.current) if is_limited else UNLIMITED
            grants = self._new_grants(state, decisions, by or caller.user, key)
            deciders = dict.fromkeys(decisions, by or caller.user)
            record = await self._store.acquire(state, decided, deciders, limits, grants)
            self._stop_timer(run_id)
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
        key: str = "",
    ) -> None:
        """Resume a run and wait for its end or pause. `resumed` gets a result, or the error, once it is in progress.

        A run that a limit blocks is resumed later.
        """
        # A store in memory offers nothing: there, a run that waits would never be resumed.
        try:
            async with self._decided(run_id, decisions, caller, by, key, is_limited=self._store.durable) as prepared:
                run = self._launcher.start(prepared)
                if resumed is not None:
                    resumed.set_result(None)
                with suppress(RunSuspended):
                    await run
        except RunBlocked:
            if resumed is not None:
                resumed.set_result(None)
        except Exception as error:
            if resumed is None or resumed.done():
                raise
            resumed.set_exception(error)

    async def cancel(self, run_id: str, caller: Caller) -> Status:
        """Cancel a run that is in progress in any process, paused or interrupted; see `Runtime.cancel`."""
        while True:
            state = await self.load(run_id, caller)
            if self._launcher.cancel(run_id):
                return "queued" if state.status == "queued" else "running"
            if state.status not in OPEN_STATUSES or await self._store.request_cancel(run_id):
                return state.status
            with suppress(RunBusy):  # another process has just resumed it: request cancellation from that process
                await self._end_inactive(state, "cancelled", "cancelled")
                return "cancelled"
            await self._launcher.wait_until_released(run_id)  # its end was saved, and this process still holds it

    async def orphans(self) -> Sequence[RunInfo]:
        """Return runs that were in progress when their process ended, oldest first."""
        return await self._store.runs(RunQuery(orphaned=True))

    async def resume_orphans(self) -> list[str]:
        """Resume interrupted runs in the background and return their ids; see `Runtime.resume_orphans`."""
        async with self._resuming:  # so that each call knows what the one before has resumed
            await self._slots.known()
            return await self._resume_candidates() if self._slots.free else []

    async def _resume_candidates(self) -> list[str]:
        resumed = []
        must_wait = False
        for info in await self.crash_loop_guard.candidates(self._slots.free + self._releaser.remembered):
            is_here = info.run_id in self.crash_loop_guard or self._launcher.is_running(info.run_id)
            if await self.crash_loop_guard.has_crashed(info.run_id, info.attempts):
                await self._fail_crashed(info)
            elif not (must_wait or is_here) and self._releaser.is_due(info.run_id):
                await self._slots.known()
                if not self._slots.acquire():
                    must_wait = True
                elif not await self.crash_loop_guard.admit(info.run_id, info.attempts):
                    self._slots.release()
                    must_wait = True
                else:
                    self._background.start(f"run {info.run_id}", self._slots.execute(self.continue_interrupted(info)))
                    resumed.append(info.run_id)
        return resumed

    async def expire(self) -> list[str]:
        """Continue, in the background, runs with a confirmation that has expired; returns their ids."""
        limit = self._slots.free if self._executes() else MAX_LEFT_TO_OTHERS
        infos = await self._store.runs(RunQuery(expired_at=self._store.now(), limit=limit)) if limit else ()
        for info in infos:
            self._continue_expired(info.run_id)
        return [info.run_id for info in infos]

    async def find_interrupted(self, run_id: str) -> RunInfo | None:
        """Return a run if it has to be continued, and may be now: see `CrashLoopGuard`."""
        for info in () if run_id in self.crash_loop_guard else await self._store.runs(RunQuery(run_id=run_id)):
            is_expired = info.status == "paused" and (info.expires_at or math.inf) <= self._store.now()
            if is_expired or (info.orphaned and await self.crash_loop_guard.admit(run_id, info.attempts)):
                return info
        return None

    async def continue_interrupted(self, info: RunInfo) -> None:
        """Continue a run that no process holds, or with an expired confirmation, and wait for its end or pause.

        If another process continues it, nothing happens.
        """
        with self.crash_loop_guard.trying(info.run_id):
            if info.orphaned and await self.crash_loop_guard.has_crashed(info.run_id, info.attempts):
                await self._fail_crashed(info)
            else:
                await self._continue(info.run_id)

    async def fail_queued(self, run_id: str, error: ErrorInfo) -> None:
        """Fail a queued run that cannot start, unless another process has claimed it."""
        with suppress(RunBusy, RunNotFound):
            state = await self._store.load_run(run_id)
            if state.status == "queued":
                await self._end_inactive(state, "failed", error.code, error)

    def close(self) -> None:
        """Stop the timers."""
        for timer in self._timers.values():
            timer.cancel()

    async def _all_decisions(
        self, state: RunState, decisions: Mapping[str, Decision], caller: Caller
    ) -> Mapping[str, Decision]:
        """Return the decisions and those of expired confirmations; raises what `_expired_confirmations` raises.

        Also raises RunBusy if the runtime would continue a run that waits for a person. It was in progress, or had
        expired, when the store was read, and has paused since; its timer may also have been a moment early.
        """
        decided = {**decisions, **await self._expired_confirmations(state, decisions)}
        if caller is RUNTIME_CALLER and state.status == "paused" and not decided:
            self._set_timer(state)
            raise RunBusy(f"run {state.run_id} waits for a decision")
        return decided

    async def _expired_confirmations(self, state: RunState, decisions: Mapping[str, Decision]) -> dict[str, Decision]:
        """Check that the run accepts the decisions, and return `EXPIRED` for its expired confirmations, by id.

        If an expired confirmation has `on_expiry: cancel`, the run is cancelled.

        Raises:
            RequestError: the run is in progress or has ended, or a decision does not fit a pending confirmation.
        """
        if state.status == "queued":
            raise DecisionRefused(f"run {state.run_id} waits in the queue and has not started: it starts by itself")
        if self._launcher.is_running(state.run_id):
            raise RunBusy(f"run {state.run_id} is already in progress in this process")
        if state.status not in ("paused", "running"):
            raise DecisionRefused(f"run {state.run_id} is {state.status}: no decision is pending")
        expired = {one.id: one for one in state.pending if one.has_expired(self._store.now())}
        expirations: dict[str, Decision] = dict.fromkeys(expired, EXPIRED)
        if any(confirmation.on_expiry == "cancel" for confirmation in expired.values()):
            await self._end_inactive(state, "cancelled", "cancelled", decisions=expirations)
            raise DecisionRefused(f"run {state.run_id} was cancelled: {EXPIRED.reason}")
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
        return expirations

    def _new_grants(
        self, state: RunState, decisions: Mapping[str, Decision], by: str | None, key: str
    ) -> Sequence[Grant]:
        """Return the grants of approvals that are to be remembered; raises RequestError if one cannot be."""
        live, now = self._catalog.current, self._store.now()
        grants: list[Grant] = []
        for asked in state.pending:
            match decisions.get(asked.id):
                case Approve(remember=Remember() as remember):
                    tool = self._tool_of(asked)
                    grant = new_grant(state, asked, remember, tool, live.settings, by=by, key=key, now=now)
                    void = changed_since(grant, live.agents.get, live.settings)
                    grants.append(grant.model_copy(update={"void": void}))
        return grants

    def _tool_of(self, asked: Confirmation) -> Tool | None:
        """Return the tool of a confirmation as it is now; None if it no longer exists."""
        agent = self._catalog.current.agents.get(asked.agent)
        return agent.toolset.tools.get(asked.tool) if agent else None

    async def preview_grant(self, run_id: str, confirmation_id: str, remember: Remember, caller: Caller) -> GrantUsage:
        """Return what an approval would have covered if it had been remembered; see `Runtime.preview_grant`."""
        state = await self.load(run_id, caller)
        asked = next((one for one in state.pending if one.id == confirmation_id), None)
        if asked is None:
            raise RequestError(f"run {run_id} waits for no decision {confirmation_id!r}", param="confirmation_id")
        (grant,) = self._new_grants(state, {asked.id: Approve(remember=remember)}, None, "")
        tool = self._tool_of(asked)
        assert tool is not None  # else there is no grant
        return (await count_matches(self._store, [grant], tool))[0]

    async def preview_widths(self, run_id: str, confirmation_id: str, caller: Caller) -> dict[Width, GrantUsage]:
        """Return what the approval of a call would have covered in each width that is offered."""
        state = await self.load(run_id, caller)
        asked = next((one for one in state.pending if one.id == confirmation_id), None)
        if asked is None or (offer := asked.remember) is None or (tool := self._tool_of(asked)) is None:
            return {}
        grants: dict[Width, Grant] = {}
        for one in offer.widths:
            remember = Approve(remember=Remember(width=one.width, scope=offer.scopes[0]))
            with suppress(RequestError):  # what the approval would report
                (grants[one.width],) = self._new_grants(state, {asked.id: remember}, None, "")
        counted = await count_matches(self._store, [*grants.values()], tool) if grants else []
        return dict(zip(grants, counted, strict=True))

    async def _original_generation(self, state: RunState, current: Generation) -> Generation:
        """Return the generation that the run started with: its own agents' files, with the current plugins."""
        if not state.blueprint or self._blueprints.matches(state.blueprint, current, state.agent):
            return current
        blueprint = await self._store.blueprint(state.blueprint)
        if blueprint is None:
            missing = f"the stored definition of agent {state.agent!r} is missing"
            raise ConfigError(f"cannot resume run {state.run_id}: {missing}")
        agents = self._blueprints.agents(blueprint, current)
        return replace(current, number=state.generation, digest=state.digest, agents=agents)

    def _on_pause(self, state: RunState, cancel_requested: bool) -> None:
        """Schedule the resume of a paused run for when its first confirmation expires.

        If this process ends before that, another one that calls `expire` resumes the run. A run whose cancellation was
        requested while its pause was being saved is cancelled now.
        """
        if cancel_requested:
            self._background.start(f"run {state.run_id}", self.cancel(state.run_id, RUNTIME_CALLER))
        else:
            self._set_timer(state)

    def _set_timer(self, state: RunState) -> None:
        self._stop_timer(state.run_id)
        expiries = [one.expires_at for one in state.pending if one.expires_at is not None]
        if expiries:
            delay = min(expiries).timestamp() - self._store.now()
            call_later = asyncio.get_running_loop().call_later
            self._timers[state.run_id] = call_later(delay, self._continue_expired, state.run_id)

    def _stop_timer(self, run_id: str) -> None:
        if timer := self._timers.pop(run_id, None):
            timer.cancel()

    def _continue_expired(self, run_id: str) -> None:
        self._timers.pop(run_id, None)
        continuing = self._continue_when_free(run_id) if self._executes() else self._hand_over_expired(run_id)
        self._background.start(f"run {run_id}", continuing)

    async def _hand_over_expired(self, run_id: str) -> None:
        with suppress(RunBusy):
            await self._leave_to_any_process(run_id, {}, RUNTIME_CALLER)

    async def _continue_when_free(self, run_id: str) -> None:
        """Continue a run in this process, unless another one does before there is a free place."""
        if await self._slots.wait():
            await self._slots.execute(self._continue(run_id))

    async def _continue(self, run_id: str) -> None:
        """Continue a run, or leave it to another process if this one lacks something for it."""
        if not self._releaser.is_due(run_id):
            return
        with suppress(RunBusy):
            try:
                await self._resume(run_id, {}, RUNTIME_CALLER)
            except ConfigError as error:
                if isinstance(error, CannotExecute) and not self._releaser.is_possible:
                    raise ConfigError(
                        f"this process {error.message}: a process that has it can continue the run"
                    ) from None
                if not self._releaser.is_possible:
                    raise
                await self._leave(run_id, error.message)

    async def _leave(self, run_id: str, reason: str) -> None:
        """Leave an interrupted run, or one with an expired confirmation, to another process."""
        state = await self._store.load_run(run_id)
        record = await self._store.acquire(state, await self._all_decisions(state, {}, RUNTIME_CALLER))
        if record.cancel_requested:
            await self._record_end(state, record, "cancelled", "cancelled")
            return
        try:
            await self._releaser.leave(run_id, redact(reason))
        except StoreError:
            await record.release()  # no longer held by this process, even if the store fails again
            raise

    async def _fail_crashed(self, info: RunInfo) -> None:
        message = f"{info.attempts} processes in a row ended during the next step of the run"
        with suppress(RequestError):  # another process resumed or ended it first
            state = await self._store.load_run(info.run_id)
            if state.status != "paused":  # else it has saved a step since
                await self._end_inactive(state, "failed", "crashed", ErrorInfo(code="crashed", message=message))

    async def _end_inactive(
        self,
        state: RunState,
        status: Status,
        finish_reason: str,
        error: ErrorInfo | None = None,
        decisions: Mapping[str, Decision] = MappingProxyType({}),
    ) -> None:
        record = await self._store.acquire(state, decisions)
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
        self._launcher.abandon_calls(state)
        await asyncio.shield(ending)  # if the caller is cancelled, `close` waits for the write instead
