"""Readers of runs on a real server: they leave, come back, read nothing, or are many. The runs do not notice."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import aiohttp
import pytest

from tests.support.cases import FACTOR
from tests.support.projects import agent, write
from tests.support.served import Served, served
from tests.support.sse_readers import Reader, check_complete, http_session
from tests.support.wire import Answer, calls, says, stalled, wire_server

T = TypeVar("T")
KILLED_READERS = 5 * FACTOR
AT_ONCE = 5
"""Runs in progress at the same time."""
CHATS = 500
KILLED_SERVERS = FACTOR
PAIRS = 3 * FACTOR
ANSWER = " ".join(f"word-{number}" for number in range(60))
LONG = " ".join(["0123456789abcdef" * 100] * 300)
"""An answer that no socket buffer takes."""
SUM = {"message": "what is 17 * 23"}


def respond(body: dict[str, Any]) -> Answer:
    """Call the calculator, and then answer in many pieces."""
    last = body["messages"][-1]
    if last["role"] == "user":
        return calls(("calculator", {"expression": "1+1"}))
    return says(ANSWER)


@asynccontextmanager
async def live_server(root: Path, answers: Callable[[dict[str, Any]], Answer]) -> AsyncIterator[Served]:
    """Serve one agent whose model streams its answers."""
    async with wire_server(answers) as wire:
        write_project(root, wire.url)
        with served(root) as server:
            yield server


def write_project(root: Path, url: str) -> None:
    """Write a project with one agent, whose model is at this URL."""
    alias = f"{{live: {{model: openai/m, base_url: '{url}', api_key: k}}}}"
    keys = {"model": "live", "skill_policy": "{allow: [calculator]}"}
    write(root, {"agents.d/one.yaml": agent("one", **keys), "agentsd.yaml": f"models: {alias}\n"})


async def killed_reader(server: Served, chance: Random, place: int) -> Reader:
    """Chat with a reader that loses its connection after `place` events, and again later; return all it got."""
    async with http_session(server.url) as session:
        reader, key = Reader(session), f"key-{place}-{chance.random()}"
        if place == 0:
            await leave_before_the_response(server, key)
        await reader.chat(SUM, place or None, key)
        while not reader.is_done:
            await reader.follow(chance.choice((1, 2, 5, None)))
        return reader


async def leave_before_the_response(server: Served, key: str) -> None:
    """Send the request of `Reader.chat`, and close the connection at once."""
    body = json.dumps({**SUM, "stream": True}).encode()
    head = f"POST /agent/chat HTTP/1.1\r\nhost: 127.0.0.1\r\nidempotency-key: {key}\r\ncontent-length: {len(body)}\r\n"
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(f"{head}content-type: application/json\r\n\r\n".encode() + body)
    await writer.drain()
    writer.transport.abort()


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of coroutines that run at the same time."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in work]
    return [task.result() for task in tasks]


def test_a_reader_killed_at_any_event_gets_every_event_once_and_the_run_ends_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        chance = Random(7)
        async with live_server(tmp_path, respond) as server, http_session(server.url) as session:
            whole = Reader(session)
            await whole.chat(SUM)
            check_complete(whole, ANSWER)
            names, count = [event["event"] for event in whole.events], len(whole.segments[0])
            for first in range(0, KILLED_READERS, AT_ONCE):
                places = [place % (count + 1) for place in range(first, first + AT_ONCE)]
                for reader in await together(killed_reader(server, chance, place) for place in places):
                    check_complete(reader, ANSWER)
                    assert [event["event"] for event in reader.events] == names
                    found = server.get(f"/agent/runs/{reader.run_id}")
                    assert (found["status"], found["output"], len(found["tool_calls"])) == ("completed", ANSWER, 1)
            runs = server.get("/agent/runs?limit=100")["runs"]
            assert len(runs) == min(KILLED_READERS + 1, 100), "no request of a lost connection ran twice"

    asyncio.run(main())


def test_ten_followers_who_come_at_different_times_see_the_same_events(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_server(tmp_path, respond) as server, http_session(server.url) as session:
            first = Reader(session)
            await first.chat(SUM, 1)

            async def follow(wait_for: int) -> Reader:
                """Begin when the run has emitted a number of events."""
                if wait_for:
                    await Reader(session, first.run_id).follow(wait_for)
                reader = Reader(session, first.run_id)
                await reader.follow()
                return reader

            readers = await together(follow(number % 5) for number in range(10))
            for reader in readers:
                check_complete(reader, ANSWER)
                assert reader.events == readers[0].events

    asyncio.run(main())


def test_a_reader_that_reads_nothing_costs_the_run_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        ratios = []
        async with live_server(tmp_path, lambda _: says(LONG)) as server, http_session(server.url) as session:
            for number in range(PAIRS + 1):
                alone = await elapsed(server, session, submitted(server, None))
                with stalled_reader(server) as run_id:
                    stalled = await elapsed(server, session, run_id)
                if number:  # the first one warms up
                    ratios.append(stalled / alone)
        assert min(ratios) < 2, ratios  # the least: other work of the machine slows some of them down

    asyncio.run(main())


async def elapsed(server: Served, session: aiohttp.ClientSession, run_id: str) -> float:
    """Wait for the end of a run, and return its active time in milliseconds."""
    reader = Reader(session, run_id)
    await reader.follow()
    check_complete(reader, LONG)
    found = server.get(f"/agent/runs/{run_id}")
    return float(found["elapsed_ms"])


@contextmanager
def stalled_reader(server: Served) -> Iterator[str]:
    """Begin a chat, and read nothing but the id of its run."""
    body = json.dumps({**SUM, "stream": True}).encode()
    head = f"POST /agent/chat HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n"
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(f"{head}content-type: application/json\r\n\r\n".encode() + body)
        response = b""
        while b"\r\n\r\n" not in response:
            response += connection.recv(1)
        yield response.partition(b"x-agentsd-run-id: ")[2].partition(b"\r")[0].decode()


def test_500_chats_at_once_succeed(tmp_path: Path) -> None:
    async def chat(session: aiohttp.ClientSession) -> Reader:
        reader = Reader(session)
        await reader.chat(SUM)
        return reader

    async def main(server: Served) -> list[Reader]:
        async with http_session(server.url) as session:
            return await together(chat(session) for _ in range(CHATS))

    one = agent("one", model="offline", skill_policy="{allow: [calculator]}")
    write(tmp_path, {"agents.d/one.yaml": one, "agentsd.yaml": 'store: {url: "memory:"}\n'})
    with served(tmp_path) as server:
        readers = asyncio.run(main(server))
        for reader in readers:
            check_complete(reader, "391")
        assert len({reader.run_id for reader in readers}) == CHATS
        assert server.stop() == 0
    assert not [line for line in server.output if "ERROR" in line]


@pytest.mark.parametrize("place", ["after 202", "in the first step"])
def test_runs_of_a_server_that_is_killed_complete_after_the_restart(tmp_path: Path, place: str) -> None:
    async def main(root: Path) -> None:
        is_restarted, asked = False, asyncio.Event()

        def answers(body: dict[str, Any]) -> Answer:
            asked.set()
            return respond(body) if is_restarted else stalled()

        async with wire_server(answers) as wire:
            write_project(root, wire.url)
            with served(root) as server:
                runs = [submitted(server, conversation) for conversation in ("c", "c", None, "c")]
                if place == "in the first step":
                    await asked.wait()
                server.process.kill()
            is_restarted = True
            with served(root) as server:
                await check_ends(server, runs)
                turns = server.get("/agent/runs?conversation_id=c")["runs"]
                assert [(run["run_id"], run["turn"]) for run in turns] == [(runs[3], 3), (runs[1], 2), (runs[0], 1)]

    for number in range(KILLED_SERVERS):
        asyncio.run(main(tmp_path / str(number)))


def submitted(server: Served, conversation: str | None) -> str:
    """Submit a run, and return its id."""
    body = {**SUM, "queue": True, **({"conversation_id": conversation} if conversation else {})}
    response = server.request("POST", "/agent/runs", json=body)
    assert response.status_code == 202, response.text
    run_id: str = response.json()["run_id"]
    return run_id


async def check_ends(server: Served, runs: Sequence[str]) -> None:
    """Wait for the ends of runs, and check their events."""
    async with http_session(server.url) as session:
        for run_id in runs:
            reader = Reader(session, run_id)
            await reader.follow()
            check_complete(reader, ANSWER)
