"""Exponential backoff with jitter: the wait before a retry."""

from __future__ import annotations

import random

_MAX_DOUBLINGS = 64
"""Keeps the power within a float; every `cap` is reached before."""


def backoff(attempt: int, *, base: float, cap: float, spread: float = 1.0) -> float:
    """Return the wait before a retry, in seconds: exponential, capped and random.

    The upper bound is `base * 2**attempt`, and never more than `cap`. The wait is uniformly distributed over the last
    `spread` of it, so that clients that failed together do not retry together. The default is "full jitter", from 0 to
    the bound; a `spread` of 0.5 is "equal jitter". Both are compared in Marc Brooker, "Exponential Backoff And Jitter",
    AWS Architecture Blog, 2015: full jitter causes the fewest calls under contention.

    Args:
        attempt: number of earlier retries, so 0 for the first.
        base: upper bound of the first wait, in seconds.
        cap: upper bound of every wait, in seconds.
        spread: random share of the bound, from 0 (none) to 1 (all of it).
    """
    bound = min(cap, base * 2.0 ** min(attempt, _MAX_DOUBLINGS))
    return bound * random.uniform(1 - spread, 1)
