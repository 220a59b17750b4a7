"""Shows a JSON Schema of an object as one flat list of properties, whatever choices it is composed of.

Servers describe arguments with `anyOf`, `allOf`, `$ref` or `if` at the root. Model providers reject such a schema, and
rules and forms need the names of all arguments. Values are still validated against the schema itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from framework.types.text import shorten

CHOICES = ("anyOf", "oneOf")
COMPOSING = (*CHOICES, "allOf", "$ref", "not", "if", "then", "else", "dependentSchemas", "dependencies")
"""Keywords by which a schema is composed of others that apply to the same value."""
ANY_OBJECT: Mapping[str, Any] = {"type": "object", "additionalProperties": True}
"""The schema of an answer that is any JSON object."""
_MAX_HOPS = 16
"""Maximum number of references and choices followed from the root."""
_MAX_VISITED = 500
"""Maximum number of subschemas visited, because nested choices multiply."""
_MAX_DIGITS = 10
"""Length from which an index in a reference is ignored: Python refuses to parse very long numbers."""
_MAX_CHOICES = 12
_MAX_CHOICES_CHARS = 600


@dataclass(slots=True)
class DeclaredProperties:
    """The properties that a schema of an object declares, in itself or in the schemas that it is composed of."""

    properties: dict[str, Any] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    """Names that are required whatever choice applies."""
    patterns: dict[str, Any] = field(default_factory=dict)
    is_open: bool = False
    """Whether other properties are explicitly allowed, or may be, because a part of the schema could not be read."""

    def add(self, other: DeclaredProperties, *, conditional: bool = False) -> None:
        """Add the properties of a schema that applies as well, always or under a condition."""
        for name, schema in other.properties.items():
            self.properties[name] = _both(self.properties[name], schema) if name in self.properties else schema
        self.patterns = {**other.patterns, **self.patterns}
        self.is_open = self.is_open or other.is_open
        if not conditional:
            self.required = tuple(dict.fromkeys((*self.required, *other.required)))


def is_composed(schema: Mapping[str, Any]) -> bool:
    """Return whether the schema is composed of others that apply to the same value."""
    return any(keyword in schema for keyword in COMPOSING)


def declared_properties(node: Mapping[str, Any], root: Mapping[str, Any]) -> DeclaredProperties:
    """Return what a schema of an object declares; its references are resolved in `root`."""
    return _Reader(root).read(node, 0)


def flat_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object as one list of properties; a plain one is returned as it is.

    A property has the schemas of all choices; the description lists which properties belong together.
    """
    if not is_composed(schema):
        return dict(schema)
    declared = declared_properties(schema, schema)
    flat = {key: value for key, value in schema.items() if key not in COMPOSING}
    flat |= {"type": "object", "properties": declared.properties}
    if declared.required:
        flat["required"] = list(declared.required)
    if declared.patterns:
        flat["patternProperties"] = declared.patterns
    if choices := describe_choices(schema):
        flat["description"] = f"{schema.get('description', '')} Give the arguments of one of: {choices}".strip()
    return flat


def describe_choices(schema: Mapping[str, Any]) -> str:
    """Describe the choices of an object's properties, such as `action="create", title | action="delete", id?`."""
    reader = _Reader(schema)
    choices: list[str] = []
    for keyword in CHOICES:
        for choice in _list(schema.get(keyword)):
            declared = reader.read(choice, 1)
            shown = [_describe_property(name, spec, declared.required) for name, spec in declared.properties.items()]
            choices.append(", ".join(shown or declared.required) or "no others")
    shown = [*choices[:_MAX_CHOICES], *(["…"] if len(choices) > _MAX_CHOICES else [])]
    return shorten(" | ".join(dict.fromkeys(shown)), _MAX_CHOICES_CHARS) if len(shown) > 1 else ""


def resolve_reference(root: Any, reference: Any) -> Any:
    """Return the subschema that a reference such as `#/$defs/filter` names, or None if the schema has no such part."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    node = root
    for part in reference.split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(node, list):
            node = node[int(key)] if key.isdecimal() and len(key) < _MAX_DIGITS and int(key) < len(node) else None
        else:
            node = node.get(key) if isinstance(node, Mapping) else None
    return node


class _Reader:
    """Reads the properties of one schema, within limits."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root, self._visited = root, 0
        self._followed: list[Any] = []  # references, to end where one leads back

    def read(self, node: Any, hops: int) -> DeclaredProperties:
        self._visited += 1
        if not isinstance(node, Mapping) or hops > _MAX_HOPS or self._visited > _MAX_VISITED:
            return DeclaredProperties(is_open=node is not False)
        found = DeclaredProperties(
            dict(_mapping(node.get("properties"))),
            tuple(name for name in _list(node.get("required")) if isinstance(name, str)),
            dict(_mapping(node.get("patternProperties"))),
            any(node.get(key, False) is not False for key in ("additionalProperties", "unevaluatedProperties")),
        )
        if "$ref" in node and node["$ref"] not in self._followed:
            self._followed.append(node["$ref"])
            found.add(self.read(resolve_reference(self._root, node["$ref"]), hops + 1))
            self._followed.pop()
        for part in _list(node.get("allOf")):
            found.add(self.read(part, hops + 1))
        for keyword in CHOICES:
            if choices := [choice for choice in _list(node.get(keyword)) if choice is not False]:
                found.add(_one_of([self.read(choice, hops + 1) for choice in choices]))
        for part in _conditional_parts(node):
            found.add(self.read(part, hops + 1), conditional=True)
        return found


def _conditional_parts(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the schemas that apply under a condition."""
    parts = [node.get(keyword) for keyword in ("if", "then", "else")]
    for keyword in ("dependentSchemas", "dependencies"):
        parts += _mapping(node.get(keyword)).values()
    return [part for part in parts if isinstance(part, Mapping)]


def _one_of(choices: list[DeclaredProperties]) -> DeclaredProperties:
    """Return what an object that fits one of the choices may have."""
    merged = DeclaredProperties(is_open=any(choice.is_open for choice in choices))
    for name in dict.fromkeys(name for choice in choices for name in choice.properties):
        merged.properties[name] = _either([c.properties[name] for c in choices if name in c.properties])
    for choice in choices:
        merged.patterns.update(choice.patterns)
    merged.required = tuple(name for name in choices[0].required if all(name in c.required for c in choices))
    return merged


def _either(schemas: list[Any]) -> Any:
    """Return a schema of the values that fit any of the schemas; constants become one `enum`."""
    different = [schema for n, schema in enumerate(schemas) if schema not in schemas[:n]]
    if len(different) == 1:
        return different[0]
    if not all(isinstance(schema, Mapping) and schema for schema in different):
        return {}
    defaults = [schema["default"] for schema in different if "default" in schema]
    default = {"default": defaults[0]} if defaults and all(other == defaults[0] for other in defaults) else {}
    if all("const" in schema or isinstance(schema.get("enum"), list) for schema in different):
        values = [value for schema in different for value in _values(schema)]
        kinds = {json.dumps(schema.get("type")) for schema in different}
        kind = {"type": different[0]["type"]} if len(kinds) == 1 and "type" in different[0] else {}
        return kind | {"enum": [value for n, value in enumerate(values) if value not in values[:n]]} | default
    return {"anyOf": different} | default


def _both(first: Any, second: Any) -> Any:
    """Return a schema of the values that fit both schemas, as far as their keywords differ."""
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        return first if isinstance(first, Mapping) else second
    return {**second, **first}


def _values(schema: Mapping[str, Any]) -> list[Any]:
    return [schema["const"]] if "const" in schema else list(schema["enum"])


def _describe_property(name: str, schema: Any, required: Iterable[str]) -> str:
    if isinstance(schema, Mapping) and "const" in schema:
        return f"{name}={json.dumps(schema['const'], ensure_ascii=False, default=str)}"
    return name if name in required else f"{name}?"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
