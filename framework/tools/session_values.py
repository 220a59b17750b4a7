"""What tools keep from call to call: values by name, for as long as the conversation lasts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from framework.types.errors import ToolError
from framework.types.strict_json import read_object

MAX_SESSION_CHARS = 64 * 1024
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
            kept = read_object(json.dumps({key: value}, allow_nan=False, ensure_ascii=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise ToolError(f"{key!r} cannot be kept: it is not JSON data ({error})") from None
        size = len(json.dumps({**self.values, **kept}, ensure_ascii=False))
        if size > MAX_SESSION_CHARS:
            raise ToolError(
                f"{key!r} cannot be kept: all values would have {size} characters; at most {MAX_SESSION_CHARS} fit"
            )
        self.values.update(kept)

    def delete(self, key: str) -> None:
        """Forget a value, if it is there."""
        self.values.pop(key, None)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self.values))
