"""Tools of a conversation: `session_set`, `session_get` and `todo` keep data, `ask_user` asks, `echo` answers."""

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


@tool(risk="low", idempotent=True)
def echo(text: str) -> str:
    """Return the text unchanged.

    Args:
        text: The text to return.
    """
    return text


ASK_USER = "ask_user"
_MAX_QUESTION_CHARS = 2000
_MAX_CHOICES = 20
_MAX_CHOICE_CHARS = 200


@tool(risk="low", idempotent=True)
async def ask_user(question: str, choices: list[str] | None = None, *, context: ToolContext) -> str:
    """Ask the user a question and return the answer. Only for what no tool can find out and only the user can decide.

    Args:
        question: The question, understandable on its own.
        choices: The possible answers; omit for a free answer.
        context: The run.
    """
    if not question.strip() or len(question) > _MAX_QUESTION_CHARS:
        raise ToolError(f"the question has {len(question)} characters; ask one of 1 to {_MAX_QUESTION_CHARS}")
    offered = choices or []
    if len(offered) > _MAX_CHOICES or len(set(offered)) < len(offered):
        raise ToolError(f"there are {len(offered)} choices; offer at most {_MAX_CHOICES}, all different")
    if invalid := [choice for choice in offered if not choice.strip() or len(choice) > _MAX_CHOICE_CHARS]:
        raise ToolError(f"a choice has {len(invalid[0])} characters; offer choices of 1 to {_MAX_CHOICE_CHARS}")
    return await context.ask_human(question, offered)
