"""`Frozen`, the base class of immutable data, and durations in seconds."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_DURATION_EXPECTED = "invalid duration: write it as 500ms, 90s, 15m, 24h or 30d"
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Frozen(BaseModel):
    """Base class of immutable data that rejects unknown keys. The docstring below a field documents the field."""

    model_config = ConfigDict(
        frozen=True,
        defer_build=True,  # a process builds only the models it uses
        extra="forbid",
        hide_input_in_errors=True,
    )


def check_version(value: Any) -> Any:
    """Return a file's version number; raise ValueError if it is not supported."""
    if isinstance(value, bool):
        raise ValueError("expected 1")
    if isinstance(value, int) and value != 1:
        raise ValueError(f"unsupported version {value} of this file format; supported: 1")
    return value


def parse_duration(value: Any) -> Any:
    """Convert `"90s"`, `"15m"`, `"250ms"`, `"24h"` or `"30d"` to seconds; other values are returned unchanged.

    Raises:
        ValueError: the text is not a duration, or the value is a bool.
    """
    if isinstance(value, bool):
        raise ValueError(_DURATION_EXPECTED)
    if not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(value.strip())
    if match is None:
        raise ValueError(_DURATION_EXPECTED)
    return float(match[1]) * _SECONDS[match[2]]


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    Field(gt=0),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": r"^\d+(\.\d+)?\s*(ms|s|m|h|d)$"}, {"type": "number"}]}),
]
"""A positive number of seconds. Files may also contain `500ms`, `90s`, `15m`, `24h` or `30d`."""
