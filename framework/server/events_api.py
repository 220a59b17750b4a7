"""`/events`: configuration events as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Header, Request
from fastapi.responses import StreamingResponse

from framework.server.errors import TooManyStreams
from framework.server.event_feed import ConfigFeed
from framework.server.event_stream import EventStreamResponse, encode_event
from framework.server.identity import requires

MAX_STREAMS = 100
"""Limit of concurrent streams; each keeps a connection open."""


def add_event_routes(routes: APIRouter, feed: ConfigFeed) -> None:
    """Add `/events` for a feed."""

    @routes.get("/events", response_class=StreamingResponse, dependencies=[requires("read", all_agents=True)])
    async def events(request: Request, last_event_id: Annotated[str | None, Header()] = None) -> EventStreamResponse:
        """Stream `config_reloaded` and `config_rejected`, from now on or after the id in `Last-Event-ID`."""
        if feed.listeners >= MAX_STREAMS:
            raise TooManyStreams(
                f"too many event streams: {MAX_STREAMS} are open; retry later, or poll GET /agent/config"
            )
        return EventStreamResponse(request, _stream(feed, feed.number_of(last_event_id)), during=feed.listening())


async def _stream(feed: ConfigFeed, number: int) -> AsyncGenerator[bytes]:
    while not feed.closed:
        for item in await feed.wait_after(number):
            number = item.number
            yield encode_event(item.data, item.data["event"], feed.id_of(item))
