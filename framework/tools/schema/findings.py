"""What is wrong with a call's arguments, field by field, in a form that a template can put into any language."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from framework.tools.schema.json_schema import JsonSchema
from framework.types.text import shorten

if TYPE_CHECKING:
    import jsonschema_rs
    from pydantic_core import ErrorDetails

FindingKind = Literal["missing", "unknown", "type", "choice", "value"]
_Path = Sequence[str | int]
_MAX_FINDINGS = 10
_MAX_VALUE_CHARS = 80
_MAX_PROBLEM_CHARS = 200
_KINDS: Mapping[str, FindingKind] = {
    "missing": "missing",
    "extra_forbidden": "unknown",
    "literal_error": "choice",
    "enum": "choice",
    "const": "choice",
    "type": "type",
    "anyOf": "type",
    "oneOf": "type",
}
"""By Pydantic's name of an error, or JSON Schema's keyword."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One field that does not fit."""

    field: str
    """Its place, such as `filter.limit`."""
    kind: FindingKind
    problem: str
    """What is wrong, in English."""
    value: str | None
    """What was given, as JSON, cut; none where nothing was."""
    expected: str
    """What the schema wants there, such as `integer, >= 1`; empty where it does not say."""

    @property
    def fix(self) -> str:
        """What to do about it, in English; empty where nobody knows."""
        if self.kind == "unknown":
            return "remove it"
        what = f": {self.expected}" if self.expected else ""
        return f"add it{what}" if self.kind == "missing" else f"give{what}" if what else ""

    def __str__(self) -> str:
        given = "" if self.value is None else f" (given: {self.value})"
        return f"{self.field}: {self.problem}{given}" + (f"; {self.fix}" if self.fix else "")


def findings_from_pydantic(
    errors: Iterable[ErrorDetails], schema: Mapping[str, Any], arguments: Mapping[str, Any]
) -> list[Finding]:
    """Pydantic's errors; of several for one field, such as all the choices of a union, the first."""
    found: dict[str, Finding] = {}
    for error in errors:
        kind = _KINDS.get(error["type"], "type" if error["type"].endswith(("_type", "_parsing")) else "value")
        path = _path_in_arguments(error["loc"], arguments, beyond=kind == "missing")
        finding = _finding(kind, path, error["msg"], JsonSchema(schema), arguments)
        found.setdefault(finding.field, finding)
    return list(found.values())[:_MAX_FINDINGS]


def findings_from_validator(
    errors: Iterable[jsonschema_rs.ValidationError], schema: Mapping[str, Any], arguments: Mapping[str, Any]
) -> list[Finding]:
    """A schema validator's errors, the first of them."""
    found: list[Finding] = []
    for error in errors:
        for kind, path in _error_fields(error):
            found.append(_finding(kind, path, error.message, JsonSchema(schema), arguments))
            if len(found) == _MAX_FINDINGS:
                return found
    return found


def _error_fields(error: jsonschema_rs.ValidationError) -> Iterator[tuple[FindingKind, _Path]]:
    keyword = str(error.schema_path[-1]) if error.schema_path else ""
    path = list(error.instance_path)
    if keyword == "required":
        yield "missing", [*path, str(getattr(error.kind, "property", ""))]
    elif keyword in ("additionalProperties", "unevaluatedProperties") and hasattr(error.kind, "unexpected"):
        yield from (("unknown", [*path, str(name)]) for name in error.kind.unexpected)
    else:
        yield _KINDS.get(keyword, "value"), path


def _finding(kind: FindingKind, path: _Path, message: str, schema: JsonSchema, arguments: Mapping[str, Any]) -> Finding:
    problems = {
        "missing": "it is missing",
        "unknown": "there is no such argument",
        "type": "it has the wrong type",
        "choice": "it is not one of the choices",
    }
    return Finding(
        field=".".join(str(part) for part in path) or "arguments",
        kind=kind,
        problem=problems.get(kind) or shorten(message, _MAX_PROBLEM_CHARS),
        value=None if kind == "missing" else _value_text(path, arguments),
        expected="" if kind == "unknown" else schema.describe(schema.at(path, arguments)),
    )


def _path_in_arguments(path: _Path, value: Any, *, beyond: bool) -> _Path:
    """The part of a path that leads through the arguments: Pydantic adds the names of a union's choices to it."""
    known: list[str | int] = []
    for part in path:
        inside = part in value if isinstance(value, dict) else isinstance(value, list) and isinstance(part, int)
        if not inside:
            return [*known, part] if beyond and isinstance(value, dict) and part == path[-1] else known
        known.append(part)
        value = value[part]
    return known


def _value_text(path: _Path, value: Any) -> str:
    for part in path:
        value = value[part]
    return shorten(json.dumps(value, ensure_ascii=False, default=str), _MAX_VALUE_CHARS)
