"""A response of server-sent events: headers, heartbeats, and what happens when a client leaves or an error occurs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from framework.server.errors import error_body
from framework.server.identity import is_current
from framework.server.open_streams import OpenStreams
from framework.server.request_handling import internal_error_body
from framework.types.errors import AgentsdError

HEARTBEAT_SECONDS = 15.0
"""Interval of comments on a stream, so that proxies do not close it while it is idle."""
IDLE_READER_SECONDS = 30.0
"""Time after which a client that reads nothing counts as gone. A server may close its connection before."""
_PIECE_BYTES = 32 * 1024
"""Size of what is sent at once: a server buffers what a client has not read, for each client."""
_HEARTBEAT = b": still here\n\n"
_RETRY_FIELD = b"retry: 1000\n\n"
"""Reconnection delay of clients, in milliseconds."""
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""Proxies must neither store a stream nor collect it before they send it."""


def encode_event(data: Mapping[str, Any], name: str, event_id: object = None) -> bytes:
    """Encode one event with JSON data; a client that reconnects sends the last id as `Last-Event-ID`."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    number = "" if event_id is None else f"id: {event_id}\n"
    return f"{number}event: {name}\ndata: {text}\n\n".encode()


def encode_error(body: Mapping[str, Any]) -> bytes:
    """Encode the body of an error response as the event `error`."""
    return encode_event({"event": "error", **body["error"]}, "error")


class EventStreamResponse(Response):
    """Sends encoded events from a generator until it ends, an error occurs, or the client leaves or loses its access.

    An error is sent as a last event, because the status has been sent already. A comment each 15 seconds keeps the
    connection open. The generator is closed in any case.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        request: Request,
        events: AsyncGenerator[bytes],
        *,
        headers: Mapping[str, str] | None = None,
        encode_error: Callable[[Mapping[str, Any]], bytes] = encode_error,
        on_leave: Callable[[], Awaitable[object]] | None = None,
        streams: OpenStreams | None = None,
        ends_itself: bool = False,
        during: AbstractContextManager[object] | None = None,
        heartbeat: float = HEARTBEAT_SECONDS,
        idle: float = IDLE_READER_SECONDS,
        retry: bool = True,
        farewell: bytes = b"",
    ) -> None:
        """Create a response.

        Args:
            request: the request that is answered.
            events: the encoded events.
            headers: headers in addition to those of every stream.
            encode_error: encodes the body of an error response as an event.
            on_leave: called if the client leaves before the end.
            streams: streams that this one belongs to while it is open. They end it when the server stops, and if all
                of them together hold too much for clients that do not read.
            ends_itself: the events end when the server stops.
            during: a context that is closed with the stream.
            heartbeat: interval of comments, in seconds.
            idle: how long a client may read nothing while something is sent, in seconds.
            retry: begin with the delay after which clients reconnect. OpenAI's clients, which never do, fail on it.
            farewell: sent last if the server ends the stream: it stops, or the client has lost its access.
        """
        super().__init__(None, 200, {**_HEADERS, **(headers or {})})
        del self.headers["content-length"]
        self._request, self._events, self._encode_error = request, events, encode_error
        self._on_leave, self._streams, self._during = on_leave, streams or OpenStreams(), during
        self._heartbeat, self._idle, self._ends_itself, self._is_midway = heartbeat, idle, ends_itself, False
        self._first, self._farewell = _RETRY_FIELD if retry else b"", farewell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        """Send the response."""
        tasks = asyncio.ensure_future(self._send(send)), asyncio.ensure_future(until_client_leaves(receive))
        sending, leaving = tasks
        with ExitStack() as stack:
            if not self._ends_itself:
                stack.enter_context(self._streams.add(leaving.cancel))
            if self._during:
                stack.enter_context(self._during)
            try:
                while not (done := await self._first_of(tasks)) and is_current(self._request):
                    if not self._is_midway:
                        await send(_body(_HEARTBEAT))
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
        if sending not in done and leaving in done and not leaving.cancelled():
            if self._on_leave is not None:
                await self._on_leave()
            return
        if self._is_midway:
            return  # the client does not read, so nothing can follow: the server closes the connection
        if sending in done:
            sending.result()
        await send(_body(b"" if sending in done else self._farewell, more=False))

    async def _first_of(self, tasks: Iterable[asyncio.Future[None]]) -> set[asyncio.Future[None]]:
        """Wait for one of the tasks, but not longer than one heartbeat; return those that are done."""
        done, _ = await asyncio.wait(tasks, timeout=self._heartbeat, return_when=asyncio.FIRST_COMPLETED)
        return done

    async def _send(self, send: Send) -> None:
        """Send the headers and all events; an error as the last one."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send(_body(self._first))
        try:
            async for chunk in self._events:
                if not is_current(self._request):
                    break
                await self._send_pieces(send, chunk)
        except AgentsdError as error:
            await send(_body(self._encode_error(error_body(error))))
        except Exception as error:  # noqa: BLE001 - sent to the client, and logged
            await send(_body(self._encode_error(internal_error_body(error, self._request))))
        finally:
            await self._events.aclose()

    async def _send_pieces(self, send: Send, chunk: bytes) -> None:
        """Send an event; raise CancelledError in the middle of it if the client does not read."""
        self._is_midway = True
        try:
            await send_pieces(send, chunk, self._streams, self._idle)
        except TimeoutError:
            raise asyncio.CancelledError from None
        self._is_midway = False


async def send_pieces(
    send: Send, chunk: bytes, streams: OpenStreams, idle: float = IDLE_READER_SECONDS, *, more: bool = True
) -> None:
    """Send a part of a response in pieces, which `streams` counts until the client has read them.

    Args:
        send: sends an ASGI message.
        chunk: the part.
        streams: the open streams.
        idle: how long the client may read nothing, in seconds.
        more: whether another part follows.

    Raises:
        TimeoutError: the client has read nothing for too long, or all streams together hold too much.
    """
    loop, is_evicted, patience = asyncio.get_running_loop(), False, asyncio.timeout(idle)

    def evict() -> None:
        nonlocal is_evicted
        is_evicted = True
        if not patience.expired():
            patience.reschedule(loop.time())

    with streams.sending(chunk, evict):
        for start in range(0, len(chunk) or 1, _PIECE_BYTES):
            if is_evicted:
                raise TimeoutError
            end = start + _PIECE_BYTES
            async with asyncio.timeout(idle) as patience:
                await send(_body(chunk[start:end], more=more or end < len(chunk)))


def _body(chunk: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": chunk, "more_body": more}


async def until_client_leaves(receive: Receive) -> None:
    """Wait until the client of a request closes the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
