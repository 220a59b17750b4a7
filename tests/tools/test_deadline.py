"""Calls with a time limit: it counts the time that the function could use."""

from __future__ import annotations

import threading
import time
from types import FrameType

import pytest

from framework.tools.threads import DeadlineExceededError, call_within


def test_time_during_which_the_process_is_stopped_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two polls an hour passes; the function returns after the third one."""
    polls, third = list[FrameType | None](), threading.Event()
    monotonic = time.monotonic

    def late() -> float:
        return monotonic() + 3600 * len(polls)

    def note(frame: FrameType | None) -> bool:
        polls.append(frame)
        if len(polls) == 3:
            third.set()
        return False

    def work() -> str:
        third.wait()
        return "done"

    monkeypatch.setattr("framework.tools.threads.time.monotonic", late)
    assert call_within(60, work, is_exempt=note, max_seconds=60).result() == "done"


def test_time_during_which_the_machine_executes_something_else_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock runs a thousand times faster than the CPU: the function gets a thousandth of the CPU."""
    monotonic = time.monotonic

    def work() -> str:
        while time.thread_time() < 0.3:
            pass
        return "done"

    monkeypatch.setattr("framework.tools.threads.time.monotonic", lambda: 1000 * monotonic())
    assert call_within(1, work, is_exempt=lambda _: False, max_seconds=1).result() == "done"


@pytest.mark.parametrize("busy", [True, False])
def test_a_call_that_does_not_end_is_abandoned(busy: bool) -> None:
    ended = threading.Event()

    def work() -> None:
        while busy or not ended.wait(0.01):
            pass

    with pytest.raises(DeadlineExceededError, match=r"not finished after 0\.2 s") as exceeded:
        call_within(0.2, work, is_exempt=lambda _: False, max_seconds=60)
    ended.set()
    assert __file__ in [file for file, _ in exceeded.value.stack]


def test_exempt_time_has_a_limit_too() -> None:
    ended = threading.Event()
    with pytest.raises(DeadlineExceededError, match=r"not finished after 0\.2 s"):
        call_within(0.1, ended.wait, is_exempt=lambda _: True, max_seconds=0.2)
    ended.set()
