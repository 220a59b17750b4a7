"""A response of server-sent events: headers, heartbeats, and what happens when a client leaves or an error occurs."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from framework.server.errors import error_body, internal_error_body
from framework.server.identity import is_current
from framework.server.schemas import redact_changes, redact_problems
from framework.types.errors import AgentsdError
from framework.types.events import ConfigRejected, ConfigReloaded, wire
from framework.types.redact import redact_data

T = TypeVar("T")
MAX_HELD_BYTES = 64 * 1024 * 1024
"""Limit of the events that clients have not read yet, in all streams together; what several read counts once."""


class EncodedEvent:
    """An event as it is sent, which all of its readers share while one of them has not read it."""

    __slots__ = ("__weakref__", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data


class OpenStreams:
    """The open streams of a server. `close` ends them, so that their clients reconnect, to another process."""

    def __init__(self, max_held_bytes: int = MAX_HELD_BYTES) -> None:
        self._ends: set[Callable[[], object]] = set()
        self._is_closed = False
        self._max_held_bytes = max_held_bytes
        self._sending: dict[object, tuple[bytes, Callable[[], object]]] = {}
        """What is being sent, and how to end its stream; those that wait longest for their client first."""
        self._copies: Counter[int] = Counter()
        """Number of streams that send the same bytes, by the identity of these."""
        self.held_bytes = 0
        self.encoded = WeakValueDictionary[tuple[str, int], EncodedEvent]()
        """Events that are being sent, by run and number."""

    @contextmanager
    def add(self, end: Callable[[], object]) -> Iterator[None]:
        """Have `close` call `end` while the context is open; call it now if it was called before."""
        self._ends.add(end)
        if self._is_closed:
            end()
        try:
            yield
        finally:
            self._ends.discard(end)

    @contextmanager
    def sending(self, data: bytes, end: Callable[[], object]) -> Iterator[None]:
        """Count what a stream sends while the context is open.

        Beyond the limit, `end` is called for the streams whose clients have not read for longest: they reconnect.
        """
        key = object()
        self._sending[key] = (data, end)
        self._copies[id(data)] += 1
        self.held_bytes += len(data) if self._copies[id(data)] == 1 else 0
        while self.held_bytes > self._max_held_bytes and len(self._sending) > 1:
            oldest = next(iter(self._sending))
            self._sending[oldest][1]()
            self._forget(oldest)
        try:
            yield
        finally:
            self._forget(key)

    def _forget(self, key: object) -> None:
        data, _ = self._sending.pop(key, (b"", None))
        if data:
            self._copies[id(data)] -= 1
            if not self._copies[id(data)]:
                del self._copies[id(data)]
                self.held_bytes -= len(data)

    def close(self) -> None:
        """End the open streams, and those that open later."""
        self._is_closed = True
        for end in [*self._ends]:
            end()


MAX_EVENTS = 100


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """An event with its number, starting at 1."""

    number: int
    data: dict[str, Any]
    """The event as wire data, with secrets redacted."""


class ConfigFeed:
    """Keeps the last `MAX_EVENTS` events. Listeners pull them, so a slow one misses events and delays no other."""

    def __init__(self) -> None:
        self._origin = token_hex(4)
        """A random prefix of event ids, which separates this process from earlier ones."""
        self._events: deque[FeedEvent] = deque(maxlen=MAX_EVENTS)
        self._count = 0
        self._changed = asyncio.Event()
        self.closed = False

    @property
    def count(self) -> int:
        """The number of the last event; 0 before the first."""
        return self._count

    def add(self, event: ConfigReloaded | ConfigRejected) -> None:
        """Add an event. Pass this method to `catalog.subscribe`."""
        event = event.model_copy(update={"problems": redact_problems(event.problems)})
        if isinstance(event, ConfigReloaded):
            event = event.model_copy(update={"changes": redact_changes(event.changes)})
        self._count += 1
        self._events.append(FeedEvent(self._count, redact_data(wire(event))))
        self._wake()

    def close(self) -> None:
        """Close the feed, and end all streams."""
        self.closed = True
        self._wake()

    async def wait_after(self, number: int) -> Sequence[FeedEvent]:
        """Wait for events after `number`, and return those still kept. Return none once the feed is closed."""
        while not self.closed and self._count <= number:
            await self._changed.wait()
        return () if self.closed else [item for item in self._events if item.number > number]

    def id_of(self, item: FeedEvent) -> str:
        """Return the id of an event on the wire."""
        return f"{self._origin}-{item.number}"

    def number_of(self, last_id: str | None) -> int:
        """Return the number of the last event that a client has seen.

        Without an id, that is the last event. An id of another process is 0: the client gets all kept events.
        """
        if last_id is None:
            return self._count
        origin, _, number = last_id.partition("-")
        is_own = origin == self._origin and number.isascii() and number.isdecimal() and len(number) < 20
        return min(int(number), self._count) if is_own else 0

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


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
            retry: start with the delay after which clients reconnect. OpenAI's clients, which never do, fail on it.
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

    The client may read nothing for `idle` seconds.

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


async def unless_client_leaves(request: Request, work: Awaitable[T], on_leave: Callable[[], Awaitable[object]]) -> T:
    """Return the result of `work`. If the client leaves before, call `on_leave` first, which may end the work."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(until_client_leaves(request.receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            await on_leave()
        return await working
    finally:
        leaving.cancel()
        working.cancel()


class AppResponse(Response):
    """Lets the app of a library answer a request whose body was read and checked before."""

    def __init__(self, app: ASGIApp, streams: OpenStreams, body: bytes, admitted: ExitStack) -> None:
        """Create the response.

        It closes `admitted` when it has been sent. When the streams are closed, the client counts as gone.
        """
        super().__init__()
        self._app, self._streams, self._admitted = app, streams, admitted
        self._body: bytes | None = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, with the headers of all responses. A client that does not read it counts as gone."""
        # One task waits for the end of the connection, so that whether it has ended is known without waiting.
        leaving, gone, is_deaf = asyncio.ensure_future(until_client_leaves(receive)), asyncio.Event(), False
        leaving.add_done_callback(lambda _: gone.set())

        async def send_with_headers(message: Message) -> None:
            nonlocal is_deaf
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                headers["cache-control"], headers["x-content-type-options"] = "no-store", "nosniff"
                await send(message)
            elif not is_deaf:
                try:
                    more = message.get("more_body", False)
                    await send_pieces(send, message.get("body", b""), self._streams, more=more)
                except TimeoutError:
                    is_deaf = True
                    gone.set()

        async def receive_again() -> Message:
            if self._body is not None:
                body, self._body = self._body, None
                return {"type": "http.request", "body": body, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        with self._admitted, self._streams.add(gone.set):
            try:
                await self._app(scope, receive_again, send_with_headers)
            finally:
                leaving.cancel()
