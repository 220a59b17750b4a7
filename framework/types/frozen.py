"""The two ways data is written down here: `Frozen` where text enters or leaves, durations as seconds."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_DURATION_EXPECTED = "a duration is written like 500ms, 90s, 15m, 24h or 30d"
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Frozen(BaseModel):
    """Immutable data in which an unknown key is an error. The docstring under a field describes it."""

    model_config = ConfigDict(
        frozen=True,
        defer_build=True,  # a process builds only the models it uses
        extra="forbid",
        hide_input_in_errors=True,
    )


def check_version(value: Any) -> Any:
    """Say which versions of a file format there are, when another one is named."""
    if isinstance(value, bool):
        raise ValueError("1 is expected")
    if isinstance(value, int) and value != 1:
        raise ValueError(f"version {value} of this file format is not known; known: 1")
    return value


def parse_duration(value: Any) -> Any:
    """Turn `"90s"`, `"15m"`, `"250ms"`, `"24h"` or `"30d"` into seconds; numbers pass through."""
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
"""Seconds; written in files as `500ms`, `90s`, `15m`, `24h`, `30d`."""
