"""`/events`: configuration events as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Annotated

from fastapi import APIRouter, Header, Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from framework.server.errors import TooManyStreams
from framework.server.event_feed import ConfigFeed, FeedEvent
from framework.server.identity import is_current, requires

_KEEPALIVE_SECONDS = 15.0
"""Interval of comments on an idle stream, so that proxies do not close it."""
MAX_STREAMS = 100
"""Limit of concurrent streams; each keeps a connection open."""
_RETRY_FIELD = b"retry: 1000\n\n"
"""Reconnection delay of clients, in milliseconds."""


def add_event_routes(routes: APIRouter, feed: ConfigFeed) -> None:
    """Add `/events` for a feed. The stream of a client that loses access ends."""

    @routes.get("/events", response_class=StreamingResponse, dependencies=[requires("read", all_agents=True)])
    async def events(request: Request, last_event_id: Annotated[str | None, Header()] = None) -> StreamingResponse:
        """Stream `config_reloaded` and `config_rejected`, from now on or after the id in `Last-Event-ID`."""
        if feed.listeners >= MAX_STREAMS:
            raise TooManyStreams(
                f"too many event streams: {MAX_STREAMS} are open; retry later, or poll GET /agent/config"
            )
        stream = _stream(feed, feed.number_of(last_event_id), lambda: is_current(request))
        return _EventStream(feed, stream)


class _EventStream(StreamingResponse):
    """A response that counts its client as a listener until the stream ends."""

    media_type = "text/event-stream"

    def __init__(self, feed: ConfigFeed, stream: AsyncIterator[bytes]) -> None:
        super().__init__(stream)
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._feed.listening():
            await super().__call__(scope, receive, send)


async def _stream(feed: ConfigFeed, number: int, is_admitted: Callable[[], bool]) -> AsyncIterator[bytes]:
    yield _RETRY_FIELD
    while not feed.closed:
        try:
            async with asyncio.timeout(_KEEPALIVE_SECONDS):
                items = await feed.wait_after(number)
        except TimeoutError:
            if not is_admitted():
                return
            yield b": still here\n\n"
            continue
        for item in items:
            if not is_admitted():
                return
            number = item.number
            yield _encoded(feed, item)


def _encoded(feed: ConfigFeed, item: FeedEvent) -> bytes:
    data = json.dumps(item.data, ensure_ascii=False)
    return f"id: {feed.id_of(item)}\nevent: {item.data['event']}\ndata: {data}\n\n".encode()
