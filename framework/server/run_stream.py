"""The events of a run as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from framework.server.event_stream import encode_event
from framework.types.errors import RequestError
from framework.types.events import Event, wire

_MAX_EVENT_DIGITS = 18


async def encode_run(events: AsyncGenerator[Event, None]) -> AsyncGenerator[bytes]:
    """Encode the events of a run. Numbered events have their number as id; deltas of texts have none."""
    try:
        async for event in events:
            data = wire(event)
            yield encode_event(data, data["event"], event.seq or None)
    finally:
        await events.aclose()


def last_event(after: int, last_event_id: str | None) -> int:
    """Return the number of the last event that a client has: `Last-Event-ID` or, without it, `after`.

    Raises:
        RequestError: `Last-Event-ID` is not a number.
    """
    if not last_event_id:
        return after
    if not (last_event_id.isascii() and last_event_id.isdecimal() and len(last_event_id) <= _MAX_EVENT_DIGITS):
        message = f"Last-Event-ID is not the id of an event of a run: {last_event_id[:40]!r}; send the last id received"
        raise RequestError(message, param="Last-Event-ID")
    return int(last_event_id)
