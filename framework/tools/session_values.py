"""Values that tools store for the duration of a conversation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from framework.types.errors import ToolError
from framework.types.strict_json import read_object

MAX_SESSION_CHARS = 64 * 1024
"""Maximum size of all values together, as JSON."""


@dataclass(frozen=True, slots=True)
class Session:
    """JSON values by name. They are persisted with the run and passed to the next run of the conversation."""

    values: dict[str, Any] = field(default_factory=dict)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a copy of the value, or `default`."""
        return json.loads(json.dumps(self.values[key])) if key in self.values else default

    def set(self, key: str, value: Any) -> None:
        """Store a copy of a value.

        Raises:
            ToolError: the value is not JSON data, or all values together exceed the maximum size.
        """
        try:
            entry = read_object(json.dumps({key: value}, allow_nan=False, ensure_ascii=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise ToolError(f"cannot store {key!r}: not JSON data ({error})") from None
        size = len(json.dumps({**self.values, **entry}, ensure_ascii=False))
        if size > MAX_SESSION_CHARS:
            raise ToolError(
                f"cannot store {key!r}: session values would have {size} characters; the maximum is {MAX_SESSION_CHARS}"
            )
        self.values.update(entry)

    def delete(self, key: str) -> None:
        """Delete a value, if it exists."""
        self.values.pop(key, None)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self.values))
