"""JSON read strictly: what a model or a server writes either means one thing, or is refused with the reason."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

MAX_JSON_DEPTH = 100
"""How deep a value may nest; pydantic gives up on JSON at 255."""
MAX_OBJECT_CHARS = 1_500_000
"""Of one object: enough for a file of 1 MB as an argument, and read in some hundredths of a second."""
MAX_OBJECT_VALUES = 100_000
"""Of one object, nested ones included."""


def read_json(text: str) -> Any:
    """Read one JSON value: its keys unique, its numbers finite, all of it text that can be stored.

    Raises:
        ValueError: it is not that; a JSONDecodeError where there is a place to name.
    """
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise ValueError(f"it nests deeper than {MAX_JSON_DEPTH} levels") from None
    if nesting_depth(value) > MAX_JSON_DEPTH:
        raise ValueError(f"it nests deeper than {MAX_JSON_DEPTH} levels")
    if "\\u" in text or not text.isascii():
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair cannot be stored
    return value


def read_object(text: str) -> dict[str, Any]:
    """Read one JSON object of a bounded size; raises ValueError as `read_json`, and where it is another value."""
    if len(text) > MAX_OBJECT_CHARS:
        raise ValueError(f"it has {len(text)} characters; at most {MAX_OBJECT_CHARS} are read")
    value = read_json(text)
    if len(text) > MAX_OBJECT_VALUES and _values_in(value) > MAX_OBJECT_VALUES:
        raise ValueError(f"it has more than {MAX_OBJECT_VALUES} values")
    if not isinstance(value, dict):
        raise ValueError(f"it is {'null' if value is None else f'a {type(value).__name__}'}")
    return value


def _values_in(value: object) -> int:
    count, pending = 0, [value]
    while pending:
        count += 1
        pending.extend(_children(pending.pop()))
    return count


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for key, item in pairs:
        if key in value:
            raise ValueError(f"the key {key!r} stands in it twice")
        value[key] = item
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:20]} is too large")
    return number


def has_more_values(value: object, most: int) -> bool:
    """Whether a value contains more values than that; it stops counting there."""
    count, pending = 1, [value]
    while pending and count <= most:
        inner = list(_children(pending.pop()))
        count += len(inner)
        pending += inner
    return count > most


def nesting_depth(value: object) -> int:
    """How deep data nests; a plain value is 1."""
    level, depth = [value], 0
    while level:
        depth += 1
        level = [child for item in level for child in _children(item)]
    return depth


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_no_constant, parse_float=_finite)
