"""The runs that wait: saves requests, claims those that can start, starts them, and continues interrupted ones.

The store decides which runs can start, and in which order; several processes may claim runs of one store. A work source
says when to look.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from contextvars import Context
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from framework.config.generations.catalog import Catalog
from framework.config.generations.generation import Generation
from framework.engine.runtime.background import BackgroundWork, WorkerSlots, WorkSource, limits_of
from framework.engine.runtime.launcher import Launcher
from framework.engine.runtime.presence import RunReleaser
from framework.engine.runtime.request import (
    RUNTIME_CALLER,
    RunOptions,
    UserInput,
    check_place,
    read_request,
    stored_options,
)
from framework.engine.runtime.resume import RunResumer
from framework.engine.runtime.start import NewRun, RunStarter
from framework.store.types import MISSED, Signal
from framework.telemetry.redact import safe_traceback
from framework.telemetry.spans import apply_trace_context, current_trace_context
from framework.types.errors import AgentsdError, ConversationBusy, QueueFull, RunBlocked, RunSuspended, StoreError
from framework.types.redact import redact
from framework.types.report import ErrorInfo
from framework.types.state import IdempotencyKey, QueuePlace, RunRequest, RunResult

if TYPE_CHECKING:
    from framework.store.store import Store

log = logging.getLogger(__name__)


SAMPLE_SECONDS = 1.0
"""How long a count of the waiting runs is used, with the runs that this process has added since."""
_SECONDS_PER_RUN = 25e-6
"""The same for each run that may wait, while the queue seems full: 0.25 s for 10,000. Counting more runs costs more."""
_RATE_SECONDS = 60.0
"""Period over which the rate is measured at which runs start."""
_MAX_RETRY_SECONDS = 600


class _Sample(NamedTuple):
    """The queue of all processes at a time of this process's clock, in seconds."""

    at: float
    waiting: int
    added: int
    """Number of runs that were ever added, to compare with that of other samples."""

    def started_since(self, earlier: _Sample) -> int:
        """Return the number of runs that have left the queue since an earlier sample."""
        return max(0, (self.added - earlier.added) - (self.waiting - earlier.waiting))


class QueueAdmission:
    """Counts the waiting runs of all processes, at most once a second unless the queue is full."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._samples: deque[_Sample] = deque()
        """One about each second in which requests came, of the last minute, oldest first."""
        self._latest: _Sample | None = None
        self._admitted = 0
        """Requests that were admitted since the latest sample."""
        self._refused = 0
        """Requests that were refused in about the last second. They are told to come back one after the other."""
        self._sampling = asyncio.Lock()

    async def admit(self, max_waiting: int) -> None:
        """Admit a request to the queue; raises QueueFull if `max_waiting` runs wait already."""
        latest = await self._sample(SAMPLE_SECONDS)
        if latest.waiting + self._admitted >= max_waiting:
            latest = await self._sample(max_waiting * _SECONDS_PER_RUN)
        if (waiting := latest.waiting + self._admitted) < max_waiting:
            self._admitted += 1
            return
        self._refused += 1
        seconds = self._seconds_until_started(waiting - max_waiting + self._refused)
        advice = "retry later" if seconds is None else f"retry in {seconds} s"
        raise QueueFull(f"{waiting} runs wait, the maximum (work.max_waiting): {advice}", retry_after=seconds)

    async def _sample(self, max_age: float) -> _Sample:
        """Return a count of the waiting runs that is at most `max_age` seconds old."""
        async with self._sampling:
            if self._latest is None or self._clock() - self._latest.at >= max_age:
                size = await self._store.queue_size()
                self._latest = _Sample(self._clock(), size.waiting, size.added)
                self._admitted = 0
                self._keep(self._latest)
            return self._latest

    def _keep(self, sample: _Sample) -> None:
        while self._samples and self._samples[0].at < sample.at - _RATE_SECONDS:
            self._samples.popleft()
        if not self._samples or self._samples[-1].at <= sample.at - SAMPLE_SECONDS:
            self._samples.append(sample)
            self._refused = 0

    def _seconds_until_started(self, runs: int) -> int | None:
        """Return in how many seconds this number of runs will have started, by the measured rate; None if unknown."""
        first, latest = self._samples[0], self._latest
        if latest is None or latest.at - first.at < SAMPLE_SECONDS:
            return None
        started = latest.started_since(first)
        seconds = runs * (latest.at - first.at) / started if started else _MAX_RETRY_SECONDS
        return ceil(min(max(seconds, 1.0), _MAX_RETRY_SECONDS))


LOOK_AGAIN_SECONDS = 1.0
"""Shortest interval at which a program that executes runs looks for those that no process holds."""
_TURN_SECONDS = 1.0
"""How long a queued run is left alone that has to wait for its turn."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """A run that was submitted."""

    run_id: str
    conversation_id: str | None
    """The conversation that the run is a turn of; None if the request has a history of its own."""


class _Claim:
    """A queued run that this process has claimed, until it starts."""

    def __init__(self, request: RunRequest) -> None:
        self.request = request
        self.cancel_requested = self.lease_lost = False
        self.is_stopped = False
        """Whether the run must not start here, unless it is being recorded already."""
        self.settled = asyncio.Event()
        """Set when the run has started, has ended, or is released."""
        self._preparation: asyncio.Task[NewRun] | None = None

    async def prepare(self, starter: RunStarter, generation: Generation) -> NewRun | None:
        """Choose the run's agent, which may need a model, and build its first state; None if the claim was stopped."""
        if not self.is_stopped:
            content, options = read_request(self.request)
            preparing = starter.prepare(content, options, generation, self.request.run_id)
            self._preparation = asyncio.create_task(preparing, name=f"prepare {self.request.run_id}")
            with suppress(asyncio.CancelledError):
                new = await self._preparation
        return None if self.is_stopped else new

    def stop(self) -> None:
        """Do not start the run, unless it is being recorded already."""
        self.is_stopped = True
        if self._preparation is not None:
            self._preparation.cancel()

    def request_cancel(self) -> None:
        """Cancel the run."""
        self.cancel_requested = True
        self.stop()

    def mark_lease_lost(self) -> None:
        """Do not start the run, because this process no longer holds it."""
        self.lease_lost = True
        self.stop()


class RunQueue:
    """The queued and interrupted runs that this process executes: the worker of its work source."""

    def __init__(
        self,
        catalog: Catalog,
        launcher: Launcher,
        starter: RunStarter,
        resumer: RunResumer,
        work: WorkSource,
        background: BackgroundWork,
        slots: WorkerSlots,
        releaser: RunReleaser,
    ) -> None:
        self._catalog, self._launcher, self._starter, self._resumer = catalog, launcher, starter, resumer
        self._store, self._background = launcher.store, background
        self._admission = QueueAdmission(self._store)
        self._work, self._slots, self._releaser = work, slots, releaser
        self.must_look = self._store.durable
        self._claims: dict[str, _Claim] = {}
        """The runs that were claimed and have not ended, by id."""
        self._claiming = asyncio.Lock()
        self._is_woken = self._is_closing = False
        self._has_claimed = False
        """Whether this process claims runs by itself, so that it also wants to know when others make one ready."""
        self._swept_at = -LOOK_AGAIN_SECONDS
        """When this process last looked for runs that no process holds, on the loop's clock."""
        slots.call_on_free(work.wake)
        launcher.signals.add(self._receive)

    async def submit(
        self, content: UserInput, options: RunOptions, place: QueuePlace, idempotency: IdempotencyKey | None
    ) -> Submitted:
        """Save a request as a queued run, which starts as soon as it can; see `Runtime.submit`."""
        check_place(place)
        stored, message = await stored_options(options), await content.to_message()
        generation = self._catalog.current
        conversation = await self._starter.check(message, options, generation)
        try:
            await self._admission.admit(generation.settings.work.max_waiting)
        except QueueFull:
            if idempotency is None or (earlier := await self._store.run_of_key(idempotency)) is None:
                raise
            return await self._submitted(earlier)
        has_history = "history" in options
        request = RunRequest(
            message=message,
            options=stored,
            conversation_id=None if has_history else conversation.id if conversation else f"conv_{uuid4().hex}",
            # A single user may continue the conversation of any tenant and user.
            user=conversation.user if conversation else options.get("user"),
            tenant=conversation.tenant if conversation else options.get("tenant"),
            queue=place.wait,
            priority=place.priority,
            queue_name=place.queue_name,
            trace_context=current_trace_context(),
        )
        if content.files:
            await self._store.save_media(request.run_id, {file.part.digest: file.data for file in content.files})
        run_id = await self._store.enqueue(request, idempotency=idempotency)
        self._work.wake()
        if run_id == request.run_id:
            return Submitted(run_id, request.conversation_id)
        return await self._submitted(run_id)

    async def _submitted(self, run_id: str) -> Submitted:
        """Return a run that an earlier request with the same idempotency key has submitted."""
        return Submitted(run_id, (await self._store.load_run(run_id)).conversation_id)

    def claim_soon(self) -> None:
        """Claim and start ready runs in the background; see `Worker.claim_soon`."""
        if not (self._is_woken or self._is_closing):
            self._is_woken = True
            self._background.start("the queue", self._claim_woken(), Context())

    async def claim(self) -> Sequence[str]:
        """Claim the runs that can start, and start them in the background; return their ids. Raises StoreError."""
        claiming = asyncio.create_task(self._claim())
        self._background.add(claiming)
        return await asyncio.shield(claiming)  # runs that were claimed are started even if the caller leaves

    async def drive(self, run_id: str) -> None:
        """Continue an offered run, or start the best ready one; see `Worker.drive`."""
        await asyncio.wait([self._background.start("the queue", self._drive(run_id), Context())])

    async def close(self) -> None:
        """Claim nothing more; return when each claimed run has started or is released."""
        self._is_closing = True
        self._slots.close()
        async with self._claiming:
            claims = list(self._claims.values())
        for claim in claims:
            claim.stop()
        for claim in claims:
            await claim.settled.wait()

    async def sweep(self) -> Sequence[str]:
        """Continue, in the background, runs that no process holds, and those with an expired confirmation.

        Returns the ids of the interrupted ones.
        """
        if not self._slots.free:
            return ()
        await self._store.sweep(self._slots.free, self._catalog.current.settings.work.max_running.allowed)
        if self._work.is_shared:  # it offers them
            return ()
        resumed = await self._resumer.resume_orphans()
        await self._resumer.expire()
        return resumed

    async def _claim_woken(self) -> None:
        await self._claim()
        now = asyncio.get_running_loop().time()
        is_program = self.must_look and not self._releaser.is_possible  # the housekeeping of a server sweeps itself
        if is_program and now - self._swept_at >= LOOK_AGAIN_SECONDS:
            self._swept_at = now
            await self.sweep()

    async def _claim(self) -> Sequence[str]:
        self._is_woken, self._has_claimed = False, True
        self._launcher.works = self._launcher.works or self._work.capacity > 0
        self._launcher.call_on_end(self._on_end)
        await self._launcher.signals.open()
        with self._slots.all_free() as number:
            claims = await self._claim_ready(number) if number else ()
        for claim in claims:
            self._use_place(claim)
        return [claim.request.run_id for claim in claims]

    async def _claim_ready(self, number: int) -> Sequence[_Claim]:
        """Claim ready runs for slots that are taken; slots without a run are given back."""
        claims: list[_Claim] = []
        try:
            async with self._claiming:
                if not (self._is_closing or await self._resumer.crash_loop_guard.tries_alone()):
                    for request in await self._store.claim(number, scope=self._work.scope):
                        claim = self._claims[request.run_id] = _Claim(request)
                        self._launcher.hold(request.run_id, claim)
                        claims.append(claim)
        finally:
            self._slots.release(number - len(claims))
        return claims

    def _use_place(self, claim: _Claim) -> asyncio.Task[None]:
        """Start a claimed run in the background, in the place that was taken for it."""
        executing = self._slots.execute(self._execute(claim))
        return self._background.start(f"run {claim.request.run_id}", executing, Context())

    async def _drive(self, run_id: str) -> None:
        await self._launcher.signals.open()
        if not await self._slots.wait():
            await self._offer_again(run_id)
            return
        try:
            interrupted = None if self._launcher.is_running(run_id) else await self._resumer.find_interrupted(run_id)
        except BaseException:
            self._slots.release()
            raise
        if interrupted is not None:
            continuing = self._slots.execute(self._resumer.continue_interrupted(interrupted))
            executing = self._background.start(f"run {run_id}", continuing, Context())
        elif claims := await self._claim_ready(1):
            executing = self._use_place(claims[0])
        else:
            return
        await asyncio.wait([executing])

    async def _offer_again(self, run_id: str) -> None:
        """Offer a queued run to other processes, because it was delivered to this one while it stops."""
        claimed = await self._store.claim(1, run_id=run_id)
        await self._store.unclaim([request.run_id for request in claimed])

    def _receive(self, signal: Signal) -> None:
        """Look for runs when another process makes one ready, if this process claims runs at all."""
        if self._has_claimed and (signal.kind == "ready" or signal == MISSED):
            self._work.wake()

    def _on_end(self, run_id: str) -> None:
        """Claim the next run of the conversation of a run that ended in this process without having been queued."""
        if run_id not in self._claims:
            self._work.wake()

    async def _execute(self, claim: _Claim) -> None:
        """Start a claimed run in the trace of its caller, and wait for its end or pause."""
        try:
            with self._catalog.lease() as generation:
                try:
                    with apply_trace_context(claim.request.trace_context):
                        run = await self._prepare_and_start(claim, generation)
                finally:
                    claim.settled.set()
                if run is not None:
                    with suppress(RunSuspended):
                        await run
        finally:
            if self._claims.get(claim.request.run_id) is claim:  # not one that was made after this was released
                del self._claims[claim.request.run_id]

    async def _prepare_and_start(self, claim: _Claim, generation: Generation) -> asyncio.Task[RunResult] | None:
        """Start a claimed run, and return its task; None if it has ended, or is released.

        Raises:
            StoreError: the run could not be recorded; it stays queued.
        """
        request, run_id = claim.request, claim.request.run_id
        try:
            if request.attempts and not await self._may_start(claim):
                return None
            with self._resumer.crash_loop_guard.trying(run_id) if request.attempts else nullcontext():
                new = await claim.prepare(self._starter, generation)
            if new:
                return await self._start(claim, new)
            await self._give_back(claim)
        except (ConversationBusy, StoreError):  # another run was first, or the store failed: the request stays queued
            await self._give_back(claim)
            raise
        except AgentsdError as error:
            if reason := await self._releaser.reason_to_leave(request.options.get("agent"), error):
                self._launcher.drop(run_id, claim)
                await self._releaser.leave(run_id, redact(reason))
                return None
            await self._fail(claim, ErrorInfo(code=error.code, message=redact(str(error)), retryable=error.retryable))
        except Exception as error:  # noqa: BLE001 - a hook of a model client may raise anything: only this run fails
            log.error("run %s could not start: %s", run_id, safe_traceback(error))
            await self._fail(claim, ErrorInfo(code="internal_error", message="internal error; see the log"))
        return None

    async def _may_start(self, claim: _Claim) -> bool:
        """Return whether to start a run whose earlier processes ended. If not, it has failed, or starts later."""
        request, run_id = claim.request, claim.request.run_id
        if await self._resumer.crash_loop_guard.has_crashed(run_id, request.attempts):
            message = f"{request.attempts} processes in a row ended before the run started"
            await self._fail(claim, ErrorInfo(code="crashed", message=message))
            return False
        if not await self._resumer.crash_loop_guard.admit(run_id, request.attempts):
            self._launcher.drop(run_id, claim)
            await self._store.release_for_others(run_id, "waits until another run has saved a step", _TURN_SECONDS)
            return False
        return True

    async def _start(self, claim: _Claim, new: NewRun) -> asyncio.Task[RunResult] | None:
        """Record and start a prepared run, and return its task; None if a limit on runs in progress is reached."""
        run_id = new.state.run_id
        try:
            prepared = await self._starter.record(new, limits_of(new.state, new.route.agent, new.generation))
        except RunBlocked:  # the store has released the run, and makes it ready when a slot is free
            self._launcher.drop(run_id, claim)
            if claim.cancel_requested:
                await self._resumer.cancel(run_id, RUNTIME_CALLER)
            return None
        run = self._launcher.start(prepared)
        if claim.cancel_requested or prepared.record.cancel_requested:
            self._launcher.cancel(run_id)
        return run

    async def _fail(self, claim: _Claim, error: ErrorInfo) -> None:
        """Record that a claimed run cannot start."""
        async with self._claiming:  # so that this process does not claim it again in between
            await self._release(claim)
            await self._resumer.fail_queued(claim.request.run_id, error)

    async def _give_back(self, claim: _Claim) -> None:
        """Release a claimed run, or forget it if its lease was lost; then cancel it if that was requested meanwhile."""
        async with self._claiming:  # so that this process does not claim it again before it is cancelled
            await self._release(claim)
            if claim.cancel_requested:
                await self._resumer.cancel(claim.request.run_id, RUNTIME_CALLER)

    async def _release(self, claim: _Claim) -> None:
        self._launcher.drop(claim.request.run_id, claim)
        if self._claims.get(claim.request.run_id) is claim:  # not one that this process has made since it was lost
            await self._store.unclaim([claim.request.run_id])
