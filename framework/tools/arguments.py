"""Checks a call's arguments against the JSON Schema of its tool, within a limit of work."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, TypeVar, cast

from pydantic import AliasChoices, BaseModel, ValidationError, create_model
from pydantic_core import InitErrorDetails, PydanticCustomError

from framework.tools.json_schema import JsonSchema
from framework.types.errors import ConfigError, ToolError
from framework.types.flat_schema import (
    CHOICES,
    declared_properties,
    describe_choices,
    flat_schema,
    is_composed,
    resolve_reference,
)
from framework.types.text import nesting_depth, read_json, shorten

if TYPE_CHECKING:
    import jsonschema_rs
    from pydantic_core import ErrorDetails


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
        if any(isinstance(subschema, Mapping) and any(True for _ in _subschemas(subschema)) for subschema in inner):
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
        pending.extend(_subschemas(node))


def _subschemas(node: Any) -> Iterator[Any]:
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


_ModelT = TypeVar("_ModelT", bound=BaseModel)

_FINITE = json.JSONEncoder(allow_nan=False)
_MAX_SCHEMA_CHARS = 64 * 1024
_MAX_SCHEMA_DEPTH = 32
_MAX_ERRORS = 10_000
"""Maximum number of errors converted to findings: Pydantic always returns all errors, each with its value."""
_MAX_EXPLAINED_WORK = 3_000
"""Maximum work for which errors are located: jsonschema-rs needs 100 times as long to locate an error as to find it."""
_MAX_REASON_CHARS = 200
"""Maximum length of the reason why a schema is invalid."""
_MAX_EXPLAINED_CHARS = 100_000
"""Maximum length, as JSON, of arguments for which all errors are listed, because each error copies its value.

For longer arguments, only the first error is reported."""


class ArgumentsError(ToolError):
    """Arguments that do not match the tool's schema. The message has one line per field: problem, value and fix."""

    code = "invalid_arguments"

    def __init__(self, message: str = "", findings: Sequence[Finding] = ()) -> None:
        super().__init__(message or "\n".join(str(finding) for finding in findings))
        self.findings = tuple(findings)


class Arguments(Protocol):
    """Checks the arguments of one tool."""

    @property
    def schema(self) -> dict[str, Any]:
        """JSON Schema of the arguments, as the model sees it."""
        ...

    def with_defaults(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments with default values added, as a policy must evaluate them."""
        ...

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Validate arguments strictly and return the tool's keyword arguments; raise ArgumentsError."""
        ...


class ModelArguments:
    """Validates the arguments of a Python function with a Pydantic model."""

    def __init__(self, model: type[BaseModel]) -> None:
        self.model = model
        self.schema = _schema_of(model)
        self._work = ValidationWork(self.schema, tagged=True)
        self._defaults = {name: field.default for name, field in model.model_fields.items() if not field.is_required()}

    def accepted_names(self, name: str) -> tuple[str, ...]:
        """Return the names that a call may use for a parameter: its own and its aliases; empty if unknown."""
        field = self.model.model_fields.get(name)
        if field is None:
            return ()
        alias = field.validation_alias
        choices = alias.choices if isinstance(alias, AliasChoices) else [alias] if alias else []
        return (name, *(choice for choice in (field.alias, *choices) if isinstance(choice, str) and choice != name))

    def with_defaults(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._defaults, **arguments}

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        text = _json(arguments)
        _require_bounded_work(self._work, arguments)
        try:
            model = self.model.model_validate_json(text, strict=True)
        except ValidationError as error:
            if (count := error.error_count()) > _MAX_ERRORS:
                raise ArgumentsError(f"{count} values in the arguments do not fit the schema") from None
            errors = error.errors(include_url=False, include_context=False)
            raise ArgumentsError(findings=findings_from_pydantic(errors, self.schema, arguments)) from None
        return {name: getattr(model, name) for name in type(model).model_fields}


class SchemaArguments:
    """Validates the arguments of a remote tool with the JSON Schema that its server declares.

    The schema is untrusted: its references are not fetched, and its patterns are matched in linear time. Undeclared
    properties are rejected unless the schema allows them, because the effect of an undeclared one is unknown. Those
    that a part of the schema declares, such as a choice of `anyOf`, are declared.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Compile a schema; raise ConfigError if it is invalid or too large."""
        _check_size(schema)
        self.schema: dict[str, Any] = _closed(schema)
        self._validator = _validator(self.schema)
        self._work = ValidationWork(self.schema)
        self.flat = flat_schema(self.schema)
        """The schema with the properties of all its parts in one list, for models, rules and forms."""
        properties = self.flat["properties"].items()
        self._defaults = {
            name: spec["default"] for name, spec in properties if isinstance(spec, Mapping) and "default" in spec
        }

    def with_defaults(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return self._defaults | dict(arguments)

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        text = _json(arguments)
        bound: dict[str, Any] = json.loads(text)
        work = _require_bounded_work(self._work, bound)
        if self._validator.is_valid(bound):
            return bound
        if work > _MAX_EXPLAINED_WORK:
            raise ArgumentsError(
                "the arguments do not match the schema, which has too many choices to locate the error: compare them"
            )
        errors = self._validator.iter_errors(bound) if len(text) <= _MAX_EXPLAINED_CHARS else self._first_error(bound)
        raise ArgumentsError(findings=findings_from_validator(errors, self.schema, bound))

    def _first_error(self, bound: dict[str, Any]) -> list[jsonschema_rs.ValidationError]:
        import jsonschema_rs

        try:
            self._validator.validate(bound)
        except jsonschema_rs.ValidationError as error:
            return [error]
        return []


def bounded_model(model: type[_ModelT]) -> type[_ModelT]:
    """Return a subclass of a model that rejects JSON whose validation would take too much work.

    Its `model_validate_json` raises a ValidationError for such a text. If no text can cause too much work, the model
    itself is returned.
    """
    work = ValidationWork(model.model_json_schema(), tagged=True)
    if not work.is_needed:
        return model

    class Bounded(model):  # type: ignore[valid-type,misc]  # the base class is a parameter
        @classmethod
        def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Any:
            try:
                text = json_data if isinstance(json_data, str) else bytes(json_data).decode()
                _require_bounded_work(work, read_json(text))
            except (ArgumentsError, ValueError) as error:
                message = error.message if isinstance(error, ArgumentsError) else str(error)
                problem = PydanticCustomError("too_much_work", "{message}", {"message": message})
                details = InitErrorDetails(type=problem, input=None)
                raise ValidationError.from_exception_data(model.__name__, [details]) from None
            return super().model_validate_json(json_data, **options)

    return create_model(model.__name__, __base__=Bounded, __doc__=model.__doc__)


def _closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema such that it rejects properties that neither it nor a part of it declares or allows."""
    own: dict[str, Any] = {"type": "object", "properties": {}} | dict(schema)
    if "additionalProperties" in own or "unevaluatedProperties" in own or not isinstance(own["properties"], Mapping):
        return own
    if not is_composed(own):
        return {"type": "object", "properties": {}, "additionalProperties": False} | own
    if "$ref" in own:  # older drafts ignore what stands beside a reference
        own["allOf"] = [{"$ref": own.pop("$ref")}, *(own["allOf"] if isinstance(own.get("allOf"), list) else [])]
    declared = declared_properties(own, own)
    if declared.is_open:
        return own
    anything: dict[str, Any] = {}  # which values a property may have is up to the part that declares it
    own["properties"] = {**dict.fromkeys(declared.properties, anything), **own["properties"]}
    if declared.patterns:
        own["patternProperties"] = {**dict.fromkeys(declared.patterns, anything), **own.get("patternProperties", {})}
    return own | {"additionalProperties": False}


def _require_bounded_work(work: ValidationWork, value: Any) -> int:
    """Return the estimated work of validating a value; raise ArgumentsError if it is too much."""
    estimate = work.estimate(value)
    if not is_within_limit(estimate, value):
        raise ArgumentsError(
            "the arguments nest too deep for a schema with recursive choices: pass a flatter value, or make more calls"
        )
    return estimate


def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of a model, without the titles that Pydantic generates."""
    schema = model.model_json_schema()
    schema.pop("title", None)
    for spec in schema.get("properties", {}).values():
        spec.pop("title", None)
    schema.setdefault("properties", {})
    return schema


def _validator(schema: dict[str, Any]) -> jsonschema_rs.Validator:
    import jsonschema_rs

    if schema["type"] != "object" or not isinstance(schema["properties"], dict):
        raise ConfigError("its schema does not describe an object of named arguments")
    try:
        linear = jsonschema_rs.RegexOptions()
        return jsonschema_rs.validator_for(schema, retriever=_refuse_retrieval, pattern_options=linear)
    except (jsonschema_rs.ValidationError, ValueError) as error:
        raise ConfigError(
            f"its schema is invalid: {shorten(str(error).partition(chr(10))[0], _MAX_REASON_CHARS)}"
        ) from None


def _check_size(schema: Mapping[str, Any]) -> None:
    if nesting_depth(schema) > _MAX_SCHEMA_DEPTH or len(json.dumps(schema)) > _MAX_SCHEMA_CHARS:
        raise ConfigError(
            f"its schema is too large: at most {_MAX_SCHEMA_CHARS} characters, nested {_MAX_SCHEMA_DEPTH} deep"
        )


def _refuse_retrieval(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is outside the schema, and references are not fetched")


def _json(arguments: Mapping[str, Any]) -> str:
    try:
        return _FINITE.encode(dict(arguments))
    except (ValueError, TypeError, RecursionError) as error:
        raise ArgumentsError(f"the arguments are not JSON data: {error}") from None
