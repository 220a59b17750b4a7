"""Stored conversations of a runtime: loading, forks, and their to-do lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pydantic import ValidationError

from framework.engine.runtime.request import Caller
from framework.store.types import ANSWERED_STATUSES, Conversation, ConversationQuery, CopiedTurn, RunInfo, RunQuery
from framework.tools.builtin.notes import MAX_TODO_ITEMS, TODO
from framework.tools.tool import Session
from framework.types.errors import ConversationBusy, ConversationNotFound, RequestError, ToolError
from framework.types.events import Event, read_event
from framework.types.messages import Message, transcript_errors
from framework.types.plan import TodoItem, merge_items, read_items
from framework.types.state import RunState

if TYPE_CHECKING:
    from framework.store.store import Store


async def load_conversation(store: Store, conversation_id: str, caller: Caller) -> Conversation:
    """Return the caller's conversation with this id, or a new one.

    A conversation is its caller's alone: those of other users and tenants with this id are others. If the host serves a
    single user, a caller without one of its own gets the only one with this id, of the user and tenant if it names one.

    Raises:
        RequestError: several users or tenants have one with this id, and the caller none.
    """
    own = await store.conversation(conversation_id, caller.tenant, caller.user)
    if own.is_stored or not caller.single_user:
        return own
    query = ConversationQuery(id=conversation_id, tenant=caller.tenant, user=caller.user)
    owners = [(info.tenant, info.user) for info in await store.conversations(query)]
    if len(owners) > 1:
        raise several_owners(conversation_id, owners)
    return await store.conversation(conversation_id, *owners[0]) if owners else own


def several_owners(conversation_id: str, owners: Sequence[tuple[str | None, str | None]]) -> RequestError:
    """Return the error for a conversation's id that several tenants or users have, none of which is named."""
    tenants, users = ({*map(str, names)} for names in zip(*owners, strict=True))
    kind, names = ("tenant", tenants) if len(tenants) > 1 else ("user", users)
    exists = f"conversation {conversation_id!r} exists {'in' if kind == 'tenant' else 'for'} {len(names)} {kind}s"
    return RequestError(f"{exists} ({', '.join(sorted(names))}): name one with {kind}= or --{kind}", param=kind)


async def load_todo(store: Store, conversation_id: str, caller: Caller) -> tuple[TodoItem, ...]:
    """Return the to-do list, including changes of a run in progress. Raises RequestError if the id is unknown."""
    conversation = await _conversation(store, conversation_id, caller)
    if conversation.open_run is not None:
        return read_items((await store.load_run(conversation.open_run)).session.get(TODO))
    return read_items(conversation.session.get(TODO))


async def replace_todo(
    store: Store, conversation_id: str, items: Iterable[TodoItem | Mapping[str, Any]], caller: Caller
) -> tuple[TodoItem, ...]:
    """Replace the to-do list and return it; raises RequestError, or ConversationBusy while a run is open."""
    conversation = await _conversation(store, conversation_id, caller)
    if conversation.open_run is not None:
        raise ConversationBusy(
            f"conversation {conversation_id!r} is busy: run {conversation.open_run} is using its to-do list"
        )
    try:
        new_items = [item if isinstance(item, TodoItem) else TodoItem.model_validate(item) for item in items]
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        raise RequestError(f"to-do item: {'.'.join(map(str, detail['loc']))}: {detail['msg']}") from None
    if len(new_items) > MAX_TODO_ITEMS:
        raise RequestError(f"{len(new_items)} to-do items; at most {MAX_TODO_ITEMS} are allowed")
    updated = merge_items(read_items(conversation.session.get(TODO)), new_items, datetime.now(UTC))
    session = Session(dict(conversation.session))
    try:
        session.set(TODO, [item.model_dump(mode="json") for item in updated])
    except ToolError as error:
        raise RequestError(error.message) from None
    await store.replace_session(replace(conversation, session=session.values))
    return updated


async def _conversation(store: Store, conversation_id: str, caller: Caller) -> Conversation:
    conversation = await load_conversation(store, conversation_id, caller)
    if not conversation.turns:
        raise ConversationNotFound(f"this user has no conversation {conversation_id!r}", param="conversation")
    return conversation


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """Where a fork leaves the history of its origin; exactly one is set."""

    before: str | None = None
    """Id of the first run that is left out."""
    after: str | None = None
    """Id of the last run that is kept."""
    messages: int | None = None
    """Number of messages that are kept, counted from the first."""

    def check(self) -> None:
        """Raise RequestError unless exactly one is set."""
        if sum(value is not None for value in (self.before, self.after, self.messages)) != 1:
            raise RequestError("a fork needs one place: send before, after or messages", param="before")


async def fork_conversation(
    store: Store, origin: Conversation, point: ForkPoint, new_id: str | None = None
) -> Conversation:
    """Save a new conversation of the same user and tenant, whose first turns are copies of those before `point`.

    Nothing is executed: the copies have the messages, calls and events of the original runs.

    Args:
        store: the store.
        origin: the conversation to copy, as loaded.
        point: where the copy ends.
        new_id: id of the new conversation. Default: a new one.

    Raises:
        RequestError: the conversation has no such run or message, or the history would end with open calls.
        ConversationBusy: a conversation with the new id exists.
    """
    point.check()
    infos = await store.runs(RunQuery.of_conversation(origin))
    states = await _states(store, infos, point)
    fork_id = new_id or f"conv_{uuid4().hex}"
    copies = [await _copy(store, state, fork_id) for state in states]
    last = states[-1] if states else None
    messages = tuple(message for state in states for message in state.messages)
    forked = Conversation(
        fork_id,
        messages,
        agent=last.agent if last else None,
        session=last.session if last else {},
        turns=len(states),
        user=origin.user,
        tenant=origin.tenant,
        summary=last.summary if last and last.summary and last.summary.upto <= len(messages) else None,
        forked_from=origin.id,
    )
    await store.fork(forked, copies)
    return forked


async def _states(store: Store, infos: Sequence[RunInfo], point: ForkPoint) -> Sequence[RunState]:
    """Return the last states of the turns to copy; see `fork_conversation`."""
    answered = [info for info in infos if info.status in ANSWERED_STATUSES]
    kept = answered if point.messages is not None else _kept_turns(point, infos, answered)
    states = [await store.load_run(info.run_id) for info in kept]
    return states if point.messages is None else _first_messages(states, point.messages)


def _kept_turns(point: ForkPoint, infos: Sequence[RunInfo], answered: Sequence[RunInfo]) -> Sequence[RunInfo]:
    """Return the answered turns up to a run."""
    run_id = point.before or point.after
    known = infos if point.before is not None else answered
    end = next((info.turn for info in known if info.run_id == run_id and info.turn), None)
    if end is None:
        name = "before" if point.before is not None else "after"
        kind = "run that has begun" if name == "before" else "answered run"
        raise RequestError(f"{name}: the conversation has no {kind} {run_id!r}", param=name)
    return [info for info in answered if info.turn < end or (info.turn == end and point.after is not None)]


def _first_messages(states: Sequence[RunState], count: int) -> Sequence[RunState]:
    """Return the turns of the first messages. The last turn is cut, without its calls and events, if it has more."""
    kept: list[RunState] = []
    for state in states:
        if count <= 0:
            return kept
        own = state.messages[:count]
        count -= len(own)
        kept.append(state if len(own) == len(state.messages) else _state_of(state, own))
    if count > 0:
        raise RequestError("messages: the conversation has fewer", param="messages")
    return kept


def _state_of(source: RunState, messages: Sequence[Message]) -> RunState:
    """Return a turn of these messages only; raises RequestError if a call has no result, or the answer is missing."""
    if problem := next(transcript_errors(messages), None):
        raise RequestError(f"messages: {problem}", param="messages")
    if messages[-1].role != "assistant":
        raise RequestError(
            f"messages: the last one must be an answer, not of role {messages[-1].role}", param="messages"
        )
    return RunState(
        agent=source.agent,
        conversation_id=source.conversation_id,
        user=source.user,
        tenant=source.tenant,
        status="completed",
        finish_reason="final",
        output=messages[-1].content,
        messages=list(messages),
    )


async def _copy(store: Store, state: RunState, conversation_id: str) -> CopiedTurn:
    """Return a copy of a run for a fork, and save the files that its messages refer to."""
    copied = state.model_copy(deep=True)
    run_id, copied.copied_from = f"run_{uuid4().hex}", state.run_id
    for one in copied.with_sub_runs():
        one.run_id, one.conversation_id, one.version = run_id, conversation_id, 0
    events: list[Event] = []
    if state.seq:
        events = [read_event({**event, "run_id": run_id}) for event in await store.events(state.run_id)]
    digests = {part.digest for message in state.messages for part in message.media}
    if digests and (files := await store.load_media(digests)):
        await store.save_media(run_id, files)
    return CopiedTurn(copied, events)
