"""Runs and their streams when `agentsd serve` stops and starts again."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.support.loopback import LOOPBACK
from tests.support.projects import agent, write
from tests.support.served import PATIENCE, Served, served

ASKS = agent("one", model="offline", skill_policy="{allow: [echo], ask: [echo]}")


@contextmanager
def stream(server: Served, run_id: str, after: str = "0") -> Iterator[Iterator[dict[str, str]]]:
    """Follow a run through its pauses; yield its numbered events as their fields."""
    url, headers = f"{server.url}/agent/runs/{run_id}/events?wait=true", {"last-event-id": after}
    with httpx2.stream("GET", url, headers=headers, timeout=PATIENCE, **LOOPBACK) as response:
        assert response.status_code == 200
        yield _fields(response.iter_lines())


def _fields(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        else:
            if "id" in fields:
                yield fields
            fields = {}


def submit(server: Served, message: str) -> dict[str, Any]:
    response = server.request("POST", "/agent/runs", json={"message": message})
    assert response.status_code == 202, response.text
    found: dict[str, Any] = response.json()
    return found


def test_a_stopping_server_ends_streams_and_a_reconnect_to_the_next_one_continues(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/one.yaml": ASKS})
    with served(tmp_path) as server:
        run = submit(server, "echo hello")
        with stream(server, run["run_id"]) as events:
            seen = [next(events) for _ in range(4)]
            assert [event["event"] for event in seen] == ["route", "tool_call", "confirm_required", "done"]
            assert server.stop() == 0
            assert list(events) == [], "the stream ended in order"
    with served(tmp_path) as server, ThreadPoolExecutor(1) as threads:
        with stream(server, run["run_id"], after=seen[-1]["id"]) as events:
            rest = threads.submit(list, events)
            (waiting,) = server.get("/agent/approvals")["approvals"]
            decisions = {waiting["pending"][0]["id"]: {"type": "approve"}}
            path = f"/agent/runs/{run['run_id']}/decisions"
            assert server.request("POST", path, json={"decisions": decisions}).status_code == 202
            numbers = [int(event["id"]) for event in [*seen, *rest.result(PATIENCE)]]
        assert numbers == [*range(1, len(numbers) + 1)]
        assert server.get(f"/agent/runs/{run['run_id']}")["output"] == "hello"


def test_unknown_ids_never_leave_their_route(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/one.yaml": ASKS})
    with served(tmp_path) as server:
        for path in ("runs/..%2f..%2fetc", "runs/%2e%2e/config", "conversations/..%2fruns", "runs//events", "runs/"):
            response = server.request("GET", f"/agent/{path}")
            assert response.status_code == 404, path
            assert response.json()["error"]["type"] == "not_found_error"
