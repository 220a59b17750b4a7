"""The to-do list of a conversation, for programs and for listeners."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from framework.engine.runtime.request import Caller
from framework.store.protocol import Conversation, Store
from framework.tools.builtin.notes import MAX_TODO_ITEMS, TODO
from framework.tools.session_values import Session
from framework.types.errors import ConversationBusy, RequestError, ToolError
from framework.types.todo import TodoItem, merged, read_items


async def load_todo(store: Store, conversation_id: str, caller: Caller) -> tuple[TodoItem, ...]:
    """The list of a conversation, also while a run of it is in progress; raises RequestError."""
    conversation = await _conversation(store, conversation_id, caller)
    if conversation.open_run is not None:
        return read_items((await store.load_run(conversation.open_run)).session.get(TODO))
    return read_items(conversation.session.get(TODO))


async def replace_todo(
    store: Store, conversation_id: str, items: Iterable[TodoItem | Mapping[str, Any]], caller: Caller
) -> tuple[TodoItem, ...]:
    """Replace the list of a conversation without an open run; raises RequestError, ConversationBusy."""
    conversation = await _conversation(store, conversation_id, caller)
    if conversation.open_run is not None:
        raise ConversationBusy(f"conversation {conversation_id!r} is busy: run {conversation.open_run} has its list")
    try:
        given = [item if isinstance(item, TodoItem) else TodoItem.model_validate(item) for item in items]
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        raise RequestError(f"to-do item: {'.'.join(map(str, found['loc']))}: {found['msg']}") from None
    if len(given) > MAX_TODO_ITEMS:
        raise RequestError(f"{len(given)} to-do items; at most {MAX_TODO_ITEMS} are kept")
    changed = merged(read_items(conversation.session.get(TODO)), given, datetime.now(UTC))
    session = Session(dict(conversation.session))
    try:
        session.set(TODO, [item.model_dump(mode="json") for item in changed])
    except ToolError as error:
        raise RequestError(error.message) from None
    await store.replace_session(replace(conversation, session=session.values))
    return changed


async def _conversation(store: Store, conversation_id: str, caller: Caller) -> Conversation:
    conversation = await store.conversation(conversation_id)
    if not conversation.turns or not caller.can_access(conversation.user, conversation.tenant):
        raise RequestError(f"there is no conversation {conversation_id!r} of this user")
    return conversation
