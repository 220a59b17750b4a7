"""The wait before a retry: exponential, capped, and random within its spread."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from framework.types.http import backoff
from tests.support.cases import cases


@given(attempt=st.integers(0, 2000), base=st.floats(0.001, 10), cap=st.floats(0.1, 60), spread=st.floats(0, 1))
@cases(100)
def test_a_wait_lies_within_the_spread_below_its_bound(attempt: int, base: float, cap: float, spread: float) -> None:
    bound = min(cap, base * 2.0 ** min(attempt, 64))
    assert bound * (1 - spread) <= backoff(attempt, base=base, cap=cap, spread=spread) <= bound


def test_without_spread_the_waits_double_up_to_the_cap() -> None:
    waits = [backoff(attempt, base=0.5, cap=3.0, spread=0.0) for attempt in range(5)]
    assert waits == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_full_jitter_spreads_waits_from_zero_to_the_bound() -> None:
    waits = [backoff(3, base=1.0, cap=60.0) for _ in range(1000)]
    assert min(waits) < 1.0
    assert max(waits) > 7.0
