"""Reads and replaces the to-do list of a conversation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from framework.engine.runtime.conversation import load_conversation
from framework.engine.runtime.request import Caller
from framework.store.protocol import Conversation, Store
from framework.tools.builtin.notes import MAX_TODO_ITEMS, TODO
from framework.tools.tool import Session
from framework.types.errors import ConversationBusy, ConversationNotFound, RequestError, ToolError
from framework.types.plan import TodoItem, merge_items, read_items


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
