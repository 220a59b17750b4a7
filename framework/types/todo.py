"""The to-do list of a conversation: its items, and the merge of a new version into the current one."""

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
    """A task in the to-do list."""

    id: str = Field(default="", max_length=MAX_ID_CHARS)
    """Identifier that stays the same while the item is in the list; empty for a new item."""
    task: str = Field(validation_alias=AliasChoices("task", "title"))
    """The task, in a few words; `title` is accepted, too."""
    status: TodoStatus = "open"
    """Progress: `open`, `doing` or `done`."""
    created_at: datetime | None = None
    """Time when the item was added; None in lists of older versions."""
    completed_at: datetime | None = None
    """Time when the item became done."""


def read_items(stored: Any) -> tuple[TodoItem, ...]:
    """Parse a list stored in a session; items of older versions get ids. Empty for any other value."""
    try:
        items = [TodoItem.model_validate(item) for item in stored or ()]
    except (TypeError, ValidationError):  # a plugin stores something else under this name
        return ()
    return merge_items((), items)


def merge_items(
    before: Sequence[TodoItem], items: Iterable[TodoItem], now: datetime | None = None
) -> tuple[TodoItem, ...]:
    """Return the new version of a list, with ids and times of items that were in the current one.

    Args:
        before: the current list. An item of the new list with the same id, or else the same task, continues its item.
        items: all items of the new list.
        now: the time at which new items are created and newly done items completed; None: keep the times of `items`.
    """
    unmatched = {item.id: item for item in before}
    new_items = list(items)
    same_id = [unmatched.pop(item.id, None) for item in new_items]
    used_ids = {item.id for item in (*before, *new_items)}
    result: list[TodoItem] = []
    for item, match in zip(new_items, same_id, strict=True):
        previous = match or next(
            (unmatched.pop(other.id) for other in [*unmatched.values()] if other.task == item.task), None
        )
        taken = {"", *(other.id for other in result)}
        item_id = previous.id if previous else item.id if item.id not in taken else _unused_id(used_ids)
        used_ids.add(item_id)
        result.append(_with_times(item.model_copy(update={"id": item_id}), previous, now))
    return tuple(result)


def _unused_id(ids: Collection[str]) -> str:
    return next(name for number in count(1) if (name := f"t{number}") not in ids)


def _with_times(item: TodoItem, previous: TodoItem | None, now: datetime | None) -> TodoItem:
    if now is None:
        return item
    created = previous.created_at if previous else now
    was_done = previous is not None and previous.status == "done"
    completed = (previous.completed_at if previous and was_done else now) if item.status == "done" else None
    return item.model_copy(update={"created_at": created, "completed_at": completed})
