"""The events of a run as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import ExitStack

from starlette.requests import Request

from framework.server.event_stream import EventStreamResponse, encode_event
from framework.server.open_streams import EncodedEvent, OpenStreams
from framework.server.run_service import OwnedRun, RunService
from framework.types.errors import RequestError
from framework.types.events import Event, wire

_MAX_EVENT_DIGITS = 18


def run_stream(
    request: Request,
    service: RunService,
    run: OwnedRun,
    admitted: ExitStack,
    after: int = 0,
    *,
    wait: bool = False,
    cancel_on_leave: bool = False,
) -> EventStreamResponse:
    """Return a response with the events of a run.

    Args:
        request: the request.
        service: the operations on runs.
        run: the run.
        admitted: what `KeyLimits.admit_stream` returned. The response takes it over.
        after: number of the last event that the client has.
        wait: continue after a pause, until the run ends.
        cancel_on_leave: cancel the run if the client leaves before the end.
    """
    return EventStreamResponse(
        request,
        encode_run(service.follow(run, after, through_pauses=wait), service.streams),
        headers=run.headers,
        on_leave=(lambda: service.cancel(run)) if cancel_on_leave else None,
        streams=service.streams,
        during=admitted.pop_all(),
    )


async def encode_run(events: AsyncGenerator[Event, None], streams: OpenStreams) -> AsyncGenerator[bytes]:
    """Encode the events of a run. Numbered events have their number as id; deltas of texts have none.

    Readers that send the same event at the same time share its bytes.
    """
    try:
        async for event in events:
            key = (event.run_id, event.seq)
            if (encoded := streams.encoded.get(key) if event.seq else None) is None:
                data = wire(event)
                encoded = EncodedEvent(encode_event(data, data["event"], event.seq or None))
                del data
                if event.seq:
                    streams.encoded[key] = encoded
            del event  # a client may take long to read it
            yield encoded.data
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
