"""Fixtures of the tests that every store passes."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["memory", "database"])
def any_url(request: pytest.FixtureRequest, store_url: str) -> str | None:
    return None if request.param == "memory" else store_url
