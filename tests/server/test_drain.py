"""A server that is told to stop, and the one that continues its runs: what requests in progress and followers see."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.held_calls import write_held_project
from tests.support.loopback import LOOPBACK
from tests.support.served import PATIENCE, Served, served
from tests.support.waiting import wait_until

Event = dict[str, Any]


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[socket.socket]:
    """A project, and the socket to which its tool connects."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        write_held_project(tmp_path, listening)
        yield listening


def submit(server: Served, **body: object) -> str:
    response = server.request("POST", "/agent/runs", json={"message": "say hello", "agent": "one", **body})
    assert response.status_code == 202, response.text
    run_id: str = response.json()["run_id"]
    return run_id


def follow(server: Served, run_id: str, last: str | None = None, calling: threading.Event | None = None) -> list[Event]:
    """Read the events of a run until the stream ends, each with its id; `calling` is set at a tool call."""
    headers = {"last-event-id": last} if last else {}
    url = f"{server.url}/agent/runs/{run_id}/events"
    events: list[Event] = []
    with httpx2.stream("GET", url, headers=headers, timeout=PATIENCE, **LOOPBACK) as response:
        assert response.status_code == 200
        fields: dict[str, str] = {}
        for line in response.iter_lines():
            name, _, value = line.partition(": ")
            if line:
                fields[name] = value
            else:
                events += [fields] if "data" in fields else []
                if calling is not None and fields.get("event") == "tool_call":
                    calling.set()
                fields = {}
    return events


def ids(events: list[Event]) -> list[int]:
    return [int(event["id"]) for event in events if "id" in event]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_followers_reconnect_to_the_next_process_and_get_each_numbered_event_once(
    tmp_path: Path, gate: socket.socket, number: int
) -> None:
    with ThreadPoolExecutor(3) as threads:
        with served(tmp_path) as server:
            run_id = submit(server, conversation_id="c1")
            first_call, _ = gate.accept()
            waiting = submit(server, conversation_id="c1", queue=True)
            calling = threading.Event()
            begun_events = threads.submit(follow, server, run_id, None, calling)
            no_events = threads.submit(follow, server, waiting)
            assert calling.wait(PATIENCE)
            wait_until(
                lambda: server.get("/agent/runs")["runs"][1]["status"] == "running" and streams(server, 2),
                "the run has begun, and both are followed",
            )
            assert server.stop(number) == 0
            first_call.close()
        begun, none = begun_events.result(PATIENCE), no_events.result(PATIENCE)
        assert not any("Traceback" in line or "ERROR" in line for line in server.output)
        assert {event["event"] for event in begun} >= {"route", "tool_call"}
        assert "done" not in {event["event"] for event in begun}, "the run has not ended"
        assert none == [], "the other has not begun"
        with served(tmp_path) as server:
            call, _ = gate.accept()
            rest = threads.submit(follow, server, run_id, str(ids(begun)[-1]))
            call.close()
            ended = rest.result(PATIENCE)
            assert ended[-1]["event"] == "done"
            assert ids(begun) + ids(ended) == [*range(1, ids(ended)[-1] + 1)]
            call, _ = gate.accept()
            call.close()
            assert follow(server, waiting)[-1]["event"] == "done"
            assert [run["status"] for run in server.get("/agent/runs")["runs"]] == ["completed", "completed"]
            assert server.stop(number) == 0


def streams(server: Served, number: int) -> bool:
    """Return whether this many event streams are open."""
    text = server.request("GET", "/metrics").text
    return f'agentsd_server_streams{{http_route="/agent/runs/{{run_id}}/events"}} {number}.0' in text


def test_a_chat_in_progress_is_answered_before_the_server_stops(tmp_path: Path, gate: socket.socket) -> None:
    with served(tmp_path) as server, ThreadPoolExecutor(1) as threads:
        body = {"message": "say hello", "agent": "one"}
        chat = threads.submit(server.request, "POST", "/agent/chat", json=body)
        call, _ = gate.accept()
        server.process.send_signal(signal.SIGTERM)
        server.wait_until_refused()
        call.close()
        answered = chat.result(PATIENCE)
        assert (answered.status_code, "hello" in answered.json()["response"]) == (200, True)
        assert server.process.wait(PATIENCE) == 0


def test_a_streamed_chat_ends_early_and_its_run_can_be_followed_elsewhere(tmp_path: Path, gate: socket.socket) -> None:
    with served(tmp_path) as server:
        body = {"message": "say hello", "agent": "one", "stream": True}
        with httpx2.stream("POST", f"{server.url}/agent/chat", json=body, timeout=PATIENCE, **LOOPBACK) as response:
            call, _ = gate.accept()
            chunks = response.iter_text()
            text = ""
            while "event: tool_call" not in text:
                text += next(chunks)
            server.process.send_signal(signal.SIGTERM)
            text += "".join(chunks)
        assert "event: done" not in text
        assert "event: error" not in text
        run_id = response.headers["x-agentsd-run-id"]
        assert server.process.wait(PATIENCE) == 0
        call.close()
    with served(tmp_path) as server:
        call, _ = gate.accept()
        call.close()
        assert follow(server, run_id)[-1]["event"] == "done"
