"""Merges the valid parts of an otherwise invalid document into a valid one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from framework.config.yaml.document import KeyPath

JsonObject = dict[str, Any]
_MAX_ITEMS = 1000
"""Length up to which the items of an invalid list are tried one by one."""
_MAX_COMPARED_ITEMS = 100
"""Items of a list that are kept at most if some exclude each other: each one is validated with those before it."""


def merge_valid(
    model: type[BaseModel], base: JsonObject, data: Mapping[str, Any], item_by_item: Collection[str] = ()
) -> tuple[JsonObject, list[KeyPath]]:
    """Merge the valid parts of `data` into `base`; return the result and the paths of the invalid parts.

    Args:
        model: the model that validates both.
        base: valid data, as `model_dump(mode="json", by_alias=True)` returns it.
        data: the values to merge.
        item_by_item: dotted keys of lists whose invalid items may be dropped one by one.
    """
    invalid: list[KeyPath] = []

    def merge(base: JsonObject, path: KeyPath, value: Any) -> JsonObject:
        merged = _replaced(base, path, value)
        if _is_valid(model, merged):
            return merged
        key = ".".join(map(str, path))
        if isinstance(value, dict) and isinstance(get_dotted(base, key), dict):
            for part, item in value.items():
                base = merge(base, (*path, part), item)
            return base
        if isinstance(value, list) and len(value) <= _MAX_ITEMS and key in item_by_item:

            def fits(items: list[Any]) -> bool:
                return _is_valid(model, _replaced(base, path, items))

            kept = [index for index, item in enumerate(value) if fits([item])]
            if not fits([value[index] for index in kept]):
                kept = _compatible(kept, lambda indexes: fits([value[index] for index in indexes]))
            invalid.extend((*path, index) for index in range(len(value)) if index not in {*kept})
            return _replaced(base, path, [value[index] for index in kept])
        invalid.append(path)
        return base

    for key, value in data.items():
        base = merge(base, (key,), value)
    return base, invalid


def _compatible(indexes: Sequence[int], fits: Callable[[list[int]], bool]) -> list[int]:
    """Return the indexes of the first items that are valid together: duplicates of earlier ones are dropped."""
    kept: list[int] = []
    for index in indexes[:_MAX_COMPARED_ITEMS]:
        if fits([*kept, index]):
            kept.append(index)
    return kept


def get_dotted(data: Mapping[str, Any], key: str) -> Any:
    """Return the value at a dotted key, or None."""
    value: Any = data
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _is_valid(model: type[BaseModel], data: JsonObject) -> bool:
    try:
        model.model_validate(data)
    except ValidationError:
        return False
    return True


def _replaced(data: JsonObject, path: KeyPath, value: Any) -> JsonObject:
    """Return a copy with the value at a path replaced."""
    first, rest = str(path[0]), path[1:]
    inner = data.get(first)
    below = _replaced(inner if isinstance(inner, dict) else {}, rest, value) if rest else value
    return {**data, first: below}
