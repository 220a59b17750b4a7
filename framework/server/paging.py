"""Pages of lists: every list takes `limit` and `cursor`, which is `next` of the previous page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from fastapi import Query

from framework.server.schemas import Printable
from framework.types.errors import RequestError

T = TypeVar("T")
MAX_PAGE = 100
"""Number of entries in one page of a list."""
_CURSOR = "`next` of the previous page. Default: the first page."
PageSize = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Maximum number of entries.")]
OptionalSize = Annotated[int | None, Query(ge=1, description="Maximum number of entries. Default: all.")]
Cursor = Annotated[Printable | None, Query(max_length=1000, description=_CURSOR)]
OldCursor = Annotated[Printable | None, Query(max_length=1000, deprecated=True, description="The same as `cursor`.")]


def either(cursor: str | None, old: str | None, name: str) -> str | None:
    """Return the cursor of a request, which may have the older name; raises RequestError for two different ones."""
    if cursor and old and cursor != old:
        raise RequestError(f"cursor and {name} are the same: send one of them", param=name)
    return cursor or old or None


def page_of(
    items: Sequence[T], cursor: str | None, limit: int | None, key: Callable[[T], str], name: str = "cursor"
) -> tuple[Sequence[T], str | None]:
    """Return a page of a list that is in memory, and the cursor of the next one.

    Args:
        items: the whole list.
        cursor: key of the last entry of the previous page.
        limit: maximum number of entries.
        key: returns the key of an entry, which is unique in the list.
        name: name of the parameter with the cursor.

    Raises:
        RequestError: no entry has that key.
    """
    if cursor:
        place = next((number for number, item in enumerate(items) if key(item) == cursor), None)
        if place is None:
            raise RequestError(f"{name} is no entry of this list: {cursor[:40]!r}", param=name)
        items = items[place + 1 :]
    page = items if limit is None else items[:limit]
    return page, key(page[-1]) if len(page) < len(items) else None
