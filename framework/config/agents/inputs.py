"""Pydantic models for the inputs of an agent, and checks of its input and output schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model

from framework.config.yaml.document import Document, KeyPath
from framework.tools.schema.arguments import SchemaArguments
from framework.types.errors import ConfigError
from framework.types.problem import Problem
from framework.types.spec import AgentSpec, InputSpec

_TYPES: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list[Any],
    "object": dict[str, Any],
}


class NoInputs(BaseModel):
    """The model of all agents without inputs. One class per agent would take most of an agent's memory."""

    model_config = ConfigDict(extra="forbid")


def inputs_model(spec: AgentSpec) -> type[BaseModel]:
    """Return the model that validates an agent's inputs."""
    if not spec.inputs:
        return NoInputs
    model: type[BaseModel] = create_model("inputs", __config__=ConfigDict(extra="forbid"), **input_fields(spec.inputs))
    return model


def input_fields(inputs: Mapping[str, InputSpec]) -> dict[str, Any]:
    """Return the inputs as field definitions for `create_model`."""
    return {
        name: (
            _TYPES[field.type] if field.required else _TYPES[field.type] | None,
            Field(... if field.required else field.default, description=field.description or None),
        )
        for name, field in inputs.items()
    }


def input_problems(spec: AgentSpec, document: Document) -> Iterator[Problem]:
    """Yield a problem for each invalid name and each default of the wrong type."""
    for name, field in spec.inputs.items():
        path: KeyPath = ("inputs", name)
        if name == "message":
            message = "an input cannot be named `message`: that is the request itself; choose another name"
            yield document.problem(path, message, at_key=True)
        elif not name.isidentifier() or name.startswith("_") or hasattr(BaseModel, name):
            message = f"invalid input name {name!r}: use letters, digits and '_', and no name that Pydantic reserves"
            yield document.problem(path, message, at_key=True)
        elif field.default is not None and not _default_matches(field):
            yield document.problem((*path, "default"), f"the default is not of type {field.type}")


def output_problems(spec: AgentSpec, document: Document) -> Iterator[Problem]:
    """Yield a problem if `output_schema` is not a valid schema."""
    if spec.output_schema is not None:
        try:
            SchemaArguments(spec.output_schema)
        except ConfigError as error:
            yield document.problem(("output_schema",), error.message, at_key=True)


def _default_matches(field: InputSpec) -> bool:
    try:
        TypeAdapter(_TYPES[field.type]).validate_python(field.default, strict=True)
    except ValidationError:
        return False
    return True
