"""Lists of the runs and conversations of a store in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from framework.store.conversation_lists import ConversationInfo, ConversationQuery
from framework.store.memory_tables import ConversationKey, ConversationTimes
from framework.store.paging import ConversationCursor, unknown_position
from framework.store.protocol import PREVIEW_CHARS, Conversation, RunInfo, RunQuery
from framework.types.messages import Message
from framework.types.state import RunState


def preview(state: RunState) -> str:
    """Return the beginning of the user's message."""
    return state.messages[0].description[:PREVIEW_CHARS]


def run_info(state: RunState, turn: int, times: tuple[float, float], *, held: bool) -> RunInfo:
    """Return a run as shown in lists. `times`: when it was added and last changed, as Unix times."""
    expiries = [one.expires_at.timestamp() for one in state.pending if one.expires_at]
    return RunInfo(
        run_id=state.run_id,
        status=state.status,
        finish_reason=state.finish_reason,
        agent=state.agent,
        generation=state.generation,
        digest=state.digest,
        message=preview(state),
        created_at=times[0],
        updated_at=times[1],
        conversation_id=state.conversation_id,
        turn=turn,
        user=state.user,
        tenant=state.tenant,
        trace_id=state.trace_id,
        steps=state.steps,
        tokens=state.usage.total_tokens,
        cost_usd=state.usage.cost_usd,
        elapsed_ms=state.elapsed_ms,
        expires_at=min(expiries, default=None),
        held=held,
        copied_from=state.copied_from,
    )


def conversation_info(
    conversation: Conversation, created_at: float, times: ConversationTimes, turns: Sequence[RunInfo]
) -> ConversationInfo:
    """Return a conversation as shown in lists. `turns`: its runs that are stored."""
    return ConversationInfo(
        id=conversation.id,
        agent=conversation.agent,
        turns=conversation.turns,
        created_at=created_at,
        updated_at=times.updated_at,
        expires_at=None if times.ttl is None else times.expires_at,
        open_run=conversation.open_run,
        user=conversation.user,
        tenant=conversation.tenant,
        title=turns[0].message if turns else "",
        status=turns[-1].status if turns else None,
        forked_from=conversation.forked_from,
    )


def select_runs(infos: Iterable[RunInfo], query: RunQuery, said: Collection[str] = ()) -> list[RunInfo]:
    """Return the matching runs of those given, oldest first. `said`: ids of runs whose texts contain the search."""
    found = [info for info in infos if has_owner(query, info.tenant, info.user) and _is_in_scope(info, query)]
    if query.before is not None:
        place = next((n for n, info in enumerate(found) if info.run_id == query.before), None)
        if place is None:
            raise unknown_position(query.before)
        found = found[:place]
    matching = [info for info in found if all(_conditions(info, query, said))]
    return (matching[::-1] if query.newest_first else matching)[: query.limit]


def select_conversations(
    infos: Iterable[ConversationInfo], query: ConversationQuery, said: Collection[ConversationKey] = ()
) -> list[ConversationInfo]:
    """Return the matching conversations of those given. `said`: keys of those whose messages contain the search."""
    filters = {name: value for name in ("id", "agent", "user", "tenant") if (value := getattr(query, name)) is not None}
    after = None if query.cursor is None else _position(ConversationCursor.decode(query.cursor))
    matching = [
        info
        for info in infos
        if all(getattr(info, name) == value for name, value in filters.items())
        and _is_in_scope(info, query)
        and (query.before is None or info.updated_at < query.before)
        and (_contains(query.search, info.title, info.agent, info.id) or (info.id, info.tenant, info.user) in said)
        and (after is None or _position(info) > after)
    ]
    return sorted(matching, key=_position)[: query.limit]


def texts_of(messages: Iterable[Message]) -> str:
    """Return what the user and the model wrote, in lower case."""
    return "\n".join(one.content for one in messages if one.role in ("user", "assistant")).lower()


def _contains(text: str | None, *values: str | None) -> bool:
    return text is None or any(text.lower() in value.lower() for value in values if value is not None)


def _position(one: ConversationInfo | ConversationCursor) -> tuple[float, str, str, str]:
    return -one.updated_at, one.id, one.tenant or "", one.user or ""


def has_owner(query: RunQuery, tenant: str | None, user: str | None) -> bool:
    """Return whether the runs of a tenant and user match a query, as far as that depends on their owner."""
    if (query.without_tenant and tenant is not None) or (query.without_user and user is not None):
        return False
    return query.tenant in (None, tenant) and query.user in (None, user)


def _is_in_scope(info: RunInfo | ConversationInfo, query: RunQuery | ConversationQuery) -> bool:
    is_own = info.tenant is None or not query.without_tenant
    return is_own and (query.agents is None or info.agent in query.agents)


def _conditions(info: RunInfo, query: RunQuery, said: Collection[str]) -> Iterator[bool]:
    yield not query.statuses or info.status in query.statuses
    yield not query.orphaned or info.orphaned
    yield info.copied_from is None or query.run_id is not None or query.conversation_id is not None
    yield info.attempts >= query.min_attempts
    yield query.max_attempts is None or info.attempts <= query.max_attempts
    if query.expired_at is not None:
        yield info.status == "paused" and info.expires_at is not None and info.expires_at <= query.expired_at
    for name in ("run_id", "conversation_id", "agent", "generation"):
        value = getattr(query, name)
        yield value is None or getattr(info, name) == value
    yield query.rating is None or (info.rating is not None and info.rating.value == query.rating)
    yield query.digest is None or info.digest.startswith(query.digest)
    yield _contains(query.text, info.message)
    is_named = _contains(query.search, info.message, info.agent, info.run_id, info.conversation_id)
    yield is_named or info.run_id in said
    yield query.since is None or info.created_at >= query.since
    yield query.until is None or info.created_at < query.until
