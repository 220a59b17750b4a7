"""Reads the valid parts of data that is invalid as a whole."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from framework.config.yaml.document import KeyPath

JsonObject = dict[str, Any]
_MAX_ITEMS = 1000
"""Items of a list that are tried one by one when the list as a whole is invalid."""


def merge_valid(
    model: type[BaseModel], base: JsonObject, data: Mapping[str, Any], item_by_item: Collection[str] = ()
) -> tuple[JsonObject, list[KeyPath]]:
    """A valid base, with those parts of other data that are valid too, and the places of those that are not.

    Args:
        model: what both are data of.
        base: as `model_dump(mode="json", by_alias=True)` gives it.
        data: the keys to take over.
        item_by_item: dotted keys of lists, of which single items may be left out.
    """
    unread: list[KeyPath] = []

    def take(base: JsonObject, path: KeyPath, value: Any) -> JsonObject:
        whole = _replaced(base, path, value)
        if _is_valid(model, whole):
            return whole
        key = ".".join(map(str, path))
        if isinstance(value, dict) and isinstance(get_dotted(base, key), dict):
            for part, item in value.items():
                base = take(base, (*path, part), item)
            return base
        if isinstance(value, list) and len(value) <= _MAX_ITEMS and key in item_by_item:
            valid = [_is_valid(model, _replaced(base, path, [item])) for item in value]
            unread.extend((*path, index) for index, fits in enumerate(valid) if not fits)
            return _replaced(base, path, [item for item, fits in zip(value, valid, strict=True) if fits])
        unread.append(path)
        return base

    for key, value in data.items():
        base = take(base, (key,), value)
    return base, unread


def get_dotted(data: Mapping[str, Any], key: str) -> Any:
    """What stands at a dotted key; None if nothing does."""
    found: Any = data
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _is_valid(model: type[BaseModel], data: JsonObject) -> bool:
    try:
        model.model_validate(data)
    except ValidationError:
        return False
    return True


def _replaced(data: JsonObject, path: KeyPath, value: Any) -> JsonObject:
    """A copy with another value at a path."""
    first, rest = str(path[0]), path[1:]
    inner = data.get(first)
    below = _replaced(inner if isinstance(inner, dict) else {}, rest, value) if rest else value
    return {**data, first: below}
