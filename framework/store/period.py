"""A period of time, divided into steps of local clock time, such as days."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from math import floor
from typing import Literal, get_args

Step = Literal["1h", "3h", "1d"]
STEPS: tuple[Step, ...] = get_args(Step)
STEP_SECONDS: dict[Step, int] = {"1h": 3600, "3h": 10_800, "1d": 86_400}
_SCAN_SECONDS = 21_600
"""Interval at which changes of the clock are looked for. No zone changes its clock twice in it."""


@dataclass(frozen=True, slots=True)
class Period:
    """A period and its steps. Each step has a number; one in which the clock changes is shorter or longer."""

    since: float
    """Begin, as Unix time."""
    until: float
    """End, as Unix time, which is not part of the period."""
    seconds: int
    """Length of a step in local time."""
    offsets: tuple[tuple[float, int], ...]
    """Difference to UTC in seconds, and the Unix time from which it applies; sorted."""
    starts: tuple[tuple[int, float], ...]
    """The number and the Unix time of each step's start; the first one may be before the period."""

    @classmethod
    def of(cls, since: float, until: float, step: Step, zone: tzinfo) -> Period:
        """Return the period between two Unix times, divided into steps of the zone's clock."""
        seconds = STEP_SECONDS[step]
        offsets = tuple(_offsets(since, until, zone))
        steps = cls(since, until, seconds, offsets, ())
        first, last = steps.number(since), steps.number(max(since, until - 1e-6))
        starts = [(number, _start(number * seconds, zone)) for number in range(first, last + 1)]
        following = [start for _, start in starts[1:]] + [float("inf")]
        # a step that the clock skips has no time
        starts = [one for one, end in zip(starts, following, strict=True) if one[1] < end]
        return cls(since, until, seconds, offsets, tuple(starts))

    @property
    def previous_since(self) -> float:
        """Begin of the period of the same length before it."""
        return self.since - (self.until - self.since)

    def number(self, at: float) -> int:
        """Return the number of the step that contains a Unix time."""
        offset = next((offset for begin, offset in reversed(self.offsets) if at >= begin), self.offsets[0][1])
        return floor((at + offset) / self.seconds)


def _offset(at: float, zone: tzinfo) -> int:
    difference = datetime.fromtimestamp(at, zone).utcoffset()
    return int(difference.total_seconds()) if difference else 0


def _start(local: int, zone: tzinfo) -> float:
    """Return the Unix time at which a zone's clock first shows a time, given as if it were UTC."""
    return datetime.fromtimestamp(local, UTC).replace(tzinfo=zone).timestamp()


def _offsets(since: float, until: float, zone: tzinfo) -> Iterator[tuple[float, int]]:
    """Yield the differences to UTC in a period, each with the Unix time from which it applies."""
    at, offset = since, _offset(since, zone)
    yield since, offset
    while at < until:
        following = min(at + _SCAN_SECONDS, until)
        if (changed := _offset(following, zone)) != offset:
            yield _first_with(changed, at, following, zone), changed
        at, offset = following, changed


def _first_with(offset: int, before: float, after: float, zone: tzinfo) -> float:
    """Return the whole second from which a difference to UTC applies; it does at `after`, not at `before`."""
    low, high = floor(before), floor(after) + (after > floor(after))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _offset(middle, zone) == offset else (middle, high)
    return float(high)
