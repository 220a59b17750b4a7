"""A real HTTP server for tests that serves `/v1/chat/completions` and other APIs, validly or not, streamed or not.

The responses are built from the SDK's types, so that their form does not depend on this project. Other formats and
their responses are in `tests/support/formats.py`. What a provider refuses is in `tests/support/peers`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from aiohttp import web
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice

from tests.support.peers import Peer, peer_of

Ending = Literal["done", "clean", "cut", "stall", "comments", "endless"]
HEAD: dict[str, Any] = {"id": "chat-1", "created": 1, "model": "wire-model"}


@dataclass(frozen=True, slots=True)
class Answer:
    """One scripted response: a completion (streamed on request), fixed stream events, or raw bytes."""

    completion: ChatCompletion | None = None
    events: tuple[str, ...] = ()
    """Events sent whether or not a stream was requested: the text after `data:`, or from `event:` on."""
    streamed: tuple[str, ...] = ()
    """Events sent instead of the body if a stream was requested."""
    ending: Ending = "done"
    """After the events: `[DONE]`, a clean end without it, a cut connection, or silence, comments or more of the last
    line until the client disconnects."""
    chunked: bool = False
    """Sent complete, but without a Content-Length."""
    indexed: bool = True
    """Streamed tool calls carry their index."""
    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


Answers = Sequence[Answer] | Callable[[dict[str, Any]], Answer]


@dataclass(slots=True)
class WireServer:
    """The state of the server."""

    answers: Answers
    url: str = ""
    """The base_url, with `/v1`."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    """Request bodies, in order."""
    bodies: list[bytes] = field(default_factory=list)
    """The same bodies, as they were sent."""
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    queries: list[dict[str, str]] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)
    """Ports of the client, one for each connection."""
    request_received: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by each request."""
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client disconnects during a response."""

    pages: Mapping[str, Any] = field(default_factory=dict)
    """JSON of other URLs, by path and query; they are not found otherwise."""
    pages_read: list[str] = field(default_factory=list)
    """Paths and queries that were requested besides the API's."""
    peer: Peer | None = None
    """The provider that it stands for; None for what every server of the API requires."""
    refused: list[str] = field(default_factory=list)
    """What the peer said to requests that it did not accept."""

    async def page(self, request: web.Request) -> web.StreamResponse:
        self.pages_read.append(request.path_qs)
        if request.path_qs not in self.pages:
            return web.json_response({"error": "not found"}, status=404)
        return web.json_response(self.pages[request.path_qs])

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.bodies.append(await request.read())
        self.headers.append(dict(request.headers))
        self.paths.append(request.path)
        self.queries.append(dict(request.query))
        self.request_received.set()
        self.ports.append(request.transport.get_extra_info("peername")[1] if request.transport else 0)
        peer = self.peer or peer_of(request.path)
        refusal = peer.refusal(request.path, body)
        if refusal:
            status, said, words = refusal
            self.refused.append(words)
        answer = raw(status, said) if refusal else self._next(body)
        try:
            return await _respond(request, body, answer)
        except (asyncio.CancelledError, ConnectionError):
            self.disconnected.set()
            raise

    def _next(self, body: dict[str, Any]) -> Answer:
        if callable(self.answers):
            return self.answers(body)
        place = len(self.requests) - 1
        return self.answers[place] if place < len(self.answers) else failed(500, "the script has no more answers")


_PATHS = (
    *("/v1/chat/completions", "/v1/responses", "/v1/messages", "/{version}/models/{call}"),
    *("/openai/deployments/{deployment}/chat/completions", "/openai/responses"),
    "/{version}/projects/{project}/locations/{location}/publishers/{publisher}/models/{call}",
    "/model/{model}/{call}",
)


@asynccontextmanager
async def wire_server(
    answers: Answers, pages: Mapping[str, Any] | None = None, peer: Peer | None = None
) -> AsyncIterator[WireServer]:
    """Serve `answers`, one for each request that `peer` accepts, and `pages` on a free port of 127.0.0.1."""
    server = WireServer(answers, pages=pages or {}, peer=peer)
    app = web.Application(client_max_size=1 << 24)
    for path in _PATHS:
        app.router.add_post(path, server.handle)
    app.router.add_route("*", "/{path:.*}", server.page)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        server.url = f"http://{host}:{port}/v1"
        yield server
    finally:
        await runner.cleanup()


def says(
    text: str, *, finish: str = "stop", usage: tuple[int, int, int] = (10, 5, 0), extra: dict[str, Any] | None = None
) -> Answer:
    """Return a text response; `usage` is prompt, completion and cached tokens, `extra` goes into the message."""
    return Answer(completion=whole_completion({"content": text, **(extra or {})}, finish, usage))


def calls(
    *requested: tuple[str, Any], finish: str = "tool_calls", indexed: bool = True, text: str | None = None
) -> Answer:
    """Return tool calls from pairs of wire name and arguments; arguments given as text are sent unchanged."""
    tool_calls = [
        {
            "id": f"call_{place}",
            "type": "function",
            "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)},
        }
        for place, (name, given) in enumerate(requested, start=1)
    ]
    return Answer(
        completion=whole_completion({"content": text, "tool_calls": tool_calls}, finish, (10, 5, 0)), indexed=indexed
    )


def completion(**changes: Any) -> Answer:
    """Return a completion with arbitrary top-level fields, without validation."""
    whole = whole_completion({"content": "hello"}, "stop", (10, 5, 0)).to_dict()
    return raw(200, json.dumps({**whole, **changes}).encode())


def events(*data: dict[str, Any] | str, ending: Ending = "done") -> Answer:
    r"""Return a stream of exactly these events; a character such as `\udcff` is sent as the bare byte ff."""
    return Answer(events=tuple(item if isinstance(item, str) else json.dumps(item) for item in data), ending=ending)


def piece(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """Return one event of a stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {**HEAD, "object": "chat.completion.chunk", "choices": [choice]}


def raw(status: int, body: bytes, content_type: str = "application/json", **headers: str) -> Answer:
    """Return any bytes with any status; `retry_after="3"` becomes the header `retry-after`."""
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Answer(status=status, body=body, content_type=content_type, headers=named)


def failed(status: int, message: str, code: str | None = None, **headers: str) -> Answer:
    """Return an error in OpenAI's format."""
    error = {"message": message, "type": "error", "param": None, "code": code}
    return raw(status, json.dumps({"error": error}).encode(), **headers)


def rate_limited(retry_after: str = "7") -> Answer:
    """Return a response with status 429."""
    return failed(429, "slow down", retry_after=retry_after)


def html() -> Answer:
    """Return the login page of a proxy, with status 200."""
    return raw(200, b"<html><body>please log in</body></html>", "text/html")


def empty_choices() -> Answer:
    """Return a completion without choices."""
    return Answer(completion=ChatCompletion(choices=[], object="chat.completion", **HEAD))


def cut_stream() -> Answer:
    """Return a response during which the connection is cut."""
    return events(piece(content="par"), piece(content="tial"), ending="cut")


def no_finish() -> Answer:
    """Return a stream that ends properly, but without a finish_reason."""
    return events(piece(content="par"), piece(content="tial"), ending="clean")


def bad_event() -> Answer:
    """Return a stream with an event that is not JSON."""
    return events(piece(content="ok"), '{"id": "x", "cho', piece("stop", content="more"))


def error_event(**error: Any) -> Answer:
    """Return an error event in a stream that has begun with status 200."""
    return events(piece(content="ok"), {"error": error or {"message": "overloaded", "code": "server_error"}})


def stalled() -> Answer:
    """Return one piece, then silence until the client disconnects."""
    return events(piece(content="wait"), ending="stall")


def kept_alive() -> Answer:
    """Return only comments until the client disconnects."""
    return events(ending="comments")


def whole_completion(message: dict[str, Any], finish: str, usage: tuple[int, int, int]) -> ChatCompletion:
    """Return a completion of one message, without validation."""
    prompt, written, cached = usage
    counted = {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    whole = ChatCompletionMessage.model_validate({"role": "assistant", "content": None, **message})
    choice = Choice.construct(index=0, finish_reason=finish, message=whole)
    return ChatCompletion.construct(
        object="chat.completion", choices=[choice], usage=CompletionUsage.model_validate(counted), **HEAD
    )


def endless(*, stream: bool, **headers: str) -> Answer:
    """Return one endless line, of an event or of an unstreamed response."""
    kind = "text/event-stream" if stream else "application/json"
    return replace(raw(200, b'data: {"' if stream else b'{"', kind, **headers), ending="endless")


async def _respond(request: web.Request, body: dict[str, Any], answer: Answer) -> web.StreamResponse:
    if answer.completion is not None and body.get("stream"):
        answer = replace(answer, events=tuple(chunks(answer, body)))
    if answer.streamed and (body.get("stream") or request.path.endswith(":streamGenerateContent")):
        answer = replace(answer, events=answer.streamed, ending="clean")
    if answer.events or answer.ending == "comments":
        return await _stream(request, answer)
    headers = dict(answer.headers)
    if answer.ending == "endless":
        return await _send_endlessly(request, answer, headers)
    data = answer.completion.to_json(indent=None, warnings=False).encode() if answer.completion else answer.body
    response = web.Response(status=answer.status, body=data, content_type=answer.content_type, headers=headers)
    if answer.chunked:
        response.enable_chunked_encoding()
    return response


async def _send_endlessly(request: web.Request, answer: Answer, headers: dict[str, str]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": answer.content_type, **headers})
    response.enable_chunked_encoding()
    await response.prepare(request)
    await response.write(answer.body)
    while True:
        await response.write(b"x" * 65536)


async def _stream(request: web.Request, answer: Answer) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    for data in answer.events:
        framed = data if data.startswith("event:") else f"data: {data}"
        await response.write(f"{framed}\n\n".encode(errors="surrogateescape"))
    if answer.ending == "comments":
        await response.write(b": keep-alive\n\n" * 20)
    if answer.ending in ("stall", "comments"):
        await asyncio.Event().wait()
    if answer.ending == "cut" and request.transport is not None:
        request.transport.abort()
        return response
    if answer.ending == "done":
        await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def chunks(answer: Answer, body: dict[str, Any]) -> list[str]:
    """Split a completion: text into words, a tool call into its name and halves of its arguments."""
    assert answer.completion is not None
    choices = answer.completion.choices
    pieces = [piece(role="assistant", content="")] if choices else []
    for choice in choices:
        message = choice.message.to_dict()
        for name in ("reasoning_content", "reasoning", "refusal", "content"):
            words = str(message.get(name) or "").split(" ")
            spaced = [word if place == 0 else f" {word}" for place, word in enumerate(words)]
            pieces += [piece(**{name: word}) for word in spaced if word]
        pieces += [piece(reasoning_details=details)] if (details := message.get("reasoning_details")) else []
        for place, call in enumerate(choice.message.tool_calls or ()):
            pieces += [piece(tool_calls=[part]) for part in _call_pieces(place, call.to_dict(), answer.indexed)]
        pieces.append(piece(choice.finish_reason))
    if body.get("stream_options", {}).get("include_usage") and answer.completion.usage:
        pieces.append({**piece(), "choices": [], "usage": answer.completion.usage.to_dict()})
    return [json.dumps(data, ensure_ascii=False, separators=(",", ":")) for data in pieces]


def _call_pieces(place: int, call: dict[str, Any], indexed: bool) -> list[dict[str, Any]]:
    arguments = str(call["function"]["arguments"])
    half = len(arguments) // 2
    head = {**call, "function": {"name": call["function"]["name"], "arguments": ""}}
    parts = [head, *({"function": {"arguments": text}} for text in (arguments[:half], arguments[half:]) if text)]
    return [{"index": place, **part} for part in parts] if indexed else parts
