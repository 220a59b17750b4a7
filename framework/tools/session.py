"""What tools keep from call to call: values by name, for as long as the conversation lasts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from framework.types.errors import ToolError

MAX_CHARS = 64 * 1024
"""Of all the values together, as JSON."""


@dataclass(frozen=True, slots=True)
class Session:
    """JSON values by name. They are saved with the run, and passed on to the conversation's next one."""

    values: dict[str, Any] = field(default_factory=dict)

    def get(self, key: str, default: Any = None) -> Any:
        """A copy of the value, or `default`."""
        return json.loads(json.dumps(self.values[key])) if key in self.values else default

    def set(self, key: str, value: Any) -> None:
        """Keep a copy of a value; raises ToolError if it is not JSON data, or too much is kept then."""
        try:
            text = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ToolError(f"{key!r} cannot be kept: it is not JSON data ({error})") from None
        others = {name: kept for name, kept in self.values.items() if name != key}
        if len(json.dumps(others)) + len(key) + len(text) > MAX_CHARS:
            raise ToolError(f"{key!r} cannot be kept: a session holds at most {MAX_CHARS} characters")
        self.values[key] = json.loads(text)

    def delete(self, key: str) -> None:
        """Forget a value, if it is there."""
        self.values.pop(key, None)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self.values))
