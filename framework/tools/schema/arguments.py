"""Validates the arguments of a call, by a function's signature or by an external JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from pydantic import AliasChoices, BaseModel, ValidationError, create_model
from pydantic_core import InitErrorDetails, PydanticCustomError

from framework.tools.schema.findings import Finding, findings_from_pydantic, findings_from_validator
from framework.tools.schema.validation_work import ValidationWork, is_within_limit
from framework.types.errors import ConfigError, ToolError
from framework.types.flat_schema import declared_properties, flat_schema, is_composed
from framework.types.strict_json import read_json
from framework.types.text import shorten

if TYPE_CHECKING:
    import jsonschema_rs

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
    if _depth(schema) > _MAX_SCHEMA_DEPTH or len(json.dumps(schema)) > _MAX_SCHEMA_CHARS:
        raise ConfigError(
            f"its schema is too large: at most {_MAX_SCHEMA_CHARS} characters, nested {_MAX_SCHEMA_DEPTH} deep"
        )


def _refuse_retrieval(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is outside the schema, and references are not fetched")


def _depth(value: Any) -> int:
    """Return how deep a schema nests, counting to just above the limit."""
    layer, depth = [value], 0
    while layer and depth <= _MAX_SCHEMA_DEPTH:
        layer = [inner for outer in layer for inner in _inside(outer)]
        depth += 1
    return depth


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _json(arguments: Mapping[str, Any]) -> str:
    try:
        return _FINITE.encode(dict(arguments))
    except (ValueError, TypeError, RecursionError) as error:
        raise ArgumentsError(f"the arguments are not JSON data: {error}") from None
