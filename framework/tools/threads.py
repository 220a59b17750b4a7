"""Threads of blocking tools, and calls with a time limit."""

from __future__ import annotations

import asyncio
import logging
import queue
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future, wait
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Any, TypeVar

from framework.types.errors import ToolError

log = logging.getLogger(__name__)


THREADS_PER_RUN = 16
MAX_ABANDONED = 32
"""Limit per tool, over all runs, of timed-out calls that still occupy a thread."""
MAX_IDLE = 32
"""Limit of idle threads kept for later calls."""

Abandoned = Callable[[int], None]
"""Called with 1 when a call is abandoned while its thread is busy, and with -1 when that thread is free again."""


@dataclass(slots=True, eq=False)
class _Quota:
    """The threads of one run. Only the event loop touches it."""

    busy: int = 0
    abandoned: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)

    def wake(self) -> None:
        """Wake all waiters, to check the quota again."""
        while self.waiting:
            waiter = self.waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)


class ToolThreads:
    """Threads for the calls of all runs."""

    def __init__(self, on_abandoned: Abandoned = lambda _: None) -> None:
        self._on_abandoned = on_abandoned
        self._quotas: dict[str, _Quota] = {}
        self._abandoned: Counter[str] = Counter()
        self._idle: deque[_Worker] = deque()
        self._is_closed = False

    @property
    def abandoned(self) -> int:
        """Number of threads that are busy with abandoned calls."""
        return self._abandoned.total()

    @asynccontextmanager
    async def turn(self, run_id: str, name: str) -> AsyncIterator[Executor]:
        """Wait for a thread of a run's quota; the executor accepts one call, which occupies the thread until it ends.

        Raises:
            ToolError: all threads of the run, or too many calls of the tool, are busy with abandoned calls.
        """
        if self._abandoned[name] >= MAX_ABANDONED:
            raise ToolError(f"not called: {MAX_ABANDONED} earlier calls of {name} have timed out and are still running")
        quota = self._quotas.setdefault(run_id, _Quota())
        call = _Call(self, quota, run_id, name)
        try:
            while quota.busy >= THREADS_PER_RUN:
                if quota.abandoned >= THREADS_PER_RUN:
                    raise ToolError(
                        f"not called: all {THREADS_PER_RUN} threads of this run are busy with calls that timed out"
                    )
                waiter = asyncio.get_running_loop().create_future()
                quota.waiting.append(waiter)
                await waiter
            quota.busy += 1
            try:
                yield call
            finally:
                call.leave()
        finally:
            self._forget(run_id, quota)

    def ended(self, call: _Call) -> None:
        """Return the thread of a call to its run's quota."""
        call.quota.busy -= 1
        if call.is_abandoned:
            call.quota.abandoned -= 1
            self._abandoned[call.name] -= 1
            self._on_abandoned(-1)
            log.info("run %s: an abandoned call of %s has ended", call.run_id, call.name)
        call.quota.wake()
        self._forget(call.run_id, call.quota)

    def abandon(self, call: _Call) -> None:
        """Count a call as abandoned: it was given up, and its thread is still busy."""
        call.quota.abandoned += 1
        self._abandoned[call.name] += 1
        self._on_abandoned(1)
        call.quota.wake()
        log.warning(
            "run %s: an abandoned call of %s still occupies its thread (%d such threads in this process)",
            call.run_id,
            call.name,
            self.abandoned,
        )

    def start(self, job: Callable[[], None]) -> None:
        """Run a job in an idle thread, or in a new one."""
        try:
            worker = self._idle.pop()
        except IndexError:
            worker = _Worker(self.keep)
        worker.jobs.put(job)

    def keep(self, worker: _Worker) -> bool:
        """Keep an idle thread for a later call; returns False if the thread is to end."""
        if self._is_closed or len(self._idle) >= MAX_IDLE:
            return False
        self._idle.append(worker)
        return True

    def close(self) -> None:
        """End the idle threads. Busy ones end with their calls, or with the process."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().jobs.put(None)

    def _forget(self, run_id: str, quota: _Quota) -> None:
        if not quota.busy and not quota.waiting and self._quotas.get(run_id) is quota:
            del self._quotas[run_id]


class _Call(Executor):
    """One call's place in the quota of its run."""

    def __init__(self, threads: ToolThreads, quota: _Quota, run_id: str, name: str) -> None:
        self.quota, self.run_id, self.name = quota, run_id, name
        self.is_abandoned = False
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._future: Future[Any] | None = None
        self._is_over = False

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call the function in a thread."""
        future: Future[Any] = Future()

        def job() -> None:
            if future.set_running_or_notify_cancel():
                _settle(future, function, args, kwargs)
            with suppress(RuntimeError):  # the loop is closed, and its counts are gone
                self._loop.call_soon_threadsafe(self._end)

        self._threads.start(job)
        self._future = future
        return future

    def leave(self) -> None:
        """Release the thread; if it is still busy, the call was given up and counts as abandoned."""
        if self._future is None:
            self._end()
        elif not self._is_over and not self._future.done():
            self.is_abandoned = True
            self._threads.abandon(self)

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._threads.ended(self)


class _Worker:
    """A daemon thread: the interpreter exits without it."""

    def __init__(self, keep: Callable[[_Worker], bool]) -> None:
        self.jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._keep = keep
        threading.Thread(target=self._work, name="agentsd-tool", daemon=True).start()

    def _work(self) -> None:
        while job := self.jobs.get():
            job()
            del job  # an idle thread keeps nothing alive
            if not self._keep(self):
                return


def _settle(future: Future[Any], function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    try:
        future.set_result(function(*args, **kwargs))
    except (KeyboardInterrupt, GeneratorExit, StopIteration) as error:
        # Signals reach the main thread only, so this is the function's own. In the loop it would end the process.
        future.set_exception(RuntimeError(f"it raised {type(error).__name__}"))
    except BaseException as error:  # noqa: BLE001 - the caller gets what the function raised
        future.set_exception(error)


T = TypeVar("T")

_POLL_SECONDS = 0.02
_JOIN_SECONDS = 0.2
"""Time to wait for an abandoned thread to end, in seconds."""


class DeadlineExceededError(Exception):
    """A call exceeded its time limit. `stack` has file names and lines of its frames, the innermost last."""

    def __init__(self, seconds: float, frame: FrameType | None) -> None:
        super().__init__(f"not finished after {seconds:g} s")
        frames = reversed(list(walk_stack(frame))) if frame else ()
        self.stack = [(frame.f_code.co_filename, line) for frame, line in frames]


def call_within(
    seconds: float, function: Callable[[], T], *, is_exempt: Callable[[FrameType | None], bool], max_seconds: float
) -> Future[T]:
    """Call `function` in a separate thread and return its completed Future.

    What counts is the CPU time of the function and the time for which it waits, for instance for a server. Time during
    which it could run but the machine executes something else does not count, so a slow machine changes nothing.

    Args:
        seconds: time limit, without exempt time.
        function: the function to call.
        is_exempt: returns whether time spent in a frame does not count towards `seconds`.
        max_seconds: time limit that includes exempt time.

    Raises:
        DeadlineExceededError: a limit was exceeded. SystemExit is raised in the thread; if it keeps running, that is
            logged.
    """
    outcome: Future[T] = Future()
    clock: list[int] = []
    thread = threading.Thread(target=_complete, args=(outcome, clock, function), name="agentsd-load", daemon=True)
    thread.start()
    started = last = time.monotonic()
    used = counted = total = 0.0
    while not wait([outcome], _POLL_SECONDS).done:
        frame = sys._current_frames().get(thread.ident or 0)
        now, used_now = time.monotonic(), _cpu_seconds(clock)
        waited = 0.0 if _is_runnable(thread) else min(now - last, _POLL_SECONDS)  # a late poll: the process was stopped
        passed = max(waited, used_now - used)
        last, used = now, used_now
        counted += 0 if is_exempt(frame) else passed
        total += passed
        if counted >= seconds or total >= max_seconds:
            error = DeadlineExceededError(
                seconds if counted >= seconds else max_seconds, frame
            )  # while it is still there
            if not _end(thread):
                log.error("a call abandoned after %.1f s is still running in a thread of this process", now - started)
            raise error
    return outcome


def _cpu_seconds(clock: list[int]) -> float:
    """Return the CPU time that a thread has used, in seconds; 0 if it has ended, or without a clock for threads."""
    try:
        return time.clock_gettime(clock[0]) if clock else 0.0
    except OSError:  # the thread has ended
        return 0.0


def _is_runnable(thread: threading.Thread) -> bool:
    """Return whether a thread runs or waits only for a processor; False if it has ended, or if unknown."""
    try:
        status = Path(f"/proc/self/task/{thread.native_id}/stat").read_bytes()
    except OSError:
        return False
    return status.rpartition(b")")[2].split()[:1] == [b"R"]


def _complete(outcome: Future[T], clock: list[int], function: Callable[[], T]) -> None:
    if sys.platform == "linux":  # asked for in the thread itself: from outside, the thread may have ended
        clock.append(time.pthread_getcpuclockid(threading.get_ident()))
    try:
        outcome.set_result(function())
    except BaseException as error:  # noqa: BLE001 - includes sys.exit(), which would only end the thread
        outcome.set_exception(error)


def _end(thread: threading.Thread) -> bool:
    """Raise SystemExit in a thread, so that an endless loop stops using the CPU. Return whether the thread ended."""
    ctypes = import_module("ctypes")  # slow to import, and only needed here
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
    thread.join(_JOIN_SECONDS)
    return not thread.is_alive()
