"""Random bodies on every route that starts runs: none is a server error, or starts a run that it does not ask for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import cases
from tests.support.loopback import LOOPBACK
from tests.support.projects import agent, write
from tests.support.served import PATIENCE, Served, served

WORDS = [
    "user",
    "assistant",
    "system",
    "tool",
    "text",
    "image_url",
    "file",
    "function",
    "json_schema",
    "one",
    "auto",
    "data:,",
]
KEYS = [
    "role",
    "content",
    "type",
    "text",
    "image_url",
    "url",
    "file",
    "tool_calls",
    "id",
    "function",
    "schema",
    "format",
]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=6)
    | st.sampled_from(WORDS)
)
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=10,
)
USER = {"role": "user", "content": "hi"}
VALID: Mapping[str, dict[str, Any]] = {
    "/agent/chat": {"message": "hi", "agent": "one", "inputs": {}, "messages": None, "stream": False, "locale": "en"},
    "/agent/runs": {"message": None, "messages": [USER], "max_tokens": 5000, "user": "ann", "queue": True},
    "/v1/chat/completions": {
        "model": "one",
        "messages": [USER],
        "stream": False,
        "temperature": 1,
        "stop": ["."],
        "metadata": {},
        "response_format": {"type": "text"},
        "stream_options": None,
    },
    "/v1/responses": {"model": "auto", "input": [USER], "instructions": "", "text": {}, "metadata": {}, "stream": True},
    "/agui/one": {
        "threadId": "t",
        "runId": "r",
        "messages": [{"id": "m", **USER}],
        "tools": [],
        "context": [],
        "state": {},
        "forwardedProps": {},
        "resume": None,
    },
    "/mcp": {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}},
    },
}
"""A valid body for each route. Up to two of its fields are replaced."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = {"agentsd.yaml": 'store: {url: "memory:"}\n'}
    root = tmp_path_factory.mktemp("random")
    with served(write(root, {"agents.d/one.yaml": agent("one", model="offline"), **settings})) as found:
        yield found


@st.composite
def bodies(draw: st.DrawFn, path: str) -> Any:
    """Return a valid body of which up to two fields are replaced, or rarely anything at all."""
    if draw(st.integers(0, 9)) == 0:
        return draw(ANYTHING)
    names = st.sampled_from([*VALID[path], "unknown"])
    return {**VALID[path], **draw(st.dictionaries(names, ANYTHING, max_size=2))}


@pytest.mark.parametrize("path", VALID)
def test_a_random_body_is_answered_and_starts_only_what_it_asks_for(server: Served, path: str) -> None:
    with httpx2.Client(base_url=server.url, timeout=PATIENCE, **LOOPBACK) as client:

        def runs() -> set[str]:
            return {run["run_id"] for run in client.get("/agent/runs?limit=100").json()["runs"]}

        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        statuses = set[int]()

        @cases(5)
        @given(body=bodies(path))
        def send(body: Any) -> None:
            before = runs()
            response = client.post(path, content=json.dumps(body).encode(), headers=headers)
            assert response.status_code < 500, response.text
            assert "internal error" not in response.text
            started = len(runs() - before)
            assert started == 0 if response.status_code in {400, 404, 413} or path == "/mcp" else started <= 1
            statuses.add(response.status_code)

        send()
    assert 400 in statuses
