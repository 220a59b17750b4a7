"""Loads runs and conversations for an identity. No route loads them in any other way.

What belongs to another tenant, user or agent does not exist for the identity: the error is that of an unknown id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from framework.engine.runtime.runtime import Runtime
from framework.server.errors import ConversationNotFound
from framework.server.identity import Identity
from framework.store.protocol import Conversation, ConversationInfo, ConversationQuery, RunInfo, RunQuery
from framework.types.errors import RequestError, RunNotFound
from framework.types.state import RunState

MAX_URL_ID_CHARS = 200
"""Length limit of ids, as for conversations."""
_PAGE = 100
"""Number of entries that are read at once if some of them may be skipped."""
_MAX_PAGES = 20
"""Number of such reads in one request. The list then ends early, with a cursor to continue from."""

_T = TypeVar("_T", RunInfo, ConversationInfo)


async def load_run_for(runtime: Runtime, identity: Identity, run_id: str) -> RunState:
    """Return the state of a run that exists for an identity; raises RunNotFound."""
    try:
        state = await runtime.store.load_run(run_id) if _is_id(run_id) else None
    except RunNotFound:
        state = None
    if state is None or not identity.can_access(tenant=state.tenant, user=state.user, agent=state.agent or None):
        raise RunNotFound(f"there is no run {run_id[:MAX_URL_ID_CHARS]!r}", param="run_id")
    return state


async def load_conversation_for(
    runtime: Runtime, identity: Identity, conversation_id: str, tenant: str | None = None
) -> Conversation:
    """Return a conversation that exists for an identity.

    Args:
        runtime: the runtime with the store.
        identity: the client.
        conversation_id: the id of the conversation.
        tenant: its tenant, if the identity can access several of them.

    Raises:
        ConversationNotFound: no such conversation exists for the identity.
        RequestError: the identity can access conversations with this id of several tenants.
    """
    owner = tenant if identity.single_user else identity.tenant
    if _is_id(conversation_id) and tenant in (None, owner):
        if identity.single_user and tenant is None:
            owner = await _tenant_of(runtime, conversation_id)
        found = await runtime.store.conversation(conversation_id, owner)
        if found.is_stored and identity.can_access(tenant=found.tenant, user=found.user, agent=found.agent):
            return found
    raise ConversationNotFound(
        f"there is no conversation {conversation_id[:MAX_URL_ID_CHARS]!r}", param="conversation_id"
    )


async def list_runs_for(runtime: Runtime, identity: Identity, query: RunQuery) -> tuple[Sequence[RunInfo], str | None]:
    """Return the runs that exist for an identity, newest first, and the cursor of the next page, if there is one.

    Args:
        runtime: the runtime with the store.
        identity: the client.
        query: filters; its user and tenant are replaced by those of the identity. `limit` must be set.
    """
    user, tenant = _owner(identity, query.user)
    base = replace(query, newest_first=True, user=user, tenant=tenant)

    async def read(cursor: str | None, limit: int) -> Sequence[RunInfo]:
        return await runtime.store.runs(replace(base, before=cursor, limit=limit))

    return await _page(read, identity, query.before, query.limit or _PAGE, lambda info: info.run_id)


async def list_conversations_for(
    runtime: Runtime, identity: Identity, query: ConversationQuery
) -> tuple[Sequence[ConversationInfo], str | None]:
    """Return the conversations that exist for an identity, latest turn first, and the cursor of the next page."""
    user, tenant = _owner(identity, query.user)
    base = replace(query, user=user, tenant=tenant)

    async def read(cursor: str | None, limit: int) -> Sequence[ConversationInfo]:
        return await runtime.store.conversations(replace(base, cursor=cursor, limit=limit))

    return await _page(read, identity, query.cursor, query.limit or _PAGE, lambda info: info.cursor)


async def _page(
    read: Callable[[str | None, int], Awaitable[Sequence[_T]]],
    identity: Identity,
    cursor: str | None,
    limit: int,
    cursor_of: Callable[[_T], str],
) -> tuple[Sequence[_T], str | None]:
    """Read until a page is full.

    Entries that the query returns although they do not exist for the identity are skipped: those of other agents, and
    those of tenants if the identity has none.
    """
    found: list[_T] = []
    is_complete = identity.single_user or (identity.agents is None and identity.tenant is not None)
    for _ in range(_MAX_PAGES):
        size = limit - len(found) + 1 if is_complete else _PAGE
        entries = await read(cursor, size)
        for entry in entries:
            if identity.can_access(tenant=entry.tenant, user=entry.user, agent=entry.agent or None):
                if len(found) == limit:
                    return found, cursor
                found.append(entry)
            cursor = cursor_of(entry)
        if len(entries) < size:
            return found, None
    return found, cursor


async def _tenant_of(runtime: Runtime, conversation_id: str) -> str | None:
    """Return the tenant of the only conversation with this id; raises RequestError if there are several."""
    found = await runtime.store.conversations(ConversationQuery(id=conversation_id, limit=2))
    if len(found) > 1:
        raise RequestError(f"several tenants have a conversation {conversation_id!r}: pass tenant", param="tenant")
    return found[0].tenant if found else None


def _owner(identity: Identity, user: str | None) -> tuple[str | None, str | None]:
    """Return the user and tenant of a query, in which None matches every one."""
    return identity.user_of(user), identity.tenant


def _is_id(text: str) -> bool:
    """Return whether a text can be an id. Others, such as those with control characters, are not looked up."""
    return 0 < len(text) <= MAX_URL_ID_CHARS and text.isprintable()
