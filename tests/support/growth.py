"""How the cost of work grows with its input: ratios of CPU time, so that a loaded machine changes nothing."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

FIRST, FACTOR = 500, 4
MOST_GROWTH = 9.0
"""For 4 times the input, linear work takes 4 times as long and quadratic work 16 times."""
NOTICEABLE = 0.004
"""Seconds: less is lost in the noise of the clock."""


def assert_linear(
    work: Callable[[T], object], given: Callable[[int], T], *, largest: int = 16 * FIRST, told: str = ""
) -> None:
    """Check that work grows no faster than its input.

    Args:
        work: what to measure.
        given: the input of a size.
        largest: the size to stop at. It is approached in steps, so that exponential work fails early.
        told: what the input is, for the failure's message.
    """
    size = FIRST
    while size <= largest:
        assert_alike(work, given(size // FACTOR), given(size), told=told)
        size *= FACTOR


def assert_alike(
    work: Callable[[T], object], small: T, large: T, *, noticeable: float = NOTICEABLE, told: str = ""
) -> None:
    """Check that the larger input does not take many times as long, if it takes more than `noticeable` seconds."""
    if _cpu_seconds(work, large) > noticeable:
        before = max(_cpu_seconds(work, small, times=3), noticeable / MOST_GROWTH)
        growth = _cpu_seconds(work, large, times=3) / before
        assert growth < MOST_GROWTH, (
            f"{told}: the larger input takes {growth:.0f} times as long ({before * growth:.3f} s)"
        )


def repeated(piece: str, size: int, *, end: str = "") -> str:
    """A piece of text repeated up to so many characters, and what follows it."""
    return (piece * (size // len(piece) + 1))[:size] + end


def _cpu_seconds(work: Callable[[T], object], given: T, *, times: int = 1) -> float:
    """CPU seconds of this process: the least of several measurements."""
    return min(_measured(work, given) for _ in range(times))


def _measured(work: Callable[[T], object], given: T) -> float:
    collects = gc.isenabled()
    gc.disable()  # as timeit does: a collection looks through everything that other tests left
    began = time.process_time()
    try:
        work(given)
        return time.process_time() - began
    finally:
        if collects:
            gc.enable()
