"""Starts the run of a client's request, and reads its answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.requests import Request

from framework.engine.runtime.request import RunOptions
from framework.engine.runtime.runtime import Runtime
from framework.engine.runtime.start import select_agent
from framework.server.identity import Identity, agent_for
from framework.server.key_limits import KeyLimits
from framework.server.openai.answer import AnswerReader, AnswerText, Ending, ending_of
from framework.server.openai.client_request import ClientRequest
from framework.server.owned import check_conversation_for
from framework.types.errors import AgentNotFound, ConversationBusy, RequestError, RunSuspended
from framework.types.events import Event, RunFinished

ROUTER_MODEL = "auto"
"""Name of the model that is no agent: the router chooses one."""
_FIELDS: Mapping[str | None, str] = {
    "message": "messages",
    "history": "messages",
    "instructions": "messages",
    "output_schema": "response_format",
    "conversation": "X-Conversation-Id",
}
"""Fields of clients by the options of a run that they become."""


class ModelNotFound(RequestError):
    """The model that a client names is no agent."""

    code = "model_not_found"
    http_status = 404


@dataclass(frozen=True, slots=True)
class StartedRun:
    """The run that answers a request."""

    run_id: str
    user: str | None
    tenant: str | None
    url: str
    """URL of the run, for people."""
    is_waiting: bool = False
    """Whether it is an earlier run of the conversation, which waits for a decision."""


class RunAnswers:
    """Starts runs for the requests of OpenAI's clients, and reads their answers."""

    def __init__(self, runtime: Runtime, limits: KeyLimits) -> None:
        self._runtime, self._limits = runtime, limits

    def agent_of(self, model: str, identity: Identity) -> str | None:
        """Return the agent that a client names as its model, or None if the router chooses it.

        Raises:
            ModelNotFound: no such agent exists for the identity.
            RequestError: the client names none, and its key may use several, but not all.
        """
        known = self._runtime.catalog.current.agents
        requested = None if model == ROUTER_MODEL and ROUTER_MODEL not in known else model
        try:
            chosen = agent_for(identity, requested, known)
            if chosen is not None:
                select_agent("", self._runtime.catalog.current, explicit=chosen)
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
        agent, base_url = self.agent_of(asked.model, identity), str(request.base_url)
        user = identity.user_of(asked.user or request.headers.get("x-openwebui-user-id") or None)
        options: RunOptions = {**asked.options, "agent": agent, "user": user, "tenant": identity.tenant}
        if conversation := request.headers.get("x-conversation-id"):
            await check_conversation_for(self._runtime, identity, conversation)
            options["conversation"] = conversation
        else:
            options["history"] = asked.history
        if metadata := _metadata(asked, request.headers):
            options["metadata"] = metadata
        try:
            async with self._limits.starting(identity) as count:
                run_id = (await self._runtime.submit(asked.message, **options)).run_id
                count(run_id)
        except ConversationBusy as busy:
            if busy.run_id and await self._runtime.pending(busy.run_id, user=user, tenant=identity.tenant):
                return StartedRun(busy.run_id, user, identity.tenant, _run_url(base_url, busy.run_id), is_waiting=True)
            raise
        except RequestError as error:
            if type(error) is not RequestError:
                raise
            raise RequestError(error.message, param=_FIELDS.get(error.param, error.param)) from None
        return StartedRun(run_id, user, identity.tenant, _run_url(base_url, run_id))

    async def read(self, run: StartedRun, *, as_data: bool) -> AsyncGenerator[Event | AnswerText | Ending]:
        """Yield the events of a run, each followed by its texts, and last how the run ended.

        Raises:
            RunSuspended: the server is closing; the run continues elsewhere.
            StoreError: the store fails.
        """
        reader, finished = AnswerReader(as_data=as_data), None
        if not run.is_waiting:
            events = self._runtime.follow(run.run_id, user=run.user, tenant=run.tenant)
            try:
                async for event in events:
                    yield event
                    for piece in reader.read(event):
                        yield piece
                    finished = event if isinstance(event, RunFinished) else None
            finally:
                await events.aclose()
            if finished is None:
                raise RunSuspended(f"the server is closing; run {run.run_id} continues: {run.url}")
        result = await self._runtime.result(run.run_id, user=run.user, tenant=run.tenant)
        ending = ending_of(result, run.url, as_data=as_data)
        for piece in reader.end(ending, finished.message_id if finished else None):
            yield piece
        yield ending


def _metadata(asked: ClientRequest, headers: Headers) -> dict[str, Any]:
    """Return the client's own data, under names that the data of a Python program does not have."""
    given = {"openai_metadata": asked.metadata, "openwebui_chat_id": headers.get("x-openwebui-chat-id")}
    return {name: value for name, value in given.items() if value}


def _run_url(base_url: str, run_id: str) -> str:
    return f"{base_url.rstrip('/')}/agent/runs/{quote(run_id)}"
