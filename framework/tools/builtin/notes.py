"""What an agent notes for itself: values by name, and the list of what is to be done. Both last as the conversation."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

from framework.tools.tool import ToolContext, tool
from framework.types.errors import ToolError
from framework.types.todo import TodoItem, TodoStatus, merged, read_items

TODO = "todo"
"""The session's key for the list."""
MAX_TODO_ITEMS = 50
MARKS = {"open": "[ ]", "doing": "[>]", "done": "[x]"}


class Item(BaseModel):
    """One thing to do."""

    model_config = ConfigDict(extra="forbid")

    task: str
    status: TodoStatus = "open"


@tool(risk="low", idempotent=True)
def session_set(key: str, value: str, *, context: ToolContext) -> str:
    """Note a value under a name, to look it up later in this conversation.

    Args:
        key: The name.
        value: What to note; an empty text forgets it.
        context: The run.
    """
    if key == TODO:
        raise ToolError("the list of things to do is kept with the tool todo")
    if not value:
        context.session.delete(key)
        return f"forgot {key}"
    context.session.set(key, value)
    return f"noted {key}"


@tool(risk="low", idempotent=True)
def session_get(key: str = "", *, context: ToolContext) -> Any:
    """Look up what was noted with session_set earlier in this conversation.

    Args:
        key: The name; without it, all names are told.
        context: The run.
    """
    known = [name for name in context.session if name != TODO]
    if not key:
        return known
    if key not in known:
        raise ToolError(f"nothing is noted under {key!r}; noted: {', '.join(known) or 'nothing'}")
    return context.session.get(key)


@tool(risk="low", idempotent=True)
def todo(items: list[Item] | None = None, *, context: ToolContext) -> str:
    """Keep this conversation's to-do list: give the whole list whenever something changes; without items it is read.

    Args:
        items: All tasks, each with its status.
        context: The run.
    """
    if items is not None:
        if len(items) > MAX_TODO_ITEMS:
            raise ToolError(f"at most {MAX_TODO_ITEMS} tasks can be kept: put some together")
        given = [TodoItem(task=item.task, status=item.status) for item in items]
        changed = merged(read_items(context.session.get(TODO)), given, datetime.now(UTC))
        context.session.set(TODO, [item.model_dump(mode="json") for item in changed])
    kept = read_items(context.session.get(TODO))
    return "\n".join(f"{MARKS[item.status]} {item.task}" for item in kept) or "(nothing to do)"
