"""Calls a function that may never end, and gives it up when it takes too long."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from importlib import import_module
from traceback import walk_stack
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.02
_JOIN_SECONDS = 0.2
"""How long a thread that was told to end is waited for."""


class DeadlineExceededError(Exception):
    """A call that was given up; `stack` is where it was by then: file names and lines, the innermost last."""

    def __init__(self, seconds: float, frame: FrameType | None) -> None:
        super().__init__(f"not done after {seconds:g} s")
        frames = reversed(list(walk_stack(frame))) if frame else ()
        self.stack = [(frame.f_code.co_filename, line) for frame, line in frames]


def call_within(
    seconds: float, function: Callable[[], T], *, is_exempt: Callable[[FrameType | None], bool], max_seconds: float
) -> Future[T]:
    """Call in a thread of its own; returns what became of it, be it a value or an exception.

    Args:
        seconds: how long it may take.
        function: what to call.
        is_exempt: whether the time that it spends in a frame does not count.
        max_seconds: how many seconds it may take with everything that is excused.

    Raises:
        TookTooLongError: it did not end. Its thread is told to; one that goes on all the same is left, and logged.
    """
    outcome: Future[T] = Future()
    thread = threading.Thread(target=_settle, args=(outcome, function), name="agentsd-load", daemon=True)
    thread.start()
    began = last = time.monotonic()
    counted = 0.0
    while not wait([outcome], _POLL_SECONDS).done:
        frame = sys._current_frames().get(thread.ident or 0)
        now = time.monotonic()
        counted += 0 if is_exempt(frame) else now - last
        last = now
        if counted >= seconds or now - began >= max_seconds:
            error = DeadlineExceededError(
                seconds if counted >= seconds else max_seconds, frame
            )  # while it is still there
            if not _end(thread):
                log.error("what was given up after %.1f s goes on in a thread of this process", now - began)
            raise error
    return outcome


def _settle(outcome: Future[T], function: Callable[[], T]) -> None:
    try:
        outcome.set_result(function())
    except BaseException as error:  # noqa: BLE001 - sys.exit() too ends the call, not only the thread
        outcome.set_exception(error)


def _end(thread: threading.Thread) -> bool:
    """Raise SystemExit in a thread, at its next line of Python: an endless loop would slow down everything else."""
    ctypes = import_module("ctypes")  # slow to load, and only ever needed here
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
    thread.join(_JOIN_SECONDS)
    return not thread.is_alive()
