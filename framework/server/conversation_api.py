"""`/conversations`: lists, shows, forks and deletes conversations."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from framework.engine.runtime.conversation import fork_conversation as copy_conversation
from framework.engine.runtime.runtime import Runtime
from framework.server.identity import identity_of, requires
from framework.server.keyed_responses import IdempotencyHeader, KeyedResponses
from framework.server.openapi import error_responses
from framework.server.request_handling import Cursor, PageSize, verbatim_response
from framework.server.run_schemas import (
    ConversationDetail,
    ConversationList,
    ConversationSummary,
    DeletedConversation,
    ForkBody,
    ForkedConversation,
    Id,
)
from framework.server.run_service import list_conversations_for, load_conversation_for
from framework.store.types import SEARCHED_CONVERSATIONS, SEARCHED_TEXTS, ConversationQuery

_SEARCH = (
    "Only conversations whose title, agent or id contains this, looked up in the latest "
    f"{SEARCHED_CONVERSATIONS:,}; or any message of the user or the model, in the newest {SEARCHED_TEXTS:,} runs."
)
_TENANT = Annotated[Id | None, Query(description="Its tenant, if the key can access several.")]
_USER = Annotated[Id | None, Query(description="Its user, if the key can access several that have one with this id.")]


def add_conversation_routes(routes: APIRouter, runtime: Runtime, keyed: KeyedResponses) -> None:
    """Add the routes below `/conversations`."""
    _add_fork_route(routes, runtime, keyed)

    @routes.get("/conversations", response_model=ConversationList, dependencies=[requires("read")])
    async def list_conversations(
        request: Request,
        agent: Annotated[str | None, Query(description="Only conversations that this agent answered last.")] = None,
        user: Annotated[Id | None, Query(description="Only conversations of this user.")] = None,
        q: Annotated[Id | None, Query(description=_SEARCH)] = None,
        cursor: Cursor = None,
        limit: PageSize = 20,
    ) -> Response:
        """List conversations, the latest turn first."""
        query = ConversationQuery(agent=agent, user=user, search=q, cursor=cursor or None, limit=limit)
        found, following = await list_conversations_for(runtime, identity_of(request), query)
        summaries = tuple(map(ConversationSummary.model_validate, found))
        return verbatim_response(ConversationList(conversations=summaries, next=following))

    @routes.get(
        "/conversations/{conversation_id}",
        response_model=ConversationDetail,
        dependencies=[requires("read", "chat")],
        responses=error_responses(404),
    )
    async def show_conversation(
        request: Request, conversation_id: str, tenant: _TENANT = None, user: _USER = None
    ) -> Response:
        """Return a conversation with its messages."""
        found = await load_conversation_for(runtime, identity_of(request), conversation_id, tenant, user)
        return verbatim_response(ConversationDetail.model_validate(found))

    @routes.delete(
        "/conversations/{conversation_id}",
        response_model=DeletedConversation,
        dependencies=[requires("admin")],
        responses=error_responses(404, 409),
    )
    async def delete_conversation(
        request: Request, conversation_id: str, tenant: _TENANT = None, user: _USER = None
    ) -> Response:
        """Delete a conversation with all its runs and their data."""
        found = await load_conversation_for(runtime, identity_of(request), conversation_id, tenant, user)
        runs = await runtime.store.delete_conversation(found.id, found.tenant, found.user)
        return verbatim_response(DeletedConversation(conversation_id=found.id, runs=runs))


def _add_fork_route(routes: APIRouter, runtime: Runtime, keyed: KeyedResponses) -> None:
    @routes.post(
        "/conversations/{conversation_id}/fork",
        status_code=201,
        response_model=ForkedConversation,
        dependencies=[requires("chat")],
        responses=error_responses(404, 409, 413),
    )
    async def fork_conversation(
        request: Request,
        conversation_id: str,
        body: ForkBody,
        tenant: _TENANT = None,
        user: _USER = None,
        idempotency_key: IdempotencyHeader = None,
    ) -> Response:
        """Begin a new conversation with copies of the turns before or up to a run. Nothing is executed.

        Send the next message, such as an edited one, with the id of the new conversation.
        """

        async def fork() -> Response:
            origin = await load_conversation_for(runtime, identity_of(request), conversation_id, tenant, user)
            made = await copy_conversation(runtime.store, origin, body.point, body.conversation_id)
            return verbatim_response(ForkedConversation.model_validate(made), 201)

        return await keyed.once(request, idempotency_key, fork)
