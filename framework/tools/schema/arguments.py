"""What arguments a tool takes: checked against a function's signature, or against a schema from outside."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from pydantic import AliasChoices, BaseModel, ValidationError, create_model
from pydantic_core import InitErrorDetails, PydanticCustomError

from framework.tools.schema.findings import Finding, findings_from_pydantic, findings_from_validator
from framework.tools.schema.validation_work import ValidationWork, is_within_limit
from framework.types.errors import ConfigError, ToolError
from framework.types.strict_json import read_json
from framework.types.text import shorten

if TYPE_CHECKING:
    import jsonschema_rs

_ModelT = TypeVar("_ModelT", bound=BaseModel)

_MAX_SCHEMA_CHARS = 64 * 1024
_MAX_SCHEMA_DEPTH = 32
_MAX_ERRORS = 10_000
"""Errors that are made into findings: Pydantic only gives all of them or none."""
_MAX_EXPLAINED_WORK = 3_000
"""Evaluations: to name a mistake takes jsonschema-rs 100 times as long as to find that there is one."""
_MAX_REASON_CHARS = 200
"""Length of the reason why a schema cannot be used."""
_MAX_EXPLAINED_CHARS = 100_000
"""JSON of arguments: in longer ones only the first error is looked for, because each error copies its value."""


class ArgumentsError(ToolError):
    """Arguments that do not fit the tool's schema, one line a field: what is wrong, what was given, what to do."""

    code = "invalid_arguments"

    def __init__(self, message: str = "", findings: Sequence[Finding] = ()) -> None:
        super().__init__(message or "\n".join(str(finding) for finding in findings))
        self.findings = tuple(findings)


class Arguments(Protocol):
    """Checks the arguments of one tool."""

    @property
    def schema(self) -> dict[str, Any]:
        """JSON Schema of the arguments: what the model sees."""
        ...

    def with_defaults(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the tool will get them: what a policy must evaluate."""
        ...

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Check arguments strictly; raises ArgumentsError."""
        ...


class ModelArguments:
    """Arguments of a Python function, as a Pydantic model."""

    def __init__(self, model: type[BaseModel]) -> None:
        self.model = model
        self.schema = _schema_of(model)
        self._work = ValidationWork(self.schema, tagged=True)
        self._defaults = {name: field.default for name, field in model.model_fields.items() if not field.is_required()}

    def accepted_names(self, name: str) -> tuple[str, ...]:
        """The names by which a call may give a parameter: its own and its aliases; none if there is no such one."""
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
    """Arguments of a tool that lives elsewhere, by the JSON Schema it came with.

    The schema is somebody else's: nothing is fetched for it, its patterns run in linear time, and one that names no
    further properties allows none, for a server may do anything with what nobody declared.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Take a schema; raises ConfigError if it cannot be used."""
        self.schema: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False} | dict(schema)
        self._validator = _validator(self.schema)
        self._work = ValidationWork(self.schema)

    def with_defaults(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        properties = self.schema["properties"].items()
        given = {name: spec["default"] for name, spec in properties if isinstance(spec, dict) and "default" in spec}
        return given | dict(arguments)

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        text = _json(arguments)
        bound: dict[str, Any] = json.loads(text)
        work = _require_bounded_work(self._work, bound)
        if self._validator.is_valid(bound):
            return bound
        if work > _MAX_EXPLAINED_WORK:
            raise ArgumentsError("they do not fit the schema, which has too many choices to say where: compare them")
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
    """A model that refuses JSON whose validation would take too much work; the model itself where none can.

    Its `model_validate_json` raises a ValidationError for such a text, as for any other that does not fit.
    """
    work = ValidationWork(model.model_json_schema(), tagged=True)
    if not work.is_needed:
        return model

    class Bounded(model):  # type: ignore[valid-type,misc]  # the base is known when it runs
        @classmethod
        def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Any:
            try:
                text = json_data if isinstance(json_data, str) else bytes(json_data).decode()
                _require_bounded_work(work, read_json(text))
            except (ArgumentsError, ValueError) as error:
                told = error.message if isinstance(error, ArgumentsError) else str(error)
                found = InitErrorDetails(
                    type=PydanticCustomError("too_much_work", "{told}", {"told": told}), input=None
                )
                raise ValidationError.from_exception_data(model.__name__, [found]) from None
            return super().model_validate_json(json_data, **options)

    return create_model(model.__name__, __base__=Bounded, __doc__=model.__doc__)


def _require_bounded_work(work: ValidationWork, value: Any) -> int:
    """The work of checking a value; raises ArgumentsError if it is too much."""
    needed = work.of(value)
    if not is_within_limit(needed, value):
        raise ArgumentsError(
            "they nest too deep for a schema with recursive choices: give a flatter value, or several calls"
        )
    return needed


def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON Schema of a model, without the titles that Pydantic makes up."""
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
    if _depth(schema) > _MAX_SCHEMA_DEPTH or len(json.dumps(schema)) > _MAX_SCHEMA_CHARS:
        raise ConfigError(
            f"its schema is too large: at most {_MAX_SCHEMA_CHARS} characters, nested {_MAX_SCHEMA_DEPTH} deep"
        )
    try:
        linear = jsonschema_rs.RegexOptions()
        return jsonschema_rs.validator_for(schema, retriever=_refuse_retrieval, pattern_options=linear)
    except (jsonschema_rs.ValidationError, ValueError) as error:
        raise ConfigError(
            f"its schema cannot be used: {shorten(str(error).partition(chr(10))[0], _MAX_REASON_CHARS)}"
        ) from None


def _refuse_retrieval(uri: str) -> NoReturn:
    raise ValueError(f"{uri} lies outside the schema, and nothing is fetched")


def _depth(value: Any) -> int:
    """How deep a schema nests; it stops counting past what is allowed."""
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
        return json.dumps(dict(arguments), allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise ArgumentsError(f"the arguments are not JSON data: {error}") from None
