"""One exchange with an OpenAI client: the run that answers, repeated requests, the stream."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from starlette.datastructures import Headers

from framework.engine.runtime.request import RunOptions
from framework.engine.runtime.runtime import Runtime
from framework.engine.runtime.start import select_agent
from framework.server.errors import client_message, internal_error_body
from framework.server.event_stream import EventStreamResponse
from framework.server.identity import ROUTER_NAME, Chatter, Identity, agent_for, agent_named
from framework.server.openai_answer import AnswerReader, AnswerText, ChatWriter, Ending, ResponseWriter, ending_of
from framework.server.openai_request import (
    ChatCompletionBody,
    ClientRequest,
    ResponseBody,
    UnknownCall,
    client_call_id,
    history_digest,
    is_client_call,
    new_decisions,
    offered_tools,
    pause_of,
    previous_not_found,
    read_body,
    read_chat,
    read_response,
    require_same_history,
    results_in,
    run_of_calls,
    run_of_response,
)
from framework.server.protocol_texts import pages_of, run_url
from framework.server.request_handling import MessageRoute, ServedRuns, ServedRuntime, accepted_locale, shared
from framework.server.run_service import OwnedRun, RunService
from framework.store.types import OPEN_STATUSES
from framework.types.errors import (
    AgentNotFound,
    AgentsdError,
    ConversationBusy,
    DecisionRefused,
    RequestError,
    RunBusy,
    RunNotFound,
    RunSuspended,
)
from framework.types.events import ConfirmationRequested, Event, Routed, RunPaused, StreamEnd, wire
from framework.types.file import File
from framework.types.messages import Message
from framework.types.state import ClientTools, Confirmation, RunState
from framework.types.text import bytes_digest, did_you_mean

log = logging.getLogger(__name__)
_FIELDS: dict[str, str] = {
    "message": "messages",
    "history": "messages",
    "instructions": "messages",
    "output_schema": "response_format",
    "conversation": "X-Conversation-Id",
    "client_tools": "tools",
}
"""Fields of clients by the options of a run that they become."""
_TOOL_FIELDS = {"output_schema": "tools"}
"""The same, if the answer is a call."""
_ATTEMPTS = 3
"""Number of attempts to save results, while other requests save results of the same run."""
_CONFIRMATION = {*Confirmation.model_fields}


class ModelNotFound(RequestError):
    """The model that a client names is no agent. `GET /v1/models` lists them."""

    code = "model_not_found"
    http_status = 404


@dataclass(frozen=True, slots=True)
class StartedRun:
    """The run that answers a request."""

    run: OwnedRun
    pages: str
    is_waiting: bool = False
    """Whether it is an earlier run of the conversation, which waits for a decision."""
    after: int = 0
    """Number of the event after which the answer starts: that with which the run paused for the client's results."""
    ignored: tuple[str, ...] = ()
    """Fields of the request that have no effect, although the client may expect one."""
    agent: str = ""

    @property
    def answer_id(self) -> str:
        """Id of the answer: a run that pauses for results of the client has several."""
        return f"{self.run.run_id}_{self.after}" if self.after else self.run.run_id

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
            RequestError: the run cannot start. `param` names the field.
            ConfigError: no agent is valid.
            StoreError: the store fails.
        """
        conversation = request.headers.get("x-conversation-id")
        if continued := await self._continued(asked, identity, pages_of(request), is_kept=bool(conversation)):
            return continued
        user = identity.user_of(asked.user or request.headers.get("x-openwebui-user-id") or None)
        agent = self.agent_of(asked.model, identity)
        options: RunOptions = {**asked.options, "agent": agent, "user": user}
        client, ignored = await self._client_tools(
            asked, agent, identity, is_repeated=not (conversation or asked.previous)
        )
        if client is not None:
            options["client_tools"] = client.model_dump(mode="json")
        if conversation:
            if asked.ends_with_result:
                advice = "send the results of calls without X-Conversation-Id"
                raise RequestError(f"messages: the server keeps only the last message: {advice}", param="messages")
            options["conversation"] = conversation
        elif asked.previous:
            messages, state = await self._messages_of(asked.previous, identity)
            options["history"] = [*messages, *asked.history]
            options["handed_to"] = state.handed_to if agent in (None, state.agent) else None
        else:
            options["history"] = asked.history
        if locale := accepted_locale(request.headers):
            options["locale"] = locale
        chat = request.headers.get("x-openwebui-chat-id")  # names that the data of a Python program does not have
        given = {"openai_metadata": asked.metadata, "openwebui_chat_id": chat}
        if metadata := {name: value for name, value in given.items() if value}:
            options["metadata"] = metadata
        try:
            run = await self._service.submit(
                identity, asked.message, options, fields=_FIELDS | _TOOL_FIELDS if asked.function else _FIELDS
            )
            return StartedRun(run, pages_of(request), ignored=ignored)
        except ConversationBusy as busy:
            run, state = await self._service.load(identity, busy.run_id or "")
            if not state.pending:
                raise busy from None
            return StartedRun(run, pages_of(request), is_waiting=True)

    async def _client_tools(
        self, asked: ClientRequest, agent: str | None, identity: Identity, *, is_repeated: bool
    ) -> tuple[ClientTools | None, tuple[str, ...]]:
        """Return the client's tools that are offered, and the fields that are ignored; raises RequestError.

        `is_repeated` is whether the request with the results repeats the conversation.
        """
        agents = self._catalog.current.agents
        choices = [agents[agent]] if agent is not None else [*agents.values()]
        key = identity.name if identity.client_tools else ""
        history = await asyncio.to_thread(history_digest, asked.messages) if asked.tools and is_repeated else ""
        return offered_tools(asked, choices, key, history)

    async def _continued(
        self, asked: ClientRequest, identity: Identity, pages: str, *, is_kept: bool
    ) -> StartedRun | None:
        """Continue the run whose calls a request has the results of; None if the request starts a run.

        Results that the run has already are a repetition, with the answer that they had.

        `is_kept` is whether the server keeps the conversation, so that the request need not repeat it.

        Raises:
            RequestError: no run waits for the results, or the conversation was changed.
        """
        if not asked.results:
            return None
        run_id = run_of_response(asked.previous) if asked.previous else run_of_calls(asked.results)
        if run_id is None:  # calls that the client, or another model, has made
            return None
        param = "input" if asked.previous else "messages"
        for _ in range(_ATTEMPTS):
            try:
                run, state = await self._service.load(identity, run_id)
            except RunNotFound:
                call_id = next(iter(asked.results))
                raise UnknownCall(f"no run waits for the result of the call {call_id!r:.80}", param=param) from None
            if asked.previous and not (state.client and state.client.stored):
                raise previous_not_found(asked.previous)
            results = asked.results
            if not (is_kept or asked.previous) and state.client and state.client.history:
                require_same_history(state, asked.messages)
                results = {**results_in(state, asked.messages), **results}
            decisions = new_decisions(state, results, param)
            if not decisions:
                events = await self._service.runtime.store.events(run_id, 0)
                return StartedRun(run, pages, after=pause_of(events, state, asked.results.keys()), agent=state.agent)
            with suppress(DecisionRefused, RunBusy):  # a repetition of the request came first, or the wait is over
                await self._service.decide(identity, run, decisions)
                return StartedRun(run, pages, after=state.seq, agent=state.agent)
        raise RunBusy(f"run {run_id} is continued by another request: repeat this one")

    async def _messages_of(self, response_id: str, identity: Identity) -> tuple[Sequence[Message], RunState]:
        """Return the conversation up to the end of a stored response, and its run; raises PreviousResponseNotFound."""
        try:
            run, state = await self._service.load(identity, run_of_response(response_id))
        except RunNotFound:
            raise previous_not_found(response_id) from None
        if not (state.client and state.client.stored):
            raise previous_not_found(response_id)
        if state.status in OPEN_STATUSES:
            call_ids = (client_call_id(run.run_id, one.id) for one in state.pending if is_client_call(one))
            waits = f"send the result of the call {call_id}" if (call_id := next(call_ids, "")) else "wait for its end"
            raise RequestError(f"the response {response_id!r:.80} has not ended: {waits}", param="input")
        return (await self._service.result(run)).messages, state

    async def read(self, started: StartedRun, asked: ClientRequest) -> AsyncGenerator[Event | AnswerText | Ending]:
        """Yield the events of the run of a request, each followed by its texts, and last how the run ended.

        Raises:
            RunSuspended: the server is closing; the run continues elsewhere.
            StoreError: the store fails.
        """
        as_data = asked.wants_data and not started.after
        reader, finished, run = AnswerReader(as_data=as_data), None, started.run
        asked_for: list[Confirmation] = []
        if not started.is_waiting:
            events = self._service.follow(run, started.after)
            try:
                async for event in events:
                    yield event
                    for piece in reader.read(event):
                        yield piece
                    if isinstance(event, ConfirmationRequested):
                        asked_for.append(Confirmation.model_validate(event.model_dump(include=_CONFIRMATION)))
                    finished = event if isinstance(event, StreamEnd) else None
                    if finished and any(map(is_client_call, asked_for)):
                        break  # of a repeated request: the run may have continued since
            finally:
                await events.aclose()
            if finished is None:
                raise RunSuspended(f"the server is closing; run {run.run_id} continues: {started.url}")
        result = await self._service.result(run)
        if isinstance(finished, RunPaused) and any(map(is_client_call, asked_for)):
            result = result.model_copy(update={"status": "paused", "pending": tuple(asked_for)})
        url = run_url(started.pages, run.run_id, result.pending)
        is_call = bool(asked.function) and not started.after
        as_data = as_data or (bool(started.after) and result.data is not None)
        ending = ending_of(result, url, as_data=as_data, function=asked.function if is_call else "")
        for piece in reader.end(ending, finished.message_id if finished else None):
            yield piece
        yield ending


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


AnswerWriter = ChatWriter | ResponseWriter
NewWriter = Callable[[str, int], AnswerWriter]
"""Returns what writes one answer in the format of an API. Arguments: the answer's id and the Unix time."""


class Exchange:
    """Answers the requests of both APIs."""

    def __init__(self, service: RunService) -> None:
        self._answers, self._repeated = RunAnswers(service), RepeatedRequests()
        self._limits, self._streams = service.limits, service.streams

    async def answer(
        self, asked: ClientRequest, identity: Identity, request: Request, new_writer: NewWriter
    ) -> Response:
        """Run the agent and return its answer. The run continues if the client leaves.

        Raises:
            RequestError, ConfigError, StoreError: the run did not start.
        """
        own = request.headers.get("x-agentsd-events") == "1"
        if asked.stream:
            with self._limits.admit_stream(identity) as admitted:
                started = await self._start(asked, identity, request)
                return EventStreamResponse(
                    request,
                    self._stream(asked, started, request, new_writer, own=own),
                    headers=_headers(started),
                    retry=False,
                    streams=self._streams,
                    ends_itself=True,
                    during=admitted.pop_all(),
                )
        started = await self._start(asked, identity, request)
        headers = _headers(started)
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
            if started.ignored:
                log.info("run %s: ignored %s of the client", started.run.run_id, " and ".join(started.ignored))
        return started

    async def _whole(
        self, asked: ClientRequest, started: StartedRun, new_writer: NewWriter, headers: Mapping[str, str], *, own: bool
    ) -> Response:
        """Return the answer once the run has ended or paused."""
        agent, thoughts, run = started.agent or asked.model, defaultdict[str, str](str), started.run
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
        body = new_writer(started.answer_id, int(time.time())).complete(agent, ending, "\n\n".join(thoughts.values()))
        if own:
            body["agentsd"] = {"run_id": run.run_id, "events": events, **body.get("agentsd", {})}
        return JSONResponse(body, headers=headers)

    async def _stream(
        self, asked: ClientRequest, started: StartedRun, request: Request, new_writer: NewWriter, *, own: bool
    ) -> AsyncGenerator[bytes]:
        """Yield the answer as it arrives."""
        writer, is_begun = new_writer(started.answer_id, int(time.time())), False
        items = self._answers.read(started, asked)
        try:
            async for item in items:
                for chunk in (
                    ()
                    if is_begun
                    else writer.begin(item.agent if isinstance(item, Routed) else started.agent or asked.model)
                ):
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


def _headers(started: StartedRun) -> dict[str, str]:
    ignored = {"x-agentsd-ignored": ", ".join(started.ignored)} if started.ignored else {}
    return {**started.run.headers, **ignored}


def failure(code: str, message: str, headers: Mapping[str, str] = MappingProxyType({})) -> Response:
    """Return the response for a run that started and failed. No client repeats it: the run may have had effects."""
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


_REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)


class _V1Route(MessageRoute):
    """A guarded route that adds the headers of OpenAI's API to every response."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_with_id(request: Request) -> Response:
            response: Response = await handle(request)
            sent = request.headers.get("x-request-id", "")
            request_id = sent if _REQUEST_ID.fullmatch(sent) else f"req_{uuid4().hex}"
            response.headers["x-request-id"] = request_id
            if response.status_code >= 500:
                response.headers["x-should-retry"] = "false"
            return response

        return handle_with_id


_PROMPT_START = "### Task:"
_PROMPT_MARK = "<chat_history>"
"""Both are in each of Open WebUI's own prompts. That for questions about documents has the first one only."""


async def answer_background_task(service: RunService, asked: ClientRequest, identity: Identity) -> Response:
    """Answer one of Open WebUI's own requests by the agent's model alone, without its instructions and tools.

    Raises:
        RequestError: there is no such agent, or the key sends too many requests.
    """
    runtime, current = service.runtime, service.runtime.catalog.current
    agent = RunAnswers(service).agent_of(asked.model, identity)
    # The default agent or, without one, the first: the router has no rules for such requests.
    agent = agent or current.settings.routing.default_agent or min(current.agents, default=None)
    service.limits.check_rate(identity)
    user = identity.user_of(asked.user)
    result = await runtime.ask_model(_text_of(asked), agent=agent, user=user, tenant=identity.tenant)
    ending = ending_of(result)
    if ending.finish_reason is None:
        return failure(ending.error_code, ending.error_message)
    writer = ChatWriter(result.run_id, int(time.time()), include_usage=asked.include_usage)
    if not asked.stream:
        return JSONResponse(writer.complete(result.agent, ending, ""))
    pieces = [*writer.begin(result.agent), *writer.text(AnswerText("content", "", ending.text)), *writer.end(ending)]
    return Response(b"".join(pieces), media_type="text/event-stream")


def is_background_task(asked: ClientRequest, headers: Headers) -> bool:
    """Return whether a request is one of Open WebUI's own: by its header or, without it, by the form of its prompt."""
    task = headers.get("x-openwebui-task", "").strip()
    if task and not task.startswith("{{"):  # a placeholder that Open WebUI did not replace
        return True
    text = _text_of(asked)
    return not asked.history and text.startswith(_PROMPT_START) and _PROMPT_MARK in text


def _text_of(asked: ClientRequest) -> str:
    parts = [asked.message] if isinstance(asked.message, str | File) else asked.message
    return "\n\n".join(part for part in parts if isinstance(part, str))


routes = APIRouter(prefix="/v1", route_class=_V1Route, tags=["openai"])
_Exchange = Annotated[Exchange, shared(lambda state: Exchange(state.service))]
_Created = Annotated[int, shared(lambda _: int(time.time()))]
_ROUTER = "Chooses an agent for each message."


def _models(identity: Identity, runtime: Runtime, created: int) -> dict[str, dict[str, Any]]:
    agents = {name: agent.spec.description for name, agent in sorted(runtime.catalog.current.agents.items())}
    visible = {name: text for name, text in agents.items() if identity.may_use(name)}
    described = {**({ROUTER_NAME: _ROUTER} if identity.agents is None else {}), **visible}
    return {
        name: {"id": name, "object": "model", "created": created, "owned_by": "agentsd", "description": text}
        for name, text in described.items()
    }


@routes.get("/models/", response_class=JSONResponse)
@routes.get("/models", response_class=JSONResponse)
async def list_models(identity: Chatter, runtime: ServedRuntime, created: _Created) -> Response:
    """Return the agents that the key may use."""
    return JSONResponse({"object": "list", "data": [*_models(identity, runtime, created).values()]})


@routes.get("/models/{model}", response_class=JSONResponse)
async def show_model(identity: Chatter, runtime: ServedRuntime, created: _Created, model: str) -> Response:
    """Return one agent."""
    found = _models(identity, runtime, created)
    if model not in found:
        raise ModelNotFound(f"no agent named {model!r}{did_you_mean(model, list(found))}", param="model")
    return JSONResponse(found[model])


@routes.post("/chat/completions", response_class=Response)
async def chat_completions(
    request: Request, identity: Chatter, service: ServedRuns, exchange: _Exchange, body: ChatCompletionBody
) -> Response:
    """Answer the last message with an agent, as a completion or, with `stream`, in chunks."""
    asked = await read_body(read_chat, body, body.messages)
    if is_background_task(asked, request.headers):
        return await answer_background_task(service, asked, identity)
    new_writer = partial(ChatWriter, include_usage=asked.include_usage)
    return await exchange.answer(asked, identity, request, new_writer)


@routes.post("/responses", response_class=Response)
async def responses(request: Request, identity: Chatter, exchange: _Exchange, body: ResponseBody) -> Response:
    """Answer the last message with an agent, as a response or, with `stream`, as its events."""
    asked = await read_body(read_response, body, body.input)
    new_writer = partial(ResponseWriter, previous=asked.previous, is_stored=asked.is_stored)
    return await exchange.answer(asked, identity, request, new_writer)
