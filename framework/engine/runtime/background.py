"""Background tasks of a runtime, the slots that limit its runs, and the source that delivers queued runs to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from framework.config.agents.compile import Agent
from framework.config.generations.generation import Generation
from framework.config.triggers import TRIGGER
from framework.store.types import EVERYTHING, OfferedRun, WorkScope
from framework.telemetry.redact import safe_traceback
from framework.types.errors import AgentsdError, RequestError, StoreError, is_scarcity
from framework.types.state import RunState

log = logging.getLogger(__name__)


T = TypeVar("T")
ESSENTIAL = "agentsd_essential"
"""Key of the event loop's exception handler for errors after which a process does not do its work any more."""

MAX_LOGGED_ERRORS = 1000
"""Number of names whose last logged error is remembered, so that it is logged once."""


class BackgroundWork:
    """The background tasks of one runtime."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[Any]] = set()
        self._logged_errors: dict[str, str] = {}
        """Last logged error of work that failed, by name."""

    def start(self, name: str, work: Coroutine[Any, Any, object], context: Context | None = None) -> asyncio.Task[None]:
        """Start work in the background. An error is logged with `name`, but the same error in a row only once.

        Returns a task that ends with the work, without its error.

        Args:
            name: what the work concerns.
            work: the work.
            context: its context variables, such as the trace of a caller; by default a copy of the present ones.
        """
        task = asyncio.create_task(self._log_errors(name, work), name=f"{name} in the background", context=context)
        self.add(task)
        return task

    def add(self, task: asyncio.Future[Any]) -> None:
        """Let `close` wait for a task, which handles its errors itself."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait for all work to end."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _log_errors(self, name: str, work: Coroutine[Any, Any, object]) -> None:
        try:
            await work
        except AgentsdError as error:
            if len(self._logged_errors) >= MAX_LOGGED_ERRORS:
                self._logged_errors.clear()
            if self._logged_errors.get(name) != str(error):  # retried every few seconds
                self._logged_errors[name] = str(error)
                level = logging.INFO if isinstance(error, RequestError) else logging.WARNING
                log.log(level, "%s: %s", name, error)
        except Exception as error:  # noqa: BLE001 - logged; nobody awaits it
            log.error("%s failed: %s", name, safe_traceback(error))
            if isinstance(error, MemoryError):
                _report(f"{name} in the background", error)
        else:
            self._logged_errors.pop(name, None)


def is_passing(error: BaseException) -> bool:
    """Return whether repeated work may succeed the next time: the store, open files or memory are unavailable now."""
    return isinstance(error, StoreError) or is_scarcity(error)


def essential(task: asyncio.Task[T]) -> asyncio.Task[T]:
    """Report to the event loop's exception handler if a task ends by an error: the process needs it."""
    task.add_done_callback(_report_end)
    return task


def _report_end(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _report(task.get_name(), error)


def _report(name: str, error: BaseException) -> None:
    context = {"message": f"{name} has ended", "exception": error, ESSENTIAL: True}
    asyncio.get_running_loop().call_exception_handler(context)


class WorkerSlots:
    """A number of slots, each for one queued or continued run."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._taken = self._looks = self._sought = 0
        self._is_closed = False
        self._freed = asyncio.Event()
        self._on_free: Callable[[], object] = lambda: None

    @property
    def free(self) -> int:
        """Number of slots that can be acquired now."""
        return 0 if self._is_closed else max(self.capacity - self._taken, 0)

    @property
    def taken(self) -> int:
        """Number of runs that have a slot, without the slots that a look for runs has acquired in advance."""
        return max(self._taken - self._sought, 0)

    def call_on_free(self, callback: Callable[[], object]) -> None:
        """Set the callback for the end of a run that had a slot. It is not called if the run could not start."""
        self._on_free = callback

    def acquire(self, number: int = 1) -> int:
        """Acquire at most this number of slots, and return how many were free."""
        taken = min(number, self.free)
        self._taken += taken
        return taken

    def release(self, number: int = 1) -> None:
        """Release the slots of runs that do not start."""
        self._taken -= number
        self._freed.set()

    @contextmanager
    def all_free(self) -> Iterator[int]:
        """Acquire all free slots while runs are looked for; yield their number. Those without a run are released."""
        number = self.acquire(self.free)
        self._looks, self._sought = self._looks + 1, self._sought + number
        try:
            yield number
        finally:
            self._looks, self._sought = self._looks - 1, self._sought - number
            self._freed.set()

    async def known(self) -> None:
        """Wait until it is known whether a slot is free, if a look for runs has acquired all that were."""
        while self._looks and not self.free and not self._is_closed:
            self._freed.clear()
            await self._freed.wait()

    async def wait(self) -> bool:
        """Wait for a free slot, and acquire it. Return False if there is none any more, because of `close`."""
        while not self.acquire():
            if self._is_closed or self.capacity == 0:
                return False
            self._freed.clear()
            await self._freed.wait()
        return True

    async def execute(self, work: Awaitable[None]) -> None:
        """Await work that has a slot, and release the slot."""
        try:
            await work
        finally:
            self.release()
        self._on_free()  # not after an error: a run that could not start would be tried again at once

    def close(self) -> None:
        """Grant no more slots."""
        self._is_closed = True
        self._freed.set()


def limits_of(state: RunState, agent: Agent, generation: Generation) -> dict[str, int]:
    """Return the numbers of runs in progress from which a submitted run waits, by key; see `MaxRunning.limits`."""
    settings, trigger = generation.settings, generation.triggers.get(str(state.metadata.get(TRIGGER)))
    name = state.model or agent.spec.model or settings.model
    alias = settings.models.get(name)
    models = {name, alias.model} if alias else {name}
    limits = settings.work.max_running.limits(agent.name, models, state.tenant)
    if trigger and trigger.spec.overlapping == "queue" and (state.user, state.tenant) == trigger.owner:
        limits[f"{TRIGGER}:{trigger.name}"] = 1
    return limits


# The rows of the store are the truth: they decide which run starts next and who may continue one. A delivery only says
# that it is time to look at them, so one that comes twice, late or never does no harm.


@dataclass(frozen=True, slots=True)
class PeriodicJob:
    """Work on the whole store that one of its processes does at a time."""

    name: str
    cron: str
    """When: five fields, in UTC."""
    run: Callable[[], Awaitable[None]]
    """Does the work, and handles its errors."""


class Worker(Protocol):
    """The process that a work source delivers to."""

    must_look: bool
    """Whether runs may become ready without a `wake`, because other processes use the store."""

    def claim_soon(self) -> None:
        """Start ready runs, best first, as long as the capacity permits. Returns at once."""
        ...

    async def drive(self, run_id: str) -> None:
        """Use the offer of a run: continue it if it was interrupted, else start the best ready run.

        An offered run whose first confirmation expired is continued as well. If nothing needs this process, nothing
        happens. At full capacity, it waits for the end of another run.

        Returns when the run no longer needs this process: it has ended, paused or been released. Never raises; errors
        are logged. The run does not depend on this call: cancelling it leaves the run in progress.
        """
        ...


class WorkSource(Protocol):
    """Delivers the runs of a store to one process."""

    capacity: int
    """Number of runs that the process executes at once. 0: it executes none, and others do."""
    scope: WorkScope
    """The runs that are delivered."""
    is_shared: bool
    """Whether an offer reaches all processes at once. Then this process continues runs only if they are delivered."""

    def offer(self, connection: Any, runs: Sequence[OfferedRun]) -> None:
        """Offer runs to all processes; see `Offers`."""
        ...

    def claim(self, worker: Worker) -> None:
        """Deliver runs to this worker, from the first `wake` until `release`."""
        ...

    def wake(self, *, has_looked: bool = False) -> None:
        """Look for runs now: one may have become ready, or this process has become able to execute another.

        Args:
            has_looked: the worker has just claimed the runs that are ready, so looking again can wait.
        """
        ...

    def repeat(self, job: PeriodicJob) -> bool:
        """Do periodic work in one process of all. Return False if each process must do it itself.

        Call it before the first `wake`. Another job with the same name replaces the first.
        """
        ...

    def release(self) -> None:
        """Deliver nothing more, from now on: this process is about to stop. Its runs are not affected."""
        ...


DEFAULT_CAPACITY = 200
"""Number of queued and continued runs that one process executes at once, unless the settings say otherwise."""
RECHECK_SECONDS = 1.0
"""Interval at which a process looks for runs that can start because of another process."""


class EmbeddedSource:
    """Looks for ready runs when this process is woken and, if other processes use the store, at an interval."""

    is_shared = False

    def __init__(self, capacity: int = DEFAULT_CAPACITY, scope: WorkScope = EVERYTHING) -> None:
        self.capacity, self.scope = capacity, scope
        self._worker: Worker | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_released = False

    def offer(self, connection: Any, runs: Sequence[OfferedRun]) -> None:
        """Do nothing: processes find the runs in the store."""

    def claim(self, worker: Worker) -> None:
        """Look for the ready runs of this worker."""
        self._worker = worker

    def wake(self, *, has_looked: bool = False) -> None:
        """Look for ready runs now, and again at the interval."""
        if self._worker is None or self.capacity == 0:
            return
        if not has_looked:
            self._worker.claim_soon()
        if self._timer is not None:
            self._timer.cancel()
        if self._worker.must_look and not self._is_released:
            self._timer = asyncio.get_running_loop().call_later(RECHECK_SECONDS, self.wake, context=Context())

    def repeat(self, job: PeriodicJob) -> bool:  # noqa: ARG002 - the protocol's
        """Return False: this process knows of no others."""
        return False

    def release(self) -> None:
        """Look only for runs of this process: those that requests in progress still submit."""
        self._is_released = True
        if self._timer is not None:
            self._timer.cancel()
