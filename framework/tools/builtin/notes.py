"""The tools `session_set`, `session_get` and `todo`: named values and a to-do list, kept for the conversation."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

from framework.tools.tool import ToolContext, tool
from framework.types.errors import ToolError
from framework.types.plan import TodoItem, TodoStatus, merge_items, read_items

TODO = "todo"
"""Session key of the to-do list."""
MAX_TODO_ITEMS = 50
TODO_MARKS = {"open": "[ ]", "doing": "[>]", "done": "[x]"}


class Item(BaseModel):
    """One thing to do."""

    model_config = ConfigDict(extra="forbid")

    task: str
    status: TodoStatus = "open"


@tool(risk="low", idempotent=True)
def session_set(key: str, value: str, *, context: ToolContext) -> str:
    """Save a value under a name, to read it later in this conversation.

    Args:
        key: The name.
        value: The value; an empty text deletes it.
        context: The run.
    """
    if key == TODO:
        raise ToolError("the key todo is reserved for the to-do list: use the tool todo")
    if not value:
        context.session.delete(key)
        return f"deleted {key}"
    context.session.set(key, value)
    return f"saved {key}"


@tool(risk="low", idempotent=True)
def session_get(key: str = "", *, context: ToolContext) -> Any:
    """Read a value that was saved with session_set earlier in this conversation.

    Args:
        key: The name; without it, all names are returned.
        context: The run.
    """
    names = [name for name in context.session if name != TODO]
    if not key:
        return names
    if key not in names:
        raise ToolError(f"there is no value {key!r}; saved: {', '.join(names) or 'none'}")
    return context.session.get(key)


@tool(risk="low", idempotent=True)
def todo(items: list[Item] | None = None, *, context: ToolContext) -> str:
    """Update this conversation's to-do list: give the whole list whenever something changes; omit items to read it.

    Args:
        items: All tasks, each with its status.
        context: The run.
    """
    if items is not None:
        if len(items) > MAX_TODO_ITEMS:
            raise ToolError(f"the list has {len(items)} tasks; the limit is {MAX_TODO_ITEMS}: combine some")
        new = [TodoItem(task=item.task, status=item.status) for item in items]
        changed = merge_items(read_items(context.session.get(TODO)), new, datetime.now(UTC))
        context.session.set(TODO, [item.model_dump(mode="json") for item in changed])
    current = read_items(context.session.get(TODO))
    return "\n".join(f"{TODO_MARKS[item.status]} {item.task}" for item in current) or "(nothing to do)"
