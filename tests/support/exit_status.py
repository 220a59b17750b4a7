"""A hook of pytest for `.ci/test`, which repeats failed tests only if nothing worse happened."""

from __future__ import annotations

import pytest


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Save how the run ended."""
    cache = getattr(session.config, "cache", None)  # missing with `-p no:cacheprovider`
    if cache and not hasattr(session.config, "workerinput"):  # a worker of xdist knows only its own tests
        cache.set("agentsd/exit_status", int(exitstatus))
