"""`/events`: configuration events as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Header, Request
from fastapi.responses import StreamingResponse

from framework.server.event_feed import ConfigFeed
from framework.server.event_stream import EventStreamResponse, encode_event
from framework.server.identity import identity_of, requires
from framework.server.key_limits import KeyLimits
from framework.server.open_streams import OpenStreams
from framework.server.openapi import STREAM_RESPONSE, error_responses


def add_event_routes(routes: APIRouter, feed: ConfigFeed, limits: KeyLimits, streams: OpenStreams) -> None:
    """Add `/events` for a feed."""

    @routes.get(
        "/events",
        response_class=StreamingResponse,
        dependencies=[requires("read", all_agents=True)],
        responses={200: STREAM_RESPONSE, **error_responses(503)},
    )
    async def follow_events(
        request: Request,
        last_event_id: Annotated[
            str | None, Header(alias="Last-Event-ID", description="Id of the last event received.")
        ] = None,
    ) -> EventStreamResponse:
        """Stream `config_reloaded` and `config_rejected`, from now on or after the id in `Last-Event-ID`."""
        admitted = limits.admit_stream(identity_of(request))
        stream = _stream(feed, feed.number_of(last_event_id))
        return EventStreamResponse(request, stream, streams=streams, ends_itself=True, during=admitted)


async def _stream(feed: ConfigFeed, number: int) -> AsyncGenerator[bytes]:
    while not feed.closed:
        for item in await feed.wait_after(number):
            number = item.number
            yield encode_event(item.data, item.data["event"], feed.id_of(item))
