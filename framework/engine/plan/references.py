"""References in a step's parameters to the results of earlier steps: `{{ steps.find.output }}`.

References are found by one pattern and replaced by values, which are never scanned again. A text that is only a
reference becomes the value itself, in the type that the parameter's schema requires; inside a longer text, a reference
becomes text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from framework.tools.schema.json_schema import UNREADABLE, JsonSchema, is_of_type, parse_as, type_names
from framework.types.errors import ToolError
from framework.types.plan import PlanStep
from framework.types.text import shorten

_REFERENCE = re.compile(r"\{\{\s*steps\.([a-zA-Z0-9][a-zA-Z0-9_-]*)\.output((?:\.[A-Za-z0-9_-]+)*)\s*\}\}")
_SHOWN_CHARS = 60
_SYNTAX = "write {{ steps.ID.output }}, or {{ steps.ID.output.FIELD }} for a part of it"


@dataclass(frozen=True, slots=True)
class StepReference:
    """A reference to a step's result, or to a part of it."""

    step: str
    path: tuple[str, ...] = ()
    """Keys and indices into a structured result."""


def references(value: Any) -> Iterator[StepReference]:
    """Yield all references in a value, at any depth."""
    for text in _texts(value):
        yield from (_read(match) for match in _REFERENCE.finditer(text))


def invalid_references(value: Any) -> Iterator[str]:
    """Yield a finding for each text with `{{` that is not a reference."""
    for text in _texts(value):
        rest = _REFERENCE.sub("", text)
        if "{{" in rest:
            invalid = rest[rest.index("{{") :]
            yield f"{shorten(invalid, _SHOWN_CHARS)!r} is not a valid reference: {_SYNTAX}"


def resolve_references(value: Any, output_of: Callable[[str], Any], schema: Mapping[str, Any] | None = None) -> Any:
    """Return the value with each reference replaced by a result, in the type that the schema requires there.

    Args:
        value: a step's parameters.
        output_of: returns the result of a step by its id.
        schema: JSON Schema of the parameters; without one, results keep their type.

    Raises:
        ToolError: a result does not contain the referenced part.
    """
    root_schema = JsonSchema(schema or {})
    return _resolved_in(root_schema, root_schema.root, value, output_of)


def expected_types(value: Any, schema: Mapping[str, Any]) -> Iterator[tuple[str, str, frozenset[str]]]:
    """Yield, for each text that is only a reference, its path, the step's id, and the JSON types allowed there."""
    root_schema = JsonSchema(schema)
    yield from _expected(root_schema, root_schema.root, value, ())


def referring_parameters(step: PlanStep) -> frozenset[str]:
    """Return the names of parameters that contain references: their values are not known yet."""
    return frozenset(name for name, value in step.parameters.items() if next(references(value), None))


def _resolved_in(schema: JsonSchema, node: Any, value: Any, output_of: Callable[[str], Any]) -> Any:
    match value:
        case str():
            return _resolved(value, output_of, type_names(schema.branches(node)))
        case list():
            parts = enumerate(value)
            return [_resolved_in(schema, schema.child(node, value, at), inner, output_of) for at, inner in parts]
        case dict():
            items = value.items()
            return {key: _resolved_in(schema, schema.child(node, value, key), inner, output_of) for key, inner in items}
    return value


def _resolved(text: str, output_of: Callable[[str], Any], types: set[str]) -> Any:
    whole = _REFERENCE.fullmatch(text.strip())
    if whole:
        return _rendered(_part(_read(whole), output_of), types)
    return _REFERENCE.sub(lambda match: _as_text(_part(_read(match), output_of)), text)


def _rendered(value: Any, types: set[str]) -> Any:
    """Convert a result to one of these types if that is unambiguous; otherwise, or if any type is allowed, return it.

    None is not converted to text: a missing value must not become the word "null".
    """
    if not types or value is None or is_of_type(value, types):
        return value
    if "string" in types:
        return _as_text(value)
    read = parse_as(value.strip(), types) if isinstance(value, str) else UNREADABLE
    return value if read is UNREADABLE else read


def _expected(
    schema: JsonSchema, node: Any, value: Any, place: tuple[str, ...]
) -> Iterator[tuple[str, str, frozenset[str]]]:
    match value:
        case str() if whole := _REFERENCE.fullmatch(value.strip()):
            yield ".".join(place), whole[1], frozenset(type_names(schema.branches(node)))
        case list() | dict():
            for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
                yield from _expected(schema, schema.child(node, value, key), inner, (*place, str(key)))


def _read(match: re.Match[str]) -> StepReference:
    return StepReference(match[1], tuple(part for part in match[2].split(".") if part))


def _part(reference: StepReference, output_of: Callable[[str], Any]) -> Any:
    value = output_of(reference.step)
    for part in reference.path:
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            path = ".".join(reference.path)
            raise ToolError(f"the result of step {reference.step} has no {path}: it is {_described(value)}")
    return value


def _described(value: Any) -> str:
    match value:
        case dict():
            return f"an object with {', '.join(list(value)[:10]) or 'nothing in it'}"
        case list():
            return f"a list of {len(value)}"
        case str():
            return "text"
    return "a plain value"


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a value. Keys of objects are not scanned."""
    match value:
        case str():
            yield value
        case list():
            for inner in value:
                yield from _texts(inner)
        case dict():
            for inner in value.values():
                yield from _texts(inner)
