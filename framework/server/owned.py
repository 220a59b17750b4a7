"""Loads runs and conversations for an identity. No route loads them in any other way.

What belongs to another tenant, user or agent does not exist for the identity: the error is that of an unknown id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from framework.engine.runtime.conversation import several_owners
from framework.engine.runtime.runtime import Runtime
from framework.server.identity import Identity
from framework.store.conversation_lists import ConversationInfo, ConversationQuery
from framework.store.fleet import read_fleet
from framework.store.period import Period
from framework.store.protocol import Conversation, RunInfo, RunQuery
from framework.store.usage import Grouping, UsageReport
from framework.types.errors import ConversationNotFound, RunNotFound
from framework.types.fleet import Fleet
from framework.types.state import RunState

MAX_URL_ID_CHARS = 200
"""Length limit of ids, as for conversations."""
_PAGE = 100
"""Number of entries of a page without a limit."""
_OWNERS = 20
"""Number of conversations with one id among which the only one that exists for an identity is looked up."""


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
    runtime: Runtime, identity: Identity, conversation_id: str, tenant: str | None = None, user: str | None = None
) -> Conversation:
    """Return a conversation that exists for an identity.

    If the identity can access conversations with this id of several owners, the one that has exactly the named tenant
    and user is returned, or else the only one.

    Args:
        runtime: the runtime with the store.
        identity: the client.
        conversation_id: the id of the conversation.
        tenant: its tenant, if the identity can access several of them.
        user: its user, likewise.

    Raises:
        ConversationNotFound: no such conversation exists for the identity.
        RequestError: several do, and the request does not name its tenant or user.
    """
    of_others = not identity.single_user and tenant not in (None, identity.tenant)
    of_others = of_others or (identity.user is not None and user not in (None, identity.user))
    if of_others or not _is_id(conversation_id):
        raise _not_found(conversation_id)
    owner = tenant if identity.single_user else identity.tenant, identity.user_of(user)
    exact = await runtime.store.conversation(conversation_id, *owner)
    if exact.is_stored and await _can_access(runtime, identity, exact):
        return exact
    query = ConversationQuery(id=conversation_id, tenant=owner[0], user=owner[1], limit=_OWNERS)
    query = replace(query, without_tenant=owner[0] is None and not identity.single_user)
    infos = await runtime.store.conversations(query)
    owners = [(info.tenant, info.user) for info in infos if await _can_access(runtime, identity, info)]
    if len(owners) > 1:
        raise several_owners(conversation_id, owners)
    found = await runtime.store.conversation(conversation_id, *owners[0]) if owners else exact
    if not owners or not found.is_stored:
        raise _not_found(conversation_id)
    return found


async def check_conversation_for(runtime: Runtime, identity: Identity, conversation_id: str, user: str | None) -> None:
    """Raise ConversationNotFound if a user's message would join a conversation with an agent that the identity lacks.

    An unknown id is accepted: it begins a new conversation. So is one of another user or tenant: the message begins
    a conversation of its own user.
    """
    if identity.agents is None or not _is_id(conversation_id):  # the runtime rejects what is no id
        return
    found = await runtime.store.conversation(conversation_id, identity.tenant, user)
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


async def _can_access(runtime: Runtime, identity: Identity, found: Conversation | ConversationInfo) -> bool:
    """Return whether a conversation exists for an identity. It belongs to the agent that answered last, or will."""
    if not identity.can_access(tenant=found.tenant, user=found.user, agent=found.agent):
        return False
    if identity.agents is None or found.agent is not None:
        return True
    runs = replace(RunQuery.of_conversation(found), agents=identity.agents, limit=1)
    return bool(await runtime.store.runs(runs))


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
