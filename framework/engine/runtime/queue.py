"""Queued runs: saves requests, claims those that can begin, chooses their agents, and starts them.

The store decides which runs can begin, and in which order; several processes may claim runs of one store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from uuid import uuid4

from framework.config.generations.catalog import Catalog
from framework.config.generations.generation import Generation
from framework.engine.runtime.background import BackgroundWork
from framework.engine.runtime.launcher import Launcher
from framework.engine.runtime.queued_request import read_request, stored_options
from framework.engine.runtime.request import RUNTIME_CALLER, RunOptions
from framework.engine.runtime.resume import MAX_RESUME_ATTEMPTS, RunResumer
from framework.engine.runtime.start import NewRun, RunStarter
from framework.engine.runtime.user_input import UserInput
from framework.telemetry.inbound import apply_trace_context, current_trace_context
from framework.telemetry.redact import places
from framework.types.errors import AgentsdError, ConversationBusy, RunSuspended, StoreError
from framework.types.redact import redact
from framework.types.report import ErrorInfo
from framework.types.run_request import IdempotencyKey, RunRequest
from framework.types.state import RunResult

log = logging.getLogger(__name__)

MAX_CONCURRENT_RUNS = 1000
"""Number of queued runs that one process executes at once; the others wait in the store."""
RECHECK_SECONDS = 2.0
"""Interval at which a process looks for queued runs that can begin because of another process. Calls of `claim` that
are more frequent make this unnecessary."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """A run that was submitted."""

    run_id: str
    conversation_id: str | None
    """The conversation that the run is a turn of; None if the request has a history of its own."""


class _Claim:
    """A queued run that this process has claimed, until it begins."""

    def __init__(self, request: RunRequest) -> None:
        self.request = request
        self.cancel_requested = self.lease_lost = False
        self.is_stopped = False
        """Whether the run must not begin here, unless it is being recorded already."""
        self.settled = asyncio.Event()
        """Set when the run has begun, has ended, or is released."""
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
        """Do not begin the run, unless it is being recorded already."""
        self.is_stopped = True
        if self._preparation is not None:
            self._preparation.cancel()

    def request_cancel(self) -> None:
        """Cancel the run."""
        self.cancel_requested = True
        self.stop()

    def mark_lease_lost(self) -> None:
        """Do not begin the run, because this process no longer holds it."""
        self.lease_lost = True
        self.stop()


class RunQueue:
    """The queued runs that this process executes."""

    def __init__(
        self, catalog: Catalog, launcher: Launcher, starter: RunStarter, resumer: RunResumer, background: BackgroundWork
    ) -> None:
        self._catalog, self._launcher, self._starter, self._resumer = catalog, launcher, starter, resumer
        self._store, self._background = launcher.store, background
        self._claims: dict[str, _Claim] = {}
        """The runs that were claimed and have not ended, by id."""
        self._claiming = asyncio.Lock()
        self._is_woken = self._is_closing = False
        self._timer: asyncio.TimerHandle | None = None

    async def submit(
        self, content: UserInput, options: RunOptions, *, queue: bool, idempotency: IdempotencyKey | None
    ) -> Submitted:
        """Save a request as a queued run, which begins as soon as it can; see `Runtime.submit`."""
        stored, message = await stored_options(options), await content.to_message()
        conversation = await self._starter.check(message, options, self._catalog.current)
        has_history = "history" in options
        request = RunRequest(
            message=message,
            options=stored,
            conversation_id=None if has_history else conversation.id if conversation else f"conv_{uuid4().hex}",
            user=options.get("user"),
            tenant=conversation.tenant if conversation else options.get("tenant"),  # a single user may continue any
            queue=queue,
            trace_context=current_trace_context(),
        )
        if content.files:
            await self._store.save_media(request.run_id, {file.part.digest: file.data for file in content.files})
        run_id = await self._store.enqueue(request, idempotency=idempotency)
        self.wake()
        if run_id == request.run_id:
            return Submitted(run_id, request.conversation_id)
        return Submitted(run_id, (await self._store.load_run(run_id)).conversation_id)

    def wake(self) -> None:
        """Claim and start runs in the background, because some may be able to begin now."""
        if not (self._is_woken or self._is_closing):
            self._is_woken = True
            self._background.start("the queue", self._claim_woken(), Context())

    async def claim(self) -> Sequence[str]:
        """Claim the runs that can begin, and start them in the background; return their ids. Raises StoreError."""
        claiming = asyncio.create_task(self._claim())
        self._background.add(claiming)
        return await asyncio.shield(claiming)  # runs that were claimed are started even if the caller leaves

    async def close(self) -> None:
        """Claim nothing more; return when each claimed run has begun or is released."""
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        async with self._claiming:
            claims = list(self._claims.values())
        for claim in claims:
            claim.stop()
        for claim in claims:
            await claim.settled.wait()

    async def _claim_woken(self) -> None:
        await self._claim()

    async def _claim(self) -> Sequence[str]:
        async with self._claiming:
            self._is_woken = False
            free = MAX_CONCURRENT_RUNS - len(self._claims)
            if self._is_closing or free <= 0:
                return ()
            self._launcher.call_on_end(self._on_end)
            self._poll_later()
            requests = await self._store.claim(free)
            for request in requests:
                claim = self._claims[request.run_id] = _Claim(request)
                self._launcher.hold(request.run_id, claim)
                self._background.start(f"run {request.run_id}", self._execute(claim), Context())
            return [request.run_id for request in requests]

    def _on_end(self, run_id: str) -> None:
        """Claim the next run of the conversation of a run that ended in this process without having been queued."""
        if run_id not in self._claims:
            self.wake()

    def _poll_later(self) -> None:
        """Claim again after a while, because another process may end the run that a queued one waits for."""
        if self._timer is not None:
            self._timer.cancel()
        if self._store.durable:
            self._timer = asyncio.get_running_loop().call_later(RECHECK_SECONDS, self.wake, context=Context())

    async def _execute(self, claim: _Claim) -> None:
        """Begin a claimed run in the trace of its caller, and wait for its end or pause."""
        try:
            with self._catalog.lease() as generation:
                try:
                    with apply_trace_context(claim.request.trace_context):
                        run = await self._begin(claim, generation)
                finally:
                    claim.settled.set()
                if run is not None:
                    with suppress(RunSuspended):
                        await run
        finally:
            del self._claims[claim.request.run_id]
        self.wake()  # not after an error: the run that could not begin would be claimed again at once

    async def _begin(self, claim: _Claim, generation: Generation) -> asyncio.Task[RunResult] | None:
        """Start a claimed run, and return its task; None if it has ended, or is released.

        Raises:
            StoreError: the run could not be recorded; it stays queued.
        """
        request, run_id = claim.request, claim.request.run_id
        try:
            if request.attempts >= MAX_RESUME_ATTEMPTS:
                message = f"{request.attempts} processes in a row ended before the run began"
                await self._fail(run_id, ErrorInfo(code="crashed", message=message))
            elif new := await claim.prepare(self._starter, generation):
                prepared = await self._starter.record(new)
                run = self._launcher.start(prepared)
                if claim.cancel_requested or prepared.record.cancel_requested:
                    self._launcher.cancel(run_id)
                return run
            elif not claim.lease_lost:
                await self._release(run_id)
                if claim.cancel_requested:
                    await self._resumer.cancel(run_id, RUNTIME_CALLER)
        except (ConversationBusy, StoreError):  # another run began first, or the store failed: the request stays queued
            await self._release(run_id)
            raise
        except AgentsdError as error:
            await self._fail(run_id, ErrorInfo(code=error.code, message=redact(str(error)), retryable=error.retryable))
        except Exception as error:  # noqa: BLE001 - a hook of a model client may raise anything: only this run fails
            log.error("run %s could not begin: %s", run_id, places(error))
            await self._fail(run_id, ErrorInfo(code="internal_error", message="internal error; see the log"))
        return None

    async def _fail(self, run_id: str, error: ErrorInfo) -> None:
        """Record that a claimed run cannot begin."""
        async with self._claiming:  # so that this process does not claim it again in between
            await self._release(run_id)
            await self._resumer.fail_queued(run_id, error)

    async def _release(self, run_id: str) -> None:
        self._launcher.drop(run_id)
        await self._store.unclaim([run_id])
