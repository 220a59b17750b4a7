"""Estimates the work of validating a value against a JSON Schema, before the validation starts.

Validators try the choices of `anyOf` and `oneOf` one after another. Where several choices lead to the same part of a
value, the work doubles with each level: a schema of 2 kB, or arguments of 200 characters, can keep a validator busy for
hours, and it cannot be stopped. The estimate visits each pair of a subschema and a part of the value once, so it is
fast where the validator is slow. Its unit is one evaluation of a subschema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from framework.types.errors import ConfigError
from framework.types.flat_schema import resolve_reference

_MAX_WORK = 20_000
"""Evaluations that are always allowed: about 20 ms, including error messages."""
_MAX_WORK_PER_NODE = 30
"""Evaluations allowed per object, list, string or number in the value, on average."""
_ENUM_SIZE = 100
"""Number of enum values that cost as much as one evaluation."""
_CHOICES = ("anyOf", "oneOf")
_SAME_VALUE_LISTS = (*_CHOICES, "allOf")
_SAME_VALUE = ("not", "if", "then", "else")
_ITEMS = ("items", "additionalItems", "contains", "unevaluatedItems")
_PROPERTIES = ("additionalProperties", "unevaluatedProperties", "propertyNames")
_DYNAMIC = ("$dynamicRef", "$recursiveRef", "$anchor", "$dynamicAnchor", "$id")
_ENDLESS = 10**12


class ValidationWork:
    """Estimates the work of validating values against one schema."""

    def __init__(self, schema: Mapping[str, Any], *, tagged: bool = False) -> None:
        """Analyze a schema.

        Args:
            schema: the root of the schema.
            tagged: whether the validator tries only one choice where a `discriminator` names the deciding field.

        Raises:
            ConfigError: a reference in the schema cannot be resolved within it.
        """
        self._root, self._tagged = schema, tagged
        self.is_needed = _can_multiply(schema)
        """Whether the work can grow faster than the value; False for most schemas."""
        if self.is_needed:
            self._check_references(schema)

    def estimate(self, value: Any) -> int:
        """Return an upper bound of the evaluations for a value; 0 if the work cannot multiply."""
        if not self.is_needed:
            return 0
        try:
            return _Walk(self._root, self._tagged).work(self._root, value)
        except RecursionError:
            return _ENDLESS

    def _check_references(self, node: Any) -> None:
        for schema in _all_mappings(node):
            if isinstance(reference := schema.get("$ref"), str) and resolve_reference(self._root, reference) is None:
                raise ConfigError(f"its schema is invalid: the reference {reference!r} does not resolve within it")
            if schema is not self._root and (
                keyword := next((key for key in _DYNAMIC if isinstance(schema.get(key), (str, bool))), None)
            ):
                raise ConfigError(f"its schema is not supported: {keyword} together with choices that contain objects")


class _Walk:
    """One estimate: each pair of a subschema and a part of the value is visited once."""

    def __init__(self, root: Mapping[str, Any], tagged: bool) -> None:
        self._root, self._tagged = root, tagged
        self._estimates: dict[tuple[int, int], int] = {}

    def work(self, schema: Any, value: Any) -> int:
        """Return the evaluations for a pair of schema and value, at most `_ENDLESS`."""
        if not isinstance(schema, Mapping):
            return 1
        key = (id(schema), id(value))
        if key not in self._estimates:
            self._estimates[key] = _ENDLESS  # a schema that refers to itself for the same value never ends
            total = 1 + len(schema.get("enum") or ()) // _ENUM_SIZE
            for inner, part in self._inner(schema, value):
                total += self.work(inner, part)
            for name in _CHOICES:
                works = [self.work(choice, value) for choice in schema.get(name) or ()]
                picked = self._tagged and "discriminator" in schema
                total += max(works, default=0) if picked else sum(works)
            self._estimates[key] = min(total, _ENDLESS)
        return self._estimates[key]

    def _inner(self, schema: Mapping[str, Any], value: Any) -> Iterator[tuple[Any, Any]]:
        if isinstance(reference := schema.get("$ref"), str):
            yield resolve_reference(self._root, reference), value
        yield from ((inner, value) for inner in schema.get("allOf") or ())
        yield from ((schema[name], value) for name in _SAME_VALUE if name in schema)
        if isinstance(value, dict):
            yield from self._of_object(schema, value)
        elif isinstance(value, list):
            yield from _of_list(schema, value)

    def _of_object(self, schema: Mapping[str, Any], value: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
        properties = cast("Mapping[str, Any]", schema.get("properties") or {})
        yield from ((inner, value[name]) for name, inner in properties.items() if name in value)
        dependent = cast("Mapping[str, Any]", schema.get("dependentSchemas") or schema.get("dependencies") or {})
        yield from ((inner, value) for name, inner in dependent.items() if name in value)
        for inner in (schema.get("patternProperties") or {}).values():
            yield from ((inner, part) for part in value.values())
        for keyword in _PROPERTIES:
            if isinstance(schema.get(keyword), Mapping):
                yield from ((schema[keyword], part) for name, part in value.items() if name not in properties)


def _of_list(schema: Mapping[str, Any], value: list[Any]) -> Iterator[tuple[Any, Any]]:
    for keyword in _ITEMS:
        if isinstance(schema.get(keyword), Mapping):
            yield from ((schema[keyword], part) for part in value)
    for keyword in ("prefixItems", "items"):
        if isinstance(schema.get(keyword), Sequence):
            yield from zip(schema[keyword], value, strict=False)


def _can_multiply(root: Mapping[str, Any]) -> bool:
    """Return whether a choice, or another subschema of the same value, contains subschemas itself."""
    for schema in _all_mappings(root):
        if isinstance(values := schema.get("enum"), list) and len(values) > _ENUM_SIZE:
            return True
        lists = (schema.get(name) for name in _SAME_VALUE_LISTS)
        inner = [subschema for choices in lists if isinstance(choices, list) for subschema in choices]
        inner += [schema[name] for name in _SAME_VALUE if name in schema]
        if any(isinstance(subschema, Mapping) and any(True for _ in _inside(subschema)) for subschema in inner):
            return True
        if any("$ref" in subschema for subschema in inner if isinstance(subschema, Mapping)):
            return True
    return False


def _all_mappings(root: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every mapping in a schema, including the schema itself."""
    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, Mapping):
            yield node
        pending.extend(_inside(node))


def _inside(node: Any) -> Iterator[Any]:
    values = node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ()
    return (value for value in values if isinstance(value, (dict, list, Mapping)))


def is_within_limit(work: int, value: Any) -> bool:
    """Return whether the estimated work is allowed for a value of this size."""
    return work <= _MAX_WORK or work <= _MAX_WORK_PER_NODE * _count_values(value)


def _count_values(value: Any) -> int:
    """Return the number of values in a value, nested ones included."""
    count, pending = 0, [value]
    while pending:
        node = pending.pop()
        count += 1
        pending.extend(node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
    return count
