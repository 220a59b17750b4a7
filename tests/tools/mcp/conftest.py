"""Fixtures of the tests of MCP servers."""

from __future__ import annotations

import pytest


@pytest.fixture
def patient_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls wait longer for a server that starts again: under load, a program may need more than 3 seconds."""
    monkeypatch.setattr("framework.tools.mcp.client._CONNECT_WAIT_SECONDS", 20.0)
