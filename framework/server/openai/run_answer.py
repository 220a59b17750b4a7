"""Starts the run of a client's request, and reads its answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request

from framework.engine.runtime.request import RunOptions
from framework.engine.runtime.start import select_agent
from framework.server.identity import Identity, agent_for, agent_named
from framework.server.openai.answer import AnswerReader, AnswerText, Ending, ending_of
from framework.server.openai.client_request import ClientRequest
from framework.server.request_handling import accepted_locale
from framework.server.run_service import OwnedRun, RunService
from framework.server.wording import pages_of, run_url
from framework.types.errors import AgentNotFound, ConversationBusy, RequestError, RunSuspended
from framework.types.events import Event, StreamEnd

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
