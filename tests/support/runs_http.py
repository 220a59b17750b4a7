"""Requests about runs to a server, and the events of their streams."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from framework.llm.client import ModelClient
from tests.support.loopback import LOOPBACK
from tests.support.serving import Serving, serving
from tests.support.submitted_runs import PATIENCE, Gate

Body = Mapping[str, Any]


@dataclass(frozen=True)
class ServerEvent:
    """One server-sent event."""

    id: int | None
    name: str
    data: dict[str, Any]


class RunClient:
    """An HTTP client of one server, with one key."""

    def __init__(self, serving: Serving, key: str | None = None) -> None:
        self.serving = serving
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.http = httpx2.AsyncClient(base_url=serving.url, headers=headers, timeout=PATIENCE, **LOOPBACK)

    async def get(self, path: str, status: int = 200, **options: Any) -> Any:
        """Send a GET request below `/agent`, check the status, and return the JSON body."""
        return await self._send("GET", path, status, **options)

    async def post(self, path: str, body: Body | None = None, status: int = 200, **options: Any) -> Any:
        """Send a POST request below `/agent`, check the status, and return the JSON body."""
        return await self._send("POST", path, status, json=body, **options)

    async def delete(self, path: str, status: int = 200) -> Any:
        """Send a DELETE request below `/agent`, check the status, and return the JSON body."""
        return await self._send("DELETE", path, status)

    async def error(self, method: str, path: str, status: int, **options: Any) -> dict[str, Any]:
        """Send a request that must fail with a status, and return the error."""
        error: dict[str, Any] = (await self._send(method, path, status, **options))["error"]
        assert set(error) >= {"code", "type", "message", "param"}
        return error

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, **options: Any
    ) -> AsyncIterator[tuple[httpx2.Response, AsyncIterator[ServerEvent]]]:
        """Open a stream of events; yield the response and the events."""
        async with self.http.stream(method, f"/agent/{path}", **options) as response:
            yield response, events_in(response.aiter_lines())

    async def events(self, path: str, **options: Any) -> list[ServerEvent]:
        """Return all events of a stream."""
        async with self.stream("GET", path, **options) as (_, events):
            return [event async for event in events]

    async def _send(self, method: str, path: str, status: int, **options: Any) -> Any:
        response = await self.http.request(method, f"/agent/{path}", **options)
        assert response.status_code == status, response.text
        return response.json()


async def events_in(lines: AsyncIterator[str]) -> AsyncIterator[ServerEvent]:
    """Yield the events in the lines of a stream; comments and `retry` are left out."""
    fields: dict[str, str] = {}
    async for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
            continue
        if "data" in fields:
            data = json.loads(fields["data"])
            assert data["event"] == fields["event"]
            yield ServerEvent(int(fields["id"]) if "id" in fields else None, fields["event"], data)
        fields = {}


@asynccontextmanager
async def client_of(
    root: Path, model: ModelClient | None = None, gate: Gate | None = None, key: str | None = None, **options: Any
) -> AsyncIterator[RunClient]:
    """Serve a project in this event loop, and yield a client."""
    tools = gate.tools() if gate else []
    models = {"scripted": model} if model else None
    async with serving(root, models=models, tools=tools, single_user=False, **options) as found:
        client = RunClient(found, key)
        async with client.http:
            yield client
