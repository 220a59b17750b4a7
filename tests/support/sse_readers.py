"""Readers of the event streams of a server that lose their connection, or stop reading."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

Event = dict[str, Any]
"""The data of one event; numbered ones have a `seq` above 0."""
PATIENCE = 60
"""Timeout of a whole stream in seconds, for streams that should be short."""


@asynccontextmanager
async def http_session(url: str) -> AsyncIterator[aiohttp.ClientSession]:
    """Open an HTTP client of a server, with any number of connections."""
    limits = aiohttp.ClientTimeout(total=PATIENCE)
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0), timeout=limits) as session:
        yield session


@dataclass
class Reader:
    """Reads the events of one run over as many connections as it takes."""

    session: aiohttp.ClientSession
    run_id: str = ""
    segments: list[list[Event]] = field(default_factory=list)
    """The events of each connection."""
    errors: list[Event] = field(default_factory=list)
    """The errors that ended connections."""

    @property
    def events(self) -> list[Event]:
        """The numbered events of all connections."""
        return [event for segment in self.segments for event in segment if event["seq"]]

    @property
    def is_done(self) -> bool:
        """Whether the last event has arrived."""
        return any(event["event"] == "done" for event in self.events)

    async def chat(self, body: Event, cut_after: int | None = None, key: str | None = None) -> None:
        """Send a message and read its events, up to a number of them if given; 0 does not even read the status."""
        headers = {"idempotency-key": key} if key else {}
        await self._read("POST", "/agent/chat", cut_after, json={**body, "stream": True}, headers=headers)

    async def follow(self, cut_after: int | None = None) -> None:
        """Continue after the last event, on a new connection."""
        headers = {"last-event-id": str(self.events[-1]["seq"])} if self.events else {}
        await self._read("GET", f"/agent/runs/{self.run_id}/events", cut_after, headers=headers)

    async def _read(self, method: str, path: str, cut_after: int | None, **options: Any) -> None:
        segment: list[Event] = []
        self.segments.append(segment)
        async with self.session.request(method, path, **options) as response:
            connection = response.connection
            assert response.status == 200, await response.text()
            self.run_id = response.headers["x-agentsd-run-id"]
            if cut_after != 0:
                async for event in _events_of(response):
                    (self.errors if event["event"] == "error" else segment).append(event)
                    if len(segment) == cut_after:
                        break
            if connection is not None and connection.transport is not None:
                connection.transport.abort()  # nothing says goodbye


async def _events_of(response: aiohttp.ClientResponse) -> AsyncIterator[Event]:
    number = 0
    async for line in response.content:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name == "id":
            number = int(value)
        elif name == "data":
            data = json.loads(value)
            assert data.get("seq", 0) == number
            yield data
            number = 0


def check_complete(reader: Reader, answer: str) -> None:
    """Check that each numbered event arrived once, and that every connection showed a beginning of the answer."""
    assert reader.errors == []
    numbers = [event["seq"] for event in reader.events]
    assert numbers == [*range(1, len(numbers) + 1)], reader.segments
    assert reader.events[-1]["output"] == answer
    assert [event["text"] for event in reader.events if event["event"] == "content"][-1] == answer
    for segment in reader.segments:
        for message_id in {event["message_id"] for event in _deltas(segment)}:
            shown = "".join(event["text"] for event in _deltas(segment) if event["message_id"] == message_id)
            assert answer.startswith(shown), segment


def _deltas(segment: Sequence[Event]) -> list[Event]:
    return [event for event in segment if event["event"] == "content" and not event["seq"]]
