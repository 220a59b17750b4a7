"""`/conversations` and `/memory`: what agents keep: conversations, and notes across them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import Response
from pydantic import BeforeValidator, Field

from framework.engine.runtime.start import ForkPoint, fork_conversation
from framework.server.errors import NoteNotFound
from framework.server.identity import Admin, Chatter, Identity, Reader, RunReader, requires, scope_of
from framework.server.request_handling import (
    Cursor,
    IdempotencyHeader,
    Keyed,
    MessageRoute,
    PageSize,
    ServedRuntime,
    api_router,
    error_responses,
    verbatim_response,
)
from framework.server.run_service import list_conversations_for, load_conversation_for
from framework.server.schemas import Id, RequestModel, ResponseModel, whole_number
from framework.store.notes import Notes
from framework.store.types import SEARCHED_CONVERSATIONS, SEARCHED_TEXTS, ConversationQuery, NoteQuery
from framework.types.errors import RequestError
from framework.types.memory import Note
from framework.types.messages import Message, Summary
from framework.types.report import Status
from framework.types.spec import MemoryScope

routes = api_router("runs", MessageRoute)


class ForkBody(RequestModel):
    """Where a fork leaves the history of its conversation: exactly one of `before`, `after` and `messages`."""

    before: Id | None = None
    """Id of the run whose message and answer are left out, with those after it."""
    after: Id | None = None
    """Id of the last run that is kept."""
    messages: Annotated[int, Field(ge=0, le=10**6), BeforeValidator(whole_number)] | None = None
    """Number of messages of the conversation that are kept; the last one must be an answer."""
    conversation_id: Id | None = None
    """Id of the new conversation. Default: a new one."""

    @property
    def point(self) -> ForkPoint:
        """The place."""
        return ForkPoint(self.before, self.after, self.messages)


class _ConversationFacts(ResponseModel):
    """What lists and details of conversations have in common."""

    conversation_id: Annotated[str, Field(validation_alias="id")]
    agent: str | None
    """The agent that answered last."""
    turns: int
    """Number of runs that started in it."""
    open_run: str | None
    """Id of its run that is in progress or paused."""
    user: str | None
    tenant: str | None
    forked_from: str | None = None
    """Id of the conversation whose first turns were copied to this one."""
    handed_to: str | None = None
    """The agent that answers the next message instead of `agent`, which has handed the conversation over."""


class ConversationSummary(_ConversationFacts):
    """One conversation, as shown in lists."""

    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    title: str
    """The start of the user's message of its first stored run."""
    status: Status | None
    """Status of its last stored run."""


class ConversationList(ResponseModel):
    """Conversations, the latest turn first."""

    conversations: tuple[ConversationSummary, ...]
    next: str | None
    """Value of `cursor` for the next page; null on the last one."""


class ConversationDetail(_ConversationFacts):
    """The messages of a conversation."""

    waiting: int
    """Number of its runs that wait in the queue."""
    messages: tuple[Message, ...]
    """Messages of the turns that completed or were stopped by a limit."""
    summary: Summary | None
    """Summary that replaces the start of the messages in requests to a model."""


class ForkedConversation(ResponseModel):
    """A conversation that starts with copies of the turns of another."""

    conversation_id: Annotated[str, Field(validation_alias="id")]
    forked_from: str | None
    """Id of the other conversation."""
    agent: str | None
    """The agent that answered last."""
    turns: int
    """Number of turns that were copied."""


class DeletedConversation(ResponseModel):
    """A conversation that was deleted with all its runs."""

    conversation_id: str
    runs: int
    """Number of runs that were deleted."""


_SEARCH = (
    "Only conversations whose title, agent or id contains this, looked up in the latest "
    f"{SEARCHED_CONVERSATIONS:,}; or any message of the user or the model, in the newest {SEARCHED_TEXTS:,} runs."
)
_TENANT = Annotated[Id | None, Query(description="Its tenant, if the key can access several.")]
_USER = Annotated[Id | None, Query(description="Its user, if the key can access several that have one with this id.")]


@routes.get("/conversations", response_model=ConversationList)
async def list_conversations(
    identity: Reader,
    runtime: ServedRuntime,
    agent: Annotated[str | None, Query(description="Only conversations that this agent answered last.")] = None,
    user: Annotated[Id | None, Query(description="Only conversations of this user.")] = None,
    q: Annotated[Id | None, Query(description=_SEARCH)] = None,
    cursor: Cursor = None,
    limit: PageSize = 20,
) -> Response:
    """List conversations, the latest turn first."""
    query = ConversationQuery(agent=agent, user=user, search=q, cursor=cursor or None, limit=limit)
    found, following = await list_conversations_for(runtime, identity, query)
    summaries = tuple(map(ConversationSummary.model_validate, found))
    return verbatim_response(ConversationList(conversations=summaries, next=following))


@routes.get("/conversations/{conversation_id:path}", include_in_schema=False)  # an id may contain slashes
@routes.get("/conversations/{conversation_id}", response_model=ConversationDetail, responses=error_responses(404))
async def show_conversation(
    identity: RunReader, runtime: ServedRuntime, conversation_id: str, tenant: _TENANT = None, user: _USER = None
) -> Response:
    """Return a conversation with its messages."""
    found = await load_conversation_for(runtime, identity, conversation_id, tenant, user)
    return verbatim_response(ConversationDetail.model_validate(found))


@routes.delete("/conversations/{conversation_id:path}", include_in_schema=False)
@routes.delete(
    "/conversations/{conversation_id}", response_model=DeletedConversation, responses=error_responses(404, 409)
)
async def delete_conversation(
    identity: Admin, runtime: ServedRuntime, conversation_id: str, tenant: _TENANT = None, user: _USER = None
) -> Response:
    """Delete a conversation with all its runs and their data."""
    found = await load_conversation_for(runtime, identity, conversation_id, tenant, user)
    runs = await runtime.store.delete_conversation(found.id, found.tenant, found.user)
    return verbatim_response(DeletedConversation(conversation_id=found.id, runs=runs))


@routes.post("/conversations/{conversation_id:path}/fork", status_code=201, include_in_schema=False)
@routes.post(
    "/conversations/{conversation_id}/fork",
    name="fork_conversation",
    status_code=201,
    response_model=ForkedConversation,
    responses=error_responses(404, 409, 413),
)
async def copy_turns(
    request: Request,
    identity: Chatter,
    runtime: ServedRuntime,
    keyed: Keyed,
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
        origin = await load_conversation_for(runtime, identity, conversation_id, tenant, user)
        made = await fork_conversation(runtime.store, origin, body.point, body.conversation_id)
        return verbatim_response(ForkedConversation.model_validate(made), 201)

    return await keyed.once(request, idempotency_key, fork)


class NoteDetail(ResponseModel):
    """A note. Everything in it is data of users and models."""

    id: str
    text: str
    scope: MemoryScope
    """Who shares it: `user` (all agents with this scope), `agent` (this agent alone), `tenant` (all its users)."""
    user: str | None
    """User of the run that saved it."""
    tenant: str | None
    agent: str
    """Agent that saved it."""
    run_id: str
    """Run that saved it."""
    conversation_id: str | None
    untrusted: bool
    """Whether text of tools, files or servers was in the conversation when the model wrote it."""
    created_at: datetime
    used_at: datetime
    """When a run last received it."""
    expires_at: datetime | None


class NoteList(ResponseModel):
    """Notes, the newest first."""

    notes: tuple[NoteDetail, ...]
    next: str | None = None
    """`cursor` of the next page; null at the end."""


class ForgottenNotes(ResponseModel):
    """What was deleted."""

    forgotten: int
    """Number of notes."""


@routes.get("/memory", response_model=NoteList)
async def list_notes(
    identity: Reader,
    runtime: ServedRuntime,
    agent: Annotated[str | None, Query(description="Only notes that this agent saved.")] = None,
    user: Annotated[Id | None, Query(description="Only notes of this user's runs.")] = None,
    scope: Annotated[MemoryScope | None, Query(description="Only notes of this scope.")] = None,
    q: Annotated[Id | None, Query(description="Only notes that contain this text.")] = None,
    cursor: Cursor = None,
    limit: PageSize = 20,
) -> Response:
    """List notes that agents keep across conversations, the newest first."""
    own = NoteQuery(**scope_of(identity, user))
    agents = own.agents if agent is None else [agent] if identity.may_use(agent) else []
    query = replace(own, agents=agents, scope=scope, search=q, before=cursor or None, limit=limit + 1)
    try:
        found = await runtime.store.notes.list(query)
    except RequestError as error:
        raise RequestError(f"cursor: {error.message}", param="cursor") from None
    shown = tuple(map(NoteDetail.model_validate, found[:limit]))
    return verbatim_response(NoteList(notes=shown, next=shown[-1].id if len(found) > limit else None))


@routes.get("/memory/{note_id}", response_model=NoteDetail, responses=error_responses(404))
async def show_note(identity: RunReader, runtime: ServedRuntime, note_id: str) -> Response:
    """Return a note."""
    return verbatim_response(NoteDetail.model_validate(await _find(runtime.store.notes, identity, note_id)))


@routes.delete("/memory/{note_id}", response_model=ForgottenNotes, responses=error_responses(404))
async def forget_note(
    identity: Annotated[Identity, requires("chat", "admin")], runtime: ServedRuntime, note_id: str
) -> Response:
    """Forget a note. Runs that have begun with it keep it until they end."""
    await _find(runtime.store.notes, identity, note_id)
    forgotten = await runtime.store.notes.forget(replace(NoteQuery(**scope_of(identity)), ids=[note_id]))
    return verbatim_response(ForgottenNotes(forgotten=forgotten))


@routes.delete("/memory", response_model=ForgottenNotes)
async def forget_notes(
    identity: Admin,
    runtime: ServedRuntime,
    user: Annotated[Id, Query(description="The user whose notes are deleted, in any scope.")],
) -> Response:
    """Forget all notes that runs of a user have saved."""
    if identity.user not in (None, user):
        raise NoteNotFound(f"there are no notes of the user {user[:40]!r}", param="user")
    return verbatim_response(
        ForgottenNotes(forgotten=await runtime.store.notes.forget(NoteQuery(**scope_of(identity, user))))
    )


async def _find(notes: Notes, identity: Identity, note_id: str) -> Note:
    """Return a note that exists for an identity; raise NoteNotFound otherwise."""
    found = await notes.list(replace(NoteQuery(**scope_of(identity)), ids=[note_id]))
    if not found:
        raise NoteNotFound(f"there is no note {note_id[:40]!r}", param="note_id")
    return found[0]
