"""One exchange with an OpenAI client: the run that answers, repeated requests, the stream."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from fastapi.responses import JSONResponse, Response
from starlette.datastructures import Headers
from starlette.requests import Request

from framework.engine.runtime.request import RunOptions
from framework.engine.runtime.start import select_agent
from framework.server.errors import client_message
from framework.server.event_stream import EventStreamResponse, OpenStreams
from framework.server.identity import Identity, agent_for, agent_named
from framework.server.key_limits import KeyLimits
from framework.server.openai.answer import AnswerReader, AnswerText, Ending, ending_of
from framework.server.openai.client_request import ClientRequest
from framework.server.request_handling import accepted_locale, internal_error_body
from framework.server.run_service import OwnedRun, RunService
from framework.server.wording import pages_of, run_url
from framework.types.errors import AgentNotFound, AgentsdError, ConversationBusy, RequestError, RunSuspended
from framework.types.events import Event, Routed, StreamEnd, wire
from framework.types.strict_json import bytes_digest

log = logging.getLogger(__name__)


_FIELDS: dict[str, str] = {
    "message": "messages",
    "history": "messages",
    "instructions": "messages",
    "output_schema": "response_format",
    "conversation": "X-Conversation-Id",
}
"""Fields of clients by the options of a run that they become."""
_TOOL_FIELDS = {"output_schema": "tools"}
"""The same, if the answer is a call."""


class ModelNotFound(RequestError):
    """The model that a client names is no agent. `GET /v1/models` lists them."""

    code = "model_not_found"
    http_status = 404


@dataclass(frozen=True, slots=True)
class StartedRun:
    """The run that answers a request."""

    run: OwnedRun
    pages: str
    """Base address of its pages, for people."""
    is_waiting: bool = False
    """Whether it is an earlier run of the conversation, which waits for a decision."""

    @property
    def url(self) -> str:
        """URL of the run, for people."""
        return run_url(self.pages, self.run.run_id)


class RunAnswers:
    """Starts runs for the requests of OpenAI's clients, and reads their answers."""

    def __init__(self, service: RunService) -> None:
        self._service, self._catalog = service, service.runtime.catalog

    def agent_of(self, model: str, identity: Identity) -> str | None:
        """Return the agent that a client names as its model, or None if the router chooses it.

        Raises:
            ModelNotFound: no such agent exists for the identity.
            RequestError: the client names none, and its key may use several, but not all.
        """
        known = self._catalog.current.names
        try:
            chosen = agent_for(identity, agent_named(model, known), known)
            if chosen is not None:
                select_agent("", self._catalog.current, explicit=chosen)
        except AgentNotFound as error:
            raise ModelNotFound(error.message, param="model") from None
        except RequestError as error:
            raise RequestError(error.message, param="model") from None
        return chosen

    async def start(self, asked: ClientRequest, identity: Identity, request: Request) -> StartedRun:
        """Submit the run of a request.

        If the conversation has a run that waits for a decision, return that run: a message decides nothing.

        Raises:
            RequestError: the run cannot begin. `param` names the field.
            ConfigError: no agent is valid.
            StoreError: the store fails.
        """
        user = identity.user_of(asked.user or request.headers.get("x-openwebui-user-id") or None)
        options: RunOptions = {**asked.options, "agent": self.agent_of(asked.model, identity), "user": user}
        if conversation := request.headers.get("x-conversation-id"):
            if asked.ends_with_result:
                advice = "send the results of calls without X-Conversation-Id"
                raise RequestError(f"messages: the server keeps only the last message: {advice}", param="messages")
            options["conversation"] = conversation
        else:
            options["history"] = asked.history
        if locale := accepted_locale(request.headers):
            options["locale"] = locale
        if metadata := _metadata(asked, request.headers):
            options["metadata"] = metadata
        try:
            run = await self._service.submit(
                identity, asked.message, options, fields=_FIELDS | _TOOL_FIELDS if asked.function else _FIELDS
            )
            return StartedRun(run, pages_of(request))
        except ConversationBusy as busy:
            run, state = await self._service.load(identity, busy.run_id or "")
            if not state.pending:
                raise busy from None
            return StartedRun(run, pages_of(request), is_waiting=True)

    async def read(self, started: StartedRun, asked: ClientRequest) -> AsyncGenerator[Event | AnswerText | Ending]:
        """Yield the events of the run of a request, each followed by its texts, and last how the run ended.

        Raises:
            RunSuspended: the server is closing; the run continues elsewhere.
            StoreError: the store fails.
        """
        as_data = asked.wants_data
        reader, finished, run = AnswerReader(as_data=as_data), None, started.run
        if not started.is_waiting:
            events = self._service.follow(run)
            try:
                async for event in events:
                    yield event
                    for piece in reader.read(event):
                        yield piece
                    finished = event if isinstance(event, StreamEnd) else None
            finally:
                await events.aclose()
            if finished is None:
                raise RunSuspended(f"the server is closing; run {run.run_id} continues: {started.url}")
        result = await self._service.result(run)
        url = run_url(started.pages, run.run_id, result.pending)
        ending = ending_of(result, url, as_data=as_data, function=asked.function)
        for piece in reader.end(ending, finished.message_id if finished else None):
            yield piece
        yield ending


def _metadata(asked: ClientRequest, headers: Headers) -> dict[str, Any]:
    """Return the client's own data, under names that the data of a Python program does not have."""
    given = {"openai_metadata": asked.metadata, "openwebui_chat_id": headers.get("x-openwebui-chat-id")}
    return {name: value for name, value in given.items() if value}


_MAX_REMEMBERED = 1000
"""Number of the latest requests whose repetitions are recognized."""
_ATTEMPT = "x-stainless-retry-count"
"""Header of the SDK with the number of earlier attempts."""
_THREAD_BYTES = 64 * 1024
"""Size of a body from which its digest is computed in a thread, because the event loop would wait for it."""
_IDENTIFYING = ("x-conversation-id", "x-openwebui-user-id")

RequestKey = tuple[str | None, ...]
"""What equal requests have in common: the owner, the route, headers and the digest of the body."""


class RepeatedRequests:
    """The runs of the latest requests."""

    def __init__(self) -> None:
        self._runs: dict[RequestKey, StartedRun] = {}

    async def first_run(self, request: Request, identity: Identity) -> tuple[RequestKey, StartedRun | None]:
        """Return the key of a request, and the run of the request that it repeats, if it is a repetition."""
        body = await request.body()
        digest = await asyncio.to_thread(bytes_digest, body) if len(body) > _THREAD_BYTES else bytes_digest(body)
        headers = [request.headers.get(name, "") for name in _IDENTIFYING]
        key = (*identity.owner, request.url.path, *headers, digest)
        if request.headers.get(_ATTEMPT, "0") == "0":
            self._runs.pop(key, None)  # the same words again: another run
        return key, self._runs.get(key)

    def remember(self, key: RequestKey, run: StartedRun) -> None:
        """Remember the run of a request; the oldest request is forgotten."""
        self._runs[key] = run
        if len(self._runs) > _MAX_REMEMBERED:
            del self._runs[next(iter(self._runs))]


_NO_RETRY = {"x-should-retry": "false"}
"""Tells the openai SDK not to repeat a request. Others decide by the status: they repeat 409, 429 and 5xx."""


class AnswerWriter(Protocol):
    """Writes one answer in the format of an API."""

    def begin(self, agent: str) -> Iterator[bytes]:
        """Yield the first server-sent events."""
        ...

    def text(self, piece: AnswerText) -> Iterator[bytes]:
        """Yield the events for a piece of the answer."""
        ...

    def own_event(self, event: Mapping[str, Any]) -> bytes:
        """Return an event that clients accept and that contains an event of the run."""
        ...

    def end(self, ending: Ending) -> Iterator[bytes]:
        """Yield the last events."""
        ...

    def error(self, code: str, message: str) -> bytes:
        """Return the last event if the server fails in the middle of a stream."""
        ...

    def complete(self, agent: str, ending: Ending, reasoning: str) -> dict[str, Any]:
        """Return the whole answer as JSON data."""
        ...


NewWriter = Callable[[str, int], AnswerWriter]
"""Returns a writer. Arguments: the run's id and the Unix time."""


class Exchange:
    """Answers the requests of both APIs."""

    def __init__(self, answers: RunAnswers, limits: KeyLimits, streams: OpenStreams) -> None:
        self._answers, self._limits, self._streams, self._repeated = answers, limits, streams, RepeatedRequests()

    async def answer(
        self, asked: ClientRequest, identity: Identity, request: Request, new_writer: NewWriter
    ) -> Response:
        """Run the agent and return its answer. The run continues if the client leaves.

        Raises:
            RequestError, ConfigError, StoreError: the run did not begin.
        """
        own = request.headers.get("x-agentsd-events") == "1"
        if asked.stream:
            with self._limits.admit_stream(identity) as admitted:
                started = await self._start(asked, identity, request)
                return EventStreamResponse(
                    request,
                    self._stream(asked, started, request, new_writer, own=own),
                    headers=_headers(asked, started),
                    retry=False,
                    streams=self._streams,
                    ends_itself=True,
                    during=admitted.pop_all(),
                )
        started = await self._start(asked, identity, request)
        headers = _headers(asked, started)
        try:
            return await self._whole(asked, started, new_writer, headers, own=own)
        except asyncio.CancelledError:  # the server stops; a client that gets no response repeats the request
            return failure(RunSuspended.code, f"the server is stopping; the run continues: {started.url}", headers)
        except AgentsdError as error:
            return failure(error.code, client_message(error), headers)
        except Exception as error:  # noqa: BLE001 - sent to the client, and logged; a 5xx would make it repeat the run
            detail = internal_error_body(error, request)["error"]
            return failure(detail["code"], detail["message"], headers)

    async def _start(self, asked: ClientRequest, identity: Identity, request: Request) -> StartedRun:
        """Start the run of a request, or return that of the request which it repeats."""
        key, started = await self._repeated.first_run(request, identity)
        if started is None:
            started = await self._answers.start(asked, identity, request)
            self._repeated.remember(key, started)
            if asked.ignored:
                log.info("run %s: ignored %s of the client", started.run.run_id, " and ".join(asked.ignored))
        return started

    async def _whole(
        self,
        asked: ClientRequest,
        started: StartedRun,
        new_writer: NewWriter,
        headers: Mapping[str, str],
        *,
        own: bool,
    ) -> Response:
        """Return the answer once the run has ended or paused."""
        agent, thoughts, run = asked.model, defaultdict[str, str](str), started.run
        events: list[Mapping[str, Any]] = []
        ending: Ending | None = None
        async for item in self._answers.read(started, asked):
            match item:
                case AnswerText(kind="reasoning", message_id=message_id, text=text):
                    thoughts[message_id] += text
                case Ending():
                    ending = item
                case Routed(agent=chosen):
                    agent = chosen
            if own and not isinstance(item, AnswerText | Ending) and item.seq:
                events.append(wire(item))
        assert ending is not None
        if ending.finish_reason is None:
            return failure(ending.error_code, ending.error_message, headers)
        body = new_writer(run.run_id, int(time.time())).complete(agent, ending, "\n\n".join(thoughts.values()))
        if own:
            body["agentsd"] = {"run_id": run.run_id, "events": events, **body.get("agentsd", {})}
        return JSONResponse(body, headers=headers)

    async def _stream(
        self, asked: ClientRequest, started: StartedRun, request: Request, new_writer: NewWriter, *, own: bool
    ) -> AsyncGenerator[bytes]:
        """Yield the answer as it arrives."""
        writer, is_begun = new_writer(started.run.run_id, int(time.time())), False
        items = self._answers.read(started, asked)
        try:
            async for item in items:
                for chunk in () if is_begun else writer.begin(_agent_of(item, asked)):
                    yield chunk
                is_begun = True
                for chunk in _encoded(writer, item, own=own):
                    yield chunk
        except AgentsdError as error:
            yield writer.error(error.code, client_message(error))
        except Exception as error:  # noqa: BLE001 - sent to the client, and logged
            detail = internal_error_body(error, request)["error"]
            yield writer.error(detail["code"], detail["message"])
        finally:
            await items.aclose()


def _headers(asked: ClientRequest, started: StartedRun) -> dict[str, str]:
    ignored = {"x-agentsd-ignored": ", ".join(asked.ignored)} if asked.ignored else {}
    return {**started.run.headers, **ignored}


def failure(code: str, message: str, headers: Mapping[str, str] = MappingProxyType({})) -> Response:
    """Return the response for a run that began and failed. No client repeats it: the run may have had effects."""
    error = {"code": code, "type": "server_error", "message": message, "param": None}
    return JSONResponse({"error": error}, 422, {**headers, **_NO_RETRY})


def _encoded(writer: AnswerWriter, item: Event | AnswerText | Ending, *, own: bool) -> Iterator[bytes]:
    match item:
        case AnswerText():
            yield from writer.text(item)
        case Ending():
            yield from writer.end(item)
        case _ if own and item.seq:
            yield writer.own_event(wire(item))


def _agent_of(item: Event | AnswerText | Ending, asked: ClientRequest) -> str:
    """Return the name of the agent, once the router has chosen it."""
    return item.agent if isinstance(item, Routed) else asked.model
