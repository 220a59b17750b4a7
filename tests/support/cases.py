"""Number of generated cases: few in `make test`, many in `make test-long`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

FACTOR = int(os.environ.get("TEST_CASES", "1"))


def cases(number: int) -> settings:
    """Hypothesis settings for this many cases, times `TEST_CASES`; a loaded machine is not a finding."""
    return settings(max_examples=number * FACTOR, deadline=None, suppress_health_check=[HealthCheck.too_slow])
