"""Loads runs and conversations for an identity. No route loads them in any other way.

What belongs to another tenant, user or agent does not exist for the identity: the error is that of an unknown id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from framework.engine.runtime.runtime import Runtime
from framework.server.identity import Identity
from framework.store.conversation_lists import ConversationInfo, ConversationQuery
from framework.store.fleet import read_fleet
from framework.store.period import Period
from framework.store.protocol import Conversation, RunInfo, RunQuery
from framework.store.usage import Grouping, UsageReport
from framework.types.errors import ConversationNotFound, RequestError, RunNotFound
from framework.types.fleet import Fleet
from framework.types.state import RunState

MAX_URL_ID_CHARS = 200
"""Length limit of ids, as for conversations."""
_PAGE = 100
"""Number of entries of a page without a limit."""


async def load_run_for(runtime: Runtime, identity: Identity, run_id: str) -> RunState:
    """Return the state of a run that exists for an identity; raises RunNotFound."""
    try:
        state = await runtime.store.load_run(run_id) if _is_id(run_id) else None
    except RunNotFound:
        state = None
    if state is None or not identity.can_access(tenant=state.tenant, user=state.user, agent=state.agent):
        raise RunNotFound(f"there is no run {run_id[:MAX_URL_ID_CHARS]!r}", param="run_id")
    return state


async def load_run_info_for(runtime: Runtime, identity: Identity, run_id: str) -> RunInfo:
    """Return the entry in lists of a run that exists for an identity; raises RunNotFound."""
    found, _ = await list_runs_for(runtime, identity, RunQuery(run_id=run_id, limit=1))
    if not found:
        raise RunNotFound(f"there is no run {run_id[:MAX_URL_ID_CHARS]!r}", param="run_id")
    return found[0]


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
        if found.is_stored and await _can_access(runtime, identity, found):
            return found
    raise _not_found(conversation_id)


async def check_conversation_for(runtime: Runtime, identity: Identity, conversation_id: str) -> None:
    """Raise ConversationNotFound if a message of an identity would join a conversation that does not exist for it.

    An unknown id is accepted: it begins a new conversation.
    """
    if identity.single_user or not _is_id(conversation_id):  # the runtime rejects what is no id
        return
    found = await runtime.store.conversation(conversation_id, identity.tenant)
    if found.is_stored and not await _can_access(runtime, identity, found):
        raise _not_found(conversation_id)


async def list_runs_for(runtime: Runtime, identity: Identity, query: RunQuery) -> tuple[Sequence[RunInfo], str | None]:
    """Return the runs that exist for an identity, newest first, and the cursor of the next page, if there is one.

    Args:
        runtime: the runtime with the store.
        identity: the client.
        query: filters and `limit`. Its owner is replaced by that of the identity.

    Raises:
        RequestError: `before` is no run that exists for the identity.
    """
    limit = query.limit or _PAGE
    found = await runtime.store.runs(replace(query, newest_first=True, limit=limit + 1, **_scope(identity, query.user)))
    return found[:limit], found[limit - 1].run_id if len(found) > limit else None


async def count_runs_for(runtime: Runtime, identity: Identity, query: RunQuery) -> int:
    """Return the number of runs that exist for an identity and match a query."""
    return await runtime.store.count_runs(replace(query, **_scope(identity, query.user)))


async def report_usage_for(
    runtime: Runtime, identity: Identity, query: RunQuery, by: Grouping, period: Period
) -> UsageReport:
    """Return figures of the runs that exist for an identity, match a query, and were added in a period."""
    return await runtime.store.usage(replace(query, **_scope(identity, query.user)), by, period)


async def read_fleet_for(runtime: Runtime, identity: Identity) -> Fleet:
    """Return the processes that share the store, and what waits of the runs that exist for an identity."""
    return await read_fleet(runtime.store, RunQuery(**_scope(identity, None)))


async def list_conversations_for(
    runtime: Runtime, identity: Identity, query: ConversationQuery
) -> tuple[Sequence[ConversationInfo], str | None]:
    """Return the conversations that exist for an identity, latest turn first, and the cursor of the next page.

    A conversation in which no agent has answered yet is missing for an identity that is limited to some agents.
    """
    limit = query.limit or _PAGE
    found = await runtime.store.conversations(replace(query, limit=limit + 1, **_scope(identity, query.user)))
    return found[:limit], found[limit - 1].cursor if len(found) > limit else None


async def _can_access(runtime: Runtime, identity: Identity, found: Conversation) -> bool:
    """Return whether a conversation exists for an identity. It belongs to the agent that answered last, or will."""
    if not identity.can_access(tenant=found.tenant, user=found.user, agent=found.agent):
        return False
    if identity.agents is None or found.agent is not None:
        return True
    query = RunQuery(conversation_id=found.id, limit=1, **_scope(identity, None))
    return bool(await runtime.store.runs(query))


async def _tenant_of(runtime: Runtime, conversation_id: str) -> str | None:
    """Return the tenant of the only conversation with this id; raises RequestError if there are several."""
    found = await runtime.store.conversations(ConversationQuery(id=conversation_id, limit=2))
    if len(found) > 1:
        raise RequestError(f"several tenants have a conversation {conversation_id!r}: pass tenant", param="tenant")
    return found[0].tenant if found else None


def _scope(identity: Identity, user: str | None) -> dict[str, Any]:
    """Return the filters for what exists for an identity, and belongs to a user if one is given."""
    return {
        "user": identity.user_of(user),
        "tenant": identity.tenant,
        "without_tenant": identity.tenant is None and not identity.single_user,
        "agents": identity.agents,
    }


def _not_found(conversation_id: str) -> ConversationNotFound:
    shown = conversation_id[:MAX_URL_ID_CHARS]
    return ConversationNotFound(f"there is no conversation {shown!r}", param="conversation_id")


def _is_id(text: str) -> bool:
    """Return whether a text can be an id. Others, such as those with control characters, are not looked up."""
    return 0 < len(text) <= MAX_URL_ID_CHARS and text.isprintable()
