"""Responses of server-sent events: headers, heartbeats, clients that leave, errors, and the end of the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.requests import Request

from framework import Runtime
from framework.server.event_stream import EventStreamResponse, OpenStreams, encode_event
from framework.server.identity import LOCAL, Identity, check_access
from framework.server.routes import runtime_access_check, served_routes, server_state
from framework.server.runs_api import encode_run
from framework.testing import ScriptedModel
from framework.types.errors import ModelError, StoreError
from framework.types.events import ContentReceived, Event
from tests.support.projects import agent, write

NOBODY = Identity("nobody")
SCOPE = {"type": "http", "method": "GET", "path": "/stream", "headers": []}


class Client:
    """The other side of a response: collects what is sent, and leaves on request."""

    def __init__(self) -> None:
        self.started: dict[str, Any] = {}
        self.text = ""
        self.ended = False
        self.sent = asyncio.Condition()
        self.left = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.started = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        async with self.sent:
            self.text += message["body"].decode()
            self.ended = not message["more_body"]
            self.sent.notify_all()

    async def wait_for(self, text: str, count: int = 1) -> None:
        async with self.sent:
            await self.sent.wait_for(lambda: self.text.count(text) >= count)


class Source:
    """Events of which the last comes on request."""

    def __init__(self) -> None:
        self.go, self.closed = asyncio.Event(), False

    async def events(self) -> AsyncGenerator[bytes]:
        try:
            yield encode_event({"text": "ü\n"}, "first", 1)
            await self.go.wait()
            yield encode_event({}, "last")
        finally:
            self.closed = True


def respond(
    events: AsyncGenerator[bytes], client: Client, identities: Sequence[Identity] = (LOCAL,), **options: Any
) -> asyncio.Task[None]:
    """Start a response. The client has the identities one after the other at each check, and keeps the last one."""
    request, remaining = Request(dict(SCOPE)), list(identities)
    check_access(lambda _: remaining.pop(0) if len(remaining) > 1 else remaining[0], request)
    stream = EventStreamResponse(request, events, **options)
    return asyncio.create_task(stream(SCOPE, client.receive, client.send))


def test_events_are_sent_with_headers_that_keep_proxies_from_buffering() -> None:
    async def main() -> None:
        client, source = Client(), Source()
        source.go.set()
        await respond(source.events(), client, headers={"x-run": "run_1"})
        assert client.started == {
            "cache-control": "no-store",
            "x-accel-buffering": "no",
            "x-run": "run_1",
            "content-type": "text/event-stream; charset=utf-8",
        }
        assert client.text == 'retry: 1000\n\nid: 1\nevent: first\ndata: {"text":"ü\\n"}\n\nevent: last\ndata: {}\n\n'
        assert client.ended
        assert source.closed

    asyncio.run(main())


def test_comments_keep_an_idle_stream_open() -> None:
    async def main() -> None:
        client, source = Client(), Source()
        response = respond(source.events(), client, heartbeat=0.001)
        await client.wait_for(": still here\n\n", count=3)
        source.go.set()
        await response
        assert client.text.endswith("event: last\ndata: {}\n\n"), "a comment never interrupts a wait"

    asyncio.run(main())


def test_a_client_that_leaves_closes_the_source_and_is_reported() -> None:
    async def main() -> None:
        client, source, reported = Client(), Source(), []

        async def report() -> None:
            reported.append(source.closed)

        response = respond(source.events(), client, on_leave=report)
        await client.wait_for("first")
        client.left.set()
        await response
        assert reported == [True]
        assert not client.ended

    asyncio.run(main())


@pytest.mark.parametrize(("identities", "received"), [((LOCAL, NOBODY), ""), ((LOCAL, LOCAL, NOBODY), "first")])
def test_a_client_that_loses_its_access_gets_no_more_events(identities: Sequence[Identity], received: str) -> None:
    async def main() -> None:
        client, source = Client(), Source()
        source.go.set()
        await respond(source.events(), client, identities)
        assert client.ended
        assert source.closed
        assert received in client.text
        assert "last" not in client.text

    asyncio.run(main())


def test_an_idle_client_that_loses_its_access_is_disconnected() -> None:
    async def main() -> None:
        client, source = Client(), Source()
        await respond(source.events(), client, (LOCAL, LOCAL, NOBODY), heartbeat=0.001)
        assert client.ended
        assert source.closed

    asyncio.run(main())


def test_a_stream_that_ends_reports_no_client_that_leaves() -> None:
    async def main() -> None:
        client, source, reported = Client(), Source(), []

        async def report() -> None:
            reported.append(1)

        source.go.set()
        await respond(source.events(), client, on_leave=report)
        assert reported == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ModelError("no: password=hunter2"), "model_error", "no: password=***"),
        (StoreError("host x"), "store_error", "the store of the server cannot read or save now; try again later"),
        (ZeroDivisionError("secret"), "error", "internal error; see the log of the server"),
    ],
)
def test_an_error_is_the_last_event(error: Exception, code: str, message: str) -> None:
    async def failing() -> AsyncGenerator[bytes]:
        yield encode_event({}, "first", 1)
        raise error

    async def main() -> None:
        client = Client()
        await respond(failing(), client)
        assert client.text.endswith(
            f'event: error\ndata: {{"event":"error","code":"{code}","type":"server_error","message":"{message}",'
            '"param":null}\n\n'
        )
        assert client.ended

    asyncio.run(main())


def test_closing_all_streams_ends_each_in_order() -> None:
    async def main() -> None:
        streams, reported = OpenStreams(), []

        async def report() -> None:
            reported.append(1)

        clients = [Client() for _ in range(3)]
        sources = [Source() for _ in range(3)]
        responses = [
            respond(source.events(), client, streams=streams, on_leave=report)
            for source, client in zip(sources, clients, strict=True)
        ]
        for client in clients:
            await client.wait_for("first")
        streams.close()
        await asyncio.wait(responses)
        assert all(client.ended for client in clients)
        assert all(source.closed for source in sources)
        assert reported == [], "the server left, not the client"
        late = Client()
        await respond(Source().events(), late, streams=streams)
        assert late.ended

    asyncio.run(main())


class Deaf(Client):
    """A client that reads the headers and then nothing."""

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.body" and message["body"].startswith(b"x"):
            await asyncio.Event().wait()
        await super().send(message)


async def large(closed: list[int], *chunks: bytes) -> AsyncGenerator[bytes]:
    try:
        for chunk in chunks:
            yield chunk
    finally:
        closed.append(1)


def test_a_client_that_reads_nothing_is_gone_after_a_while() -> None:
    async def main() -> None:
        closed: list[int] = []
        client = Deaf()
        await respond(large(closed, b"x"), client, idle=0.01, heartbeat=0.001)
        assert (closed, client.ended) == ([1], False)

    asyncio.run(main())


def test_large_events_are_sent_in_pieces_without_heartbeats_between_them() -> None:
    async def main() -> None:
        sizes: list[int] = []

        class Slow(Client):
            async def send(self, message: Any) -> None:
                await asyncio.sleep(0.002)
                sizes.append(len(message.get("body", b"")))
                await super().send(message)

        client = Slow()
        chunk = b"data: " + b"y" * 300_000 + b"\n\n"
        await respond(large([], chunk), client, heartbeat=0.001)
        assert chunk.decode() in client.text
        assert max(sizes) <= 32 * 1024

    asyncio.run(main())


def test_the_streams_that_wait_longest_end_once_all_together_hold_too_much() -> None:
    async def main() -> None:
        streams, closed = OpenStreams(max_held_bytes=250), list[int]()
        shared = b"x" * 100
        chunks = [shared, shared, b"x" * 100 + b"2", b"x" * 100 + b"3"]
        responses = [respond(large(closed, chunk), Deaf(), streams=streams) for chunk in chunks[:3]]
        await asyncio.wait(responses, timeout=0.01)
        assert (streams.held_bytes, closed) == (201, [])
        responses.append(respond(large(closed, chunks[3]), Deaf(), streams=streams))
        await asyncio.wait(responses[:2])
        assert (streams.held_bytes, closed) == (202, [1, 1])
        streams.close()
        await asyncio.wait(responses)
        assert (streams.held_bytes, len(closed)) == (0, 4)

    asyncio.run(main())


def test_readers_of_a_run_share_what_is_sent() -> None:
    async def events() -> AsyncGenerator[Event, None]:
        yield ContentReceived(run_id="run_1", seq=3, generation=1, message_id="m", text="a long text")

    async def main() -> None:
        streams = OpenStreams()
        readers = [encode_run(events(), streams) for _ in range(3)]
        first, second, third = [await anext(reader) for reader in readers]
        assert first is second is third
        for reader in readers:
            await reader.aclose()
        assert not streams.encoded

    asyncio.run(main())


# --- every protocol


class Unread(Client):
    """A client that reads the headers and then nothing."""

    def __init__(self, path: str, body: Any, headers: Mapping[str, str]) -> None:
        super().__init__()
        self.path, self.body = path, json.dumps(body).encode()
        given = {"host": "localhost", "content-type": "application/json", **headers}
        self.headers = [(name.encode(), value.encode()) for name, value in given.items()]
        self.blocked, self.bodies = asyncio.Event(), [self.body]

    async def receive(self) -> dict[str, Any]:
        if self.bodies:
            return {"type": "http.request", "body": self.bodies.pop(), "more_body": False}
        return await super().receive()

    async def send(self, message: Any) -> None:
        if len(message.get("body", b"")) > 1000:
            self.blocked.set()
            await asyncio.Event().wait()

    def request(self, app: FastAPI) -> asyncio.Task[None]:
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"",
            "headers": self.headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "scheme": "http",
        }
        return asyncio.create_task(app(scope, self.receive, self.send))


MODERN_MCP = {
    "accept": "application/json, text/event-stream",
    "mcp-protocol-version": "2026-07-28",
    "mcp-method": "tools/call",
    "mcp-name": "one",
}
MCP_CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {
        "name": "one",
        "arguments": {"message": "hi"},
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    },
}


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        ("/agent/chat", {"message": "hi", "stream": True}, {}),
        ("/v1/chat/completions", {"model": "one", "messages": [{"role": "user", "content": "hi"}], "stream": True}, {}),
        ("/v1/responses", {"model": "one", "input": "hi", "stream": True}, {}),
        ("/mcp", MCP_CALL, MODERN_MCP),
    ],
    ids=["agent", "chat completions", "responses", "mcp"],
)
def test_clients_of_every_protocol_that_read_nothing_share_one_limit(
    tmp_path: Path, path: str, body: Any, headers: dict[str, str]
) -> None:
    async def main() -> None:
        streams = OpenStreams(max_held_bytes=150_000)
        model = ScriptedModel(script=lambda _: "x" * 100_000)
        async with Runtime.open(tmp_path, models={"scripted": model}, watch=False, single_user=True) as runtime:
            app = FastAPI(openapi_url=None)
            state = server_state(runtime, runtime_access_check(runtime), streams)
            app.router.routes.extend(served_routes(state).routes)
            clients = [Unread(path, body, headers) for _ in range(3)]
            requests = []
            for client in clients:
                requests.append(client.request(app))
                await asyncio.wait_for(client.blocked.wait(), 30)
                assert 100_000 < streams.held_bytes < 150_000
            await asyncio.wait(requests[:2])
            assert not requests[2].done()
            clients[2].left.set()
            streams.close()
            requests[2].cancel()
            await asyncio.wait(requests)
            assert streams.held_bytes == 0

    write(tmp_path, {"agents.d/one.yaml": agent("one")})
    asyncio.run(main())
