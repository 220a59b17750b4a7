"""Calls a function in a thread with a time limit, and abandons it when the limit is exceeded."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from importlib import import_module
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

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
    thread = threading.Thread(target=_settle, args=(outcome, clock, function), name="agentsd-load", daemon=True)
    thread.start()
    began = last = time.monotonic()
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
                log.error("a call abandoned after %.1f s is still running in a thread of this process", now - began)
            raise error
    return outcome


def _cpu_seconds(clock: list[int]) -> float:
    """Return the CPU time that a thread has used, in seconds; 0 if it has ended, or without a clock for threads."""
    try:
        return time.clock_gettime(clock[0]) if clock else 0.0
    except OSError:  # the thread has ended
        return 0.0


def _is_runnable(thread: threading.Thread) -> bool:
    """Return whether a thread runs or waits only for a processor; False if it has ended or the system does not tell."""
    try:
        status = Path(f"/proc/self/task/{thread.native_id}/stat").read_bytes()
    except OSError:
        return False
    return status.rpartition(b")")[2].split()[:1] == [b"R"]


def _settle(outcome: Future[T], clock: list[int], function: Callable[[], T]) -> None:
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
