"""Validation errors as data, one per field, so that a template can render them in any language."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from framework.tools.schema.json_schema import JsonSchema
from framework.types.flat_schema import CHOICES, describe_choices
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
"""The kind of an error, by Pydantic's error type or JSON Schema's keyword."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One field that does not match the schema."""

    field: str
    """Place of the field, such as `filter.limit`."""
    kind: FindingKind
    problem: str
    """Description of the problem, in English."""
    value: str | None
    """Given value as JSON, at most 80 characters; None if no value was given."""
    expected: str
    """Values that the schema allows, such as `integer, >= 1`; empty if it does not restrict them."""

    @property
    def fix(self) -> str:
        """Instruction that corrects the field, in English; empty if unknown."""
        if self.kind == "unknown":
            return "remove it"
        expectation = f": {self.expected}" if self.expected else ""
        return f"add it{expectation}" if self.kind == "missing" else f"give{expectation}" if expectation else ""

    def __str__(self) -> str:
        value_note = "" if self.value is None else f" (given: {self.value})"
        return f"{self.field}: {self.problem}{value_note}" + (f"; {self.fix}" if self.fix else "")


def findings_from_pydantic(
    errors: Iterable[ErrorDetails], schema: Mapping[str, Any], arguments: Mapping[str, Any]
) -> list[Finding]:
    """Convert Pydantic's errors, keeping the first error of each field, such as the first choice of a union."""
    findings: dict[str, Finding] = {}
    for error in errors:
        kind = _KINDS.get(error["type"], "type" if error["type"].endswith(("_type", "_parsing")) else "value")
        path = _path_in_arguments(error["loc"], arguments, beyond=kind == "missing")
        finding = _finding(kind, path, error["msg"], JsonSchema(schema), arguments)
        findings.setdefault(finding.field, finding)
    return list(findings.values())[:_MAX_FINDINGS]


def findings_from_validator(
    errors: Iterable[jsonschema_rs.ValidationError], schema: Mapping[str, Any], arguments: Mapping[str, Any]
) -> list[Finding]:
    """Convert the first errors of a JSON Schema validator."""
    findings: list[Finding] = []
    for error in errors:
        for kind, path in _error_fields(error):
            if not path and _keyword(error) in CHOICES and (choices := describe_choices(schema)):
                which = "none" if _keyword(error) == "anyOf" else "not exactly one"
                problem = f"they fit {which} of the choices: {choices}"
                findings.append(Finding("arguments", "value", problem, _value_text([], arguments), ""))
            else:
                findings.append(_finding(kind, path, error.message, JsonSchema(schema), arguments))
            if len(findings) == _MAX_FINDINGS:
                return findings
    return findings


def _keyword(error: jsonschema_rs.ValidationError) -> str:
    return str(error.schema_path[-1]) if error.schema_path else ""


def _error_fields(error: jsonschema_rs.ValidationError) -> Iterator[tuple[FindingKind, _Path]]:
    keyword = _keyword(error)
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
    """Return the part of a path that exists in the arguments, because Pydantic appends the choices of a union to it.

    With `beyond`, the last part may be missing.
    """
    existing: list[str | int] = []
    for part in path:
        exists = part in value if isinstance(value, dict) else isinstance(value, list) and isinstance(part, int)
        if not exists:
            return [*existing, part] if beyond and isinstance(value, dict) and part == path[-1] else existing
        existing.append(part)
        value = value[part]
    return existing


def _value_text(path: _Path, value: Any) -> str:
    for part in path:
        value = value[part]
    return shorten(json.dumps(value, ensure_ascii=False, default=str), _MAX_VALUE_CHARS)
