"""The routes below /v1: models, chat completions, responses, and what clients ask in the background."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any
from uuid import uuid4

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers

from framework.engine.runtime.runtime import Runtime
from framework.server.identity import ROUTER_NAME, Identify, Identity, identity_of, requires
from framework.server.key_limits import KeyLimits
from framework.server.openai.answer import AnswerText, ChatWriter, ResponseWriter, ending_of
from framework.server.openai.client_request import (
    ChatCompletionBody,
    ClientRequest,
    ResponseBody,
    read_body,
    read_chat,
    read_response,
)
from framework.server.openai.exchange import Exchange, ModelNotFound, RunAnswers, failure
from framework.server.request_handling import CHAT_BODY_BYTES, guarded_route
from framework.server.run_service import RunService
from framework.types.file import File
from framework.types.text import did_you_mean

_REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)


def with_request_ids(guarded: type[APIRoute]) -> type[APIRoute]:
    """Return a route class that adds the headers of OpenAI's API to every response of a guarded route."""

    class V1Route(guarded):  # type: ignore[misc,valid-type]  # the class is a parameter
        """A guarded route whose responses have `x-request-id`."""

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

    return V1Route


_PROMPT_START = "### Task:"
_PROMPT_MARK = "<chat_history>"
"""Both are in each of Open WebUI's own prompts. That for questions about documents has the first one only."""


class BackgroundTasks:
    """Answers Open WebUI's own requests."""

    def __init__(self, runtime: Runtime, answers: RunAnswers, limits: KeyLimits) -> None:
        self._runtime, self._answers, self._limits = runtime, answers, limits

    async def answer(self, asked: ClientRequest, identity: Identity) -> Response:
        """Return the answer of the agent's model alone, without its instructions and tools.

        Raises:
            RequestError: there is no such agent, or the key sends too many requests.
        """
        agent = self._answers.agent_of(asked.model, identity) or self._any_agent()
        self._limits.check_rate(identity)
        result = await self._runtime.ask_model(
            _text_of(asked), agent=agent, user=identity.user_of(asked.user), tenant=identity.tenant
        )
        ending = ending_of(result)
        if ending.finish_reason is None:
            return failure(ending.error_code, ending.error_message)
        writer = ChatWriter(result.run_id, int(time.time()), include_usage=asked.include_usage)
        if not asked.stream:
            return JSONResponse(writer.complete(result.agent, ending, ""))
        pieces = [
            *writer.begin(result.agent),
            *writer.text(AnswerText("content", "", ending.text)),
            *writer.end(ending),
        ]
        return Response(b"".join(pieces), media_type="text/event-stream")

    def _any_agent(self) -> str | None:
        """Return the default agent or, without one, the first: the router has no rules for such requests."""
        current = self._runtime.catalog.current
        return current.settings.routing.default_agent or min(current.agents, default=None)


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


def add_chat_completions_route(routes: APIRouter, exchange: Exchange, tasks: BackgroundTasks) -> None:
    """Add `/chat/completions`."""

    @routes.post("/chat/completions", response_class=Response, dependencies=[requires("chat")])
    async def chat_completions(request: Request, body: ChatCompletionBody) -> Response:
        """Answer the last message with an agent, as a completion or, with `stream`, in chunks."""
        asked, identity = await read_body(read_chat, body, body.messages), identity_of(request)
        if is_background_task(asked, request.headers):
            return await tasks.answer(asked, identity)
        new_writer = partial(ChatWriter, include_usage=asked.include_usage)
        return await exchange.answer(asked, identity, request, new_writer)


def add_responses_route(routes: APIRouter, exchange: Exchange) -> None:
    """Add `/responses`."""

    @routes.post("/responses", response_class=Response, dependencies=[requires("chat")])
    async def responses(request: Request, body: ResponseBody) -> Response:
        """Answer the last message with an agent, as a response or, with `stream`, as its events."""
        asked = await read_body(read_response, body, body.input)
        new_writer = partial(ResponseWriter, previous=asked.previous, is_stored=asked.is_stored)
        return await exchange.answer(asked, identity_of(request), request, new_writer)


_ROUTER = "Chooses an agent for each message."


def add_models_routes(routes: APIRouter, runtime: Runtime) -> None:
    """Add `/models` and `/models/{model}`."""
    created = int(time.time())

    def listed(identity: Identity) -> dict[str, dict[str, Any]]:
        agents = {name: agent.spec.description for name, agent in sorted(runtime.catalog.current.agents.items())}
        visible = {name: text for name, text in agents.items() if identity.may_use(name)}
        described = {**({ROUTER_NAME: _ROUTER} if identity.agents is None else {}), **visible}
        return {
            name: {"id": name, "object": "model", "created": created, "owned_by": "agentsd", "description": text}
            for name, text in described.items()
        }

    @routes.get("/models/", response_class=JSONResponse, dependencies=[requires("chat")])
    @routes.get("/models", response_class=JSONResponse, dependencies=[requires("chat")])
    async def models(request: Request) -> Response:
        """Return the agents that the key may use."""
        return JSONResponse({"object": "list", "data": [*listed(identity_of(request)).values()]})

    @routes.get("/models/{model}", response_class=JSONResponse, dependencies=[requires("chat")])
    async def model(request: Request, model: str) -> Response:
        """Return one agent."""
        found = listed(identity_of(request))
        if model not in found:
            raise ModelNotFound(f"no agent named {model!r}{did_you_mean(model, list(found))}", param="model")
        return JSONResponse(found[model])


def v1_routes(service: RunService, identify: Identify) -> APIRouter:
    """Return the routes below `/v1`.

    Args:
        service: the operations on runs, shared with the other routes.
        identify: the access check.
    """
    runtime = service.runtime
    guarded = guarded_route(
        identify, lambda: runtime.settings.telemetry.inbound, CHAT_BODY_BYTES, service.limits.bodies
    )
    routes = APIRouter(prefix="/v1", route_class=with_request_ids(guarded), tags=["openai"])
    answers = RunAnswers(service)
    exchange = Exchange(answers, service.limits, service.streams)
    add_models_routes(routes, runtime)
    add_chat_completions_route(routes, exchange, BackgroundTasks(runtime, answers, service.limits))
    add_responses_route(routes, exchange)
    return routes
