"""Checks how the CPU time of work grows with its input. Ratios do not depend on the load of the machine."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T")

FIRST, FACTOR = 500, 4
MOST_GROWTH = 9.0
"""Largest accepted ratio of CPU times for 4 times the input: linear work has 4, quadratic work 16."""
ATTEMPTS = 3
"""Pairs of measurements: noise of a busy machine passes, quadratic growth fails each time."""
NOTICEABLE = 0.004
"""Shortest measured CPU time, in seconds; shorter ones are noise."""
_REFERENCE_SECONDS = 0.05
"""CPU time of a million additions on the machine for which the shortest times were chosen."""


def assert_linear(
    work: Callable[[T], object], given: Callable[[int], T], *, largest: int = 16 * FIRST, label: str = ""
) -> None:
    """Check that work grows no faster than its input.

    Args:
        work: the function to measure.
        given: returns an input of a given size.
        largest: the size to stop at. It is approached in steps, so that exponential work fails early.
        label: description of the input for the failure message.
    """
    size = FIRST
    while size <= largest:
        assert_alike(work, given(size // FACTOR), given(size), label=label)
        size *= FACTOR


def assert_alike(
    work: Callable[[T], object], small: T, large: T, *, noticeable: float = NOTICEABLE, label: str = ""
) -> None:
    """Check that `large` needs less than `MOST_GROWTH` times the CPU time, unless below `noticeable` seconds.

    While the machine is slow, work with a fixed bound takes longer, so `noticeable` is longer, too.
    """
    seconds = _cpu_seconds(work, large)
    if seconds <= noticeable or seconds < MOST_GROWTH * _cpu_seconds(work, small, times=2):
        return
    growth = math.inf
    for _ in range(ATTEMPTS):
        least = noticeable * _slowness()
        before = max(_cpu_seconds(work, small, times=3), least / MOST_GROWTH)
        seconds = _cpu_seconds(work, large, times=3)
        growth = min(growth, seconds / before)
        if growth < MOST_GROWTH:
            return
    pytest.fail(f"{label}: the larger input takes {growth:.0f} times as long ({seconds:.3f} s)")


def repeated(piece: str, size: int, *, end: str = "") -> str:
    """Return `piece` repeated up to `size` characters, followed by `end`."""
    return (piece * (size // len(piece) + 1))[:size] + end


def _slowness() -> float:
    """Return how many times longer work takes now than where the shortest times were chosen, at least 1."""
    seconds = _cpu_seconds(lambda numbers: sum(number + 1 for number in numbers), range(1_000_000))
    return max(1.0, seconds / _REFERENCE_SECONDS)


def _cpu_seconds(work: Callable[[T], object], given: T, *, times: int = 1) -> float:
    """Return the least CPU time of several measurements, in seconds."""
    return min(_measured(work, given) for _ in range(times))


def _measured(work: Callable[[T], object], given: T) -> float:
    collects = gc.isenabled()
    gc.disable()  # as timeit does: a collection would scan the objects of other tests
    began = time.process_time()
    try:
        work(given)
        return time.process_time() - began
    finally:
        if collects:
            gc.enable()
