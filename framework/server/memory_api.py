"""`/memory`: lists, shows and forgets the notes that agents keep across conversations."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Annotated

from fastapi import Query
from fastapi.responses import Response

from framework.server.errors import NoteNotFound
from framework.server.identity import Admin, Identity, Reader, RunReader, requires
from framework.server.request_handling import (
    Cursor,
    PageSize,
    ServedRuntime,
    api_router,
    error_responses,
    verbatim_response,
)
from framework.server.run_schemas import Id
from framework.server.schemas import ResponseModel
from framework.store.notes import Notes
from framework.store.types import NoteQuery
from framework.types.errors import RequestError
from framework.types.memory import Note
from framework.types.spec import MemoryScope


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


routes = api_router("runs")


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
    own = _notes_of(identity, user)
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
    forgotten = await runtime.store.notes.forget(replace(_notes_of(identity), ids=[note_id]))
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
    return verbatim_response(ForgottenNotes(forgotten=await runtime.store.notes.forget(_notes_of(identity, user))))


async def _find(notes: Notes, identity: Identity, note_id: str) -> Note:
    """Return a note that exists for an identity; raise NoteNotFound otherwise."""
    found = await notes.list(replace(_notes_of(identity), ids=[note_id]))
    if not found:
        raise NoteNotFound(f"there is no note {note_id[:40]!r}", param="note_id")
    return found[0]


def _notes_of(identity: Identity, user: str | None = None) -> NoteQuery:
    """Return the query for the notes that exist for an identity, and belong to a user if one is given."""
    return NoteQuery(
        user=identity.user_of(user),
        tenant=identity.tenant,
        without_tenant=identity.tenant is None and not identity.single_user,
        agents=identity.agents,
    )
