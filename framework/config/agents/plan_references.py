"""References in a step's parameters to the results of earlier steps: `{{ steps.find.output }}`.

Plans of agent files also refer to `{{ inputs.NAME }}`, and in a loop to `{{ item }}`. References are found by one
pattern and replaced by values, which are never scanned again. A text that is only a reference becomes the value itself,
in the type that the parameter's schema requires; inside a longer text, a reference becomes text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from framework.tools.json_schema import UNREADABLE, JsonSchema, is_of_type, parse_as, type_names
from framework.types.errors import ToolError
from framework.types.plan import PlanStep
from framework.types.text import read_json, shorten

_REFERENCE = re.compile(
    r"\{\{\s*(?:steps\.([a-zA-Z0-9][a-zA-Z0-9_-]*)\.output|inputs\.([^\W\d]\w*)|item)"
    r"((?:\.[A-Za-z0-9_-]+)*)\s*\}\}"
)
_SHOWN_CHARS = 60
_MAX_DIGITS = 10
_SYNTAX = "write {{ steps.ID.output }}, or {{ steps.ID.output.FIELD }} for a part of it"
UNRESOLVED: Final = object()
"""Returned for a reference that stays in the text."""


@dataclass(frozen=True, slots=True)
class StepReference:
    """A reference to a step's result, to an input of the run, or to the item of a loop; or to a part of it."""

    step: str
    """Id of the step; empty for an input or an item."""
    path: tuple[str, ...] = ()
    """Keys and indices into a structured result."""
    input: str = ""
    """Name of the input; with an empty `step`, an empty name means the item of a loop."""

    @property
    def is_item(self) -> bool:
        """Whether it refers to the item of a loop."""
        return not (self.step or self.input)

    @property
    def text(self) -> str:
        """The reference without its braces, such as `steps.find.output.items`."""
        start = f"steps.{self.step}.output" if self.step else f"inputs.{self.input}" if self.input else "item"
        return ".".join((start, *self.path))


def read_reference(text: str) -> StepReference | None:
    """Return a reference that is written with or without braces; None for another text."""
    match = _REFERENCE.fullmatch(text.strip()) or _REFERENCE.fullmatch(f"{{{{ {text.strip()} }}}}")
    return _read(match) if match else None


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


def resolve_references(
    value: Any, value_of: Callable[[StepReference], Any], schema: Mapping[str, Any] | None = None
) -> Any:
    """Return the value with each reference replaced by a result, in the type that the schema requires there.

    Args:
        value: a step's parameters.
        value_of: returns the result that a reference names, without its path; UNRESOLVED for one that stays.
        schema: JSON Schema of the parameters; without one, results keep their type.

    Raises:
        ToolError: a result does not contain the referenced part.
    """
    root_schema = JsonSchema(schema or {})
    return _resolved_in(root_schema, root_schema.root, value, value_of)


def expected_types(value: Any, schema: Mapping[str, Any]) -> Iterator[tuple[str, StepReference, frozenset[str]]]:
    """Yield, for each text that is only a reference, its path, the reference, and the JSON types allowed there."""
    root_schema = JsonSchema(schema)
    yield from _expected(root_schema, root_schema.root, value, ())


def referring_parameters(step: PlanStep) -> frozenset[str]:
    """Return the names of parameters that contain references: their values are not known yet."""
    return frozenset(name for name, value in step.parameters.items() if next(references(value), None))


def with_item(value: Any, each: StepReference, index: int) -> Any:
    """Return the value with `{{ item }}` replaced by a reference to this item of the list that `each` refers to."""
    match value:
        case str():
            return _REFERENCE.sub(lambda match: _item_text(match, each, index), value)
        case list():
            return [with_item(inner, each, index) for inner in value]
        case dict():
            return {key: with_item(inner, each, index) for key, inner in value.items()}
    return value


def item_reference(reference: StepReference, each: StepReference, index: int) -> StepReference:
    """Return the reference to an item of the list that `each` refers to, for one to `item`; any other, unchanged."""
    if not reference.is_item:
        return reference
    return StepReference(each.step, (*each.path, str(index), *reference.path), each.input)


def _item_text(match: re.Match[str], each: StepReference, index: int) -> str:
    reference = _read(match)
    return f"{{{{ {item_reference(reference, each, index).text} }}}}" if reference.is_item else match[0]


def _resolved_in(schema: JsonSchema, node: Any, value: Any, value_of: Callable[[StepReference], Any]) -> Any:
    match value:
        case str():
            return _resolved(value, value_of, type_names(schema.branches(node)))
        case list():
            parts = enumerate(value)
            return [_resolved_in(schema, schema.child(node, value, at), inner, value_of) for at, inner in parts]
        case dict():
            items = value.items()
            return {key: _resolved_in(schema, schema.child(node, value, key), inner, value_of) for key, inner in items}
    return value


def _resolved(text: str, value_of: Callable[[StepReference], Any], types: set[str]) -> Any:
    if whole := _REFERENCE.fullmatch(text.strip()):
        value = value_of(_read(whole))
        return text if value is UNRESOLVED else _rendered(part_of(value, _read(whole)), types)
    return _REFERENCE.sub(lambda match: _inserted(match, value_of), text)


def _inserted(match: re.Match[str], value_of: Callable[[StepReference], Any]) -> str:
    value = value_of(_read(match))
    return match[0] if value is UNRESOLVED else result_text(part_of(value, _read(match)))


def _rendered(value: Any, types: set[str]) -> Any:
    """Convert a result to one of these types if that is unambiguous; otherwise, or if any type is allowed, return it.

    None is not converted to text: a missing value must not become the word "null".
    """
    if not types or value is None or is_of_type(value, types):
        return value
    if "string" in types:
        return result_text(value)
    read = parse_as(value.strip(), types) if isinstance(value, str) else UNREADABLE
    return value if read is UNREADABLE else read


def _expected(
    schema: JsonSchema, node: Any, value: Any, place: tuple[str, ...]
) -> Iterator[tuple[str, StepReference, frozenset[str]]]:
    match value:
        case str() if whole := _REFERENCE.fullmatch(value.strip()):
            yield ".".join(place), _read(whole), frozenset(type_names(schema.branches(node)))
        case list() | dict():
            for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
                yield from _expected(schema, schema.child(node, value, key), inner, (*place, str(key)))


def _read(match: re.Match[str]) -> StepReference:
    return StepReference(match[1] or "", tuple(part for part in match[3].split(".") if part), match[2] or "")


def part_of(value: Any, reference: StepReference) -> Any:
    """Return the part of a value that the path of a reference leads to; raise ToolError if there is none.

    Many tools return JSON as text, so a path also leads into such a text.
    """
    for part in reference.path:
        if isinstance(value, str):
            value = _json_in(value)
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and len(part) < _MAX_DIGITS and int(part) < len(value):
            value = value[int(part)]
        else:
            path = ".".join(reference.path)
            what = f"the result of step {reference.step}" if reference.step else f"the input {reference.input}"
            raise ToolError(f"{what} has no {path}: it is {kind_of_value(value)}")
    return value


def _json_in(text: str) -> Any:
    """Return the object or list that a text consists of, or the text."""
    try:
        return read_json(text) if text.lstrip().startswith(("{", "[")) else text
    except ValueError:
        return text


def kind_of_value(value: Any) -> str:
    """Return what kind of value it is, in words."""
    match value:
        case dict():
            return f"an object with {', '.join(list(value)[:10]) or 'nothing in it'}"
        case list():
            return f"a list of {len(value)}"
        case str():
            return "text"
    return "a plain value"


def result_text(value: Any) -> str:
    """Return a text unchanged, and any other value as JSON."""
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
