"""The to-do list of a conversation: its items, and how one version of the list follows from another."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from itertools import count
from typing import Any, Literal

from pydantic import AliasChoices, Field, ValidationError

from framework.types.frozen import Frozen

MAX_ID_CHARS = 64
TodoStatus = Literal["open", "doing", "done"]


class TodoItem(Frozen):
    """One thing to do."""

    id: str = Field(default="", max_length=MAX_ID_CHARS)
    """Stays the same as long as the item is in the list; empty for a new item."""
    task: str = Field(validation_alias=AliasChoices("task", "title"))
    """What to do, in a few words; `title` is accepted too."""
    status: TodoStatus = "open"
    created_at: datetime | None = None
    """When it came into the list; none in lists of older versions."""
    completed_at: datetime | None = None
    """Since when it is done."""


def read_items(kept: Any) -> tuple[TodoItem, ...]:
    """A list as a session keeps it; those of older versions get ids. Empty for anything that is no such list."""
    try:
        items = [TodoItem.model_validate(item) for item in kept or ()]
    except (TypeError, ValidationError):  # a plugin keeps something else under this name
        return ()
    return merged((), items)


def merged(before: Sequence[TodoItem], items: Iterable[TodoItem], now: datetime | None = None) -> tuple[TodoItem, ...]:
    """The list that replaces another one.

    Args:
        before: the list so far. An item that has the id, or else the task, of one of these is that item.
        items: all items of the new list.
        now: when items that are new are created, and items that become done are completed; none: they keep their
            times.
    """
    left = {item.id: item for item in before}
    given = list(items)
    found = [left.pop(item.id, None) for item in given]
    used = {item.id for item in (*before, *given)}
    result: list[TodoItem] = []
    for item, same in zip(given, found, strict=True):
        known = same or next((left.pop(other.id) for other in [*left.values()] if other.task == item.task), None)
        taken = {"", *(other.id for other in result)}
        name = known.id if known else item.id if item.id not in taken else _unused(used)
        used.add(name)
        result.append(_next(item.model_copy(update={"id": name}), known, now))
    return tuple(result)


def _unused(ids: Collection[str]) -> str:
    return next(name for number in count(1) if (name := f"t{number}") not in ids)


def _next(item: TodoItem, known: TodoItem | None, now: datetime | None) -> TodoItem:
    if now is None:
        return item
    created = known.created_at if known else now
    was_done = known is not None and known.status == "done"
    completed = (known.completed_at if known and was_done else now) if item.status == "done" else None
    return item.model_copy(update={"created_at": created, "completed_at": completed})
