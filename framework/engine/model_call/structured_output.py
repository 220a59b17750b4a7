"""Structured output: the schema of the final answer, and model calls that return an instance of a type."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from framework.engine.context.run_context import RunContext
from framework.llm.client import ModelInfo, ModelRequest, SendRequest
from framework.llm.instructor_client import request_typed_output
from framework.llm.json_protocol import request_valid_reply, strip_fence
from framework.tools.schema.arguments import ArgumentsError, SchemaArguments, bounded_model
from framework.types.errors import ConfigError, ModelError
from framework.types.flat_schema import ANY_OBJECT
from framework.types.messages import Message, late_guidance
from framework.types.strict_json import read_json
from framework.types.text import fix_surrogates

T = TypeVar("T", bound=BaseModel)
AskTyped = Callable[[type[BaseModel], Message], Awaitable[BaseModel]]
"""Calls the model for an instance of a type, with an instruction at the end of the request."""
_FORM = "Your final answer is one JSON object and nothing else: no other text and no code fence."
_SCHEMA = "It fits this JSON Schema:"
_INSTRUCTION = "Repeat your complete answer as the arguments of {name}. Use only what the conversation contains."

# --- the final answer


def response_schema(run: RunContext) -> Mapping[str, Any] | None:
    """Return the JSON Schema that the final answer must fit, `{}` for any JSON object, or None for text."""
    response_format, schema = run.state.model_settings.response_format, run.state.output_schema
    if response_format == "text" or (schema is None and response_format is None):
        return None
    if run.model_caller.primary().info.stand_in:
        return None
    if schema is None or schema == ANY_OBJECT:
        return {}
    return schema if schema.get("type") == "object" else None


def answer_instruction(run: RunContext) -> Iterator[str]:
    """Yield the lines of the system message that describe the answer's schema, unless the model learns it otherwise."""
    schema, info = response_schema(run), run.model_caller.primary().info
    if schema is None or info.describes_json:
        return
    if schema and info.holds_schema(with_tools=bool(run.agent.toolset.definitions)):
        return
    yield _FORM
    if schema:
        yield f"{_SCHEMA}\n{json.dumps(schema, ensure_ascii=False, separators=(',', ':'))}"


def check_output(output: object, executor: str) -> str:
    """Return an executor's output as valid Unicode; raises ConfigError if it is not a string."""
    if not isinstance(output, str):
        raise ConfigError(f"executor {executor} returned {type(output).__name__}; expected str, the answer's text")
    return fix_surrogates(output)


async def final_data(run: RunContext, text: str, ask: AskTyped) -> Any:
    """Return the answer as JSON data of the requested type, or None if no type is requested.

    Args:
        run: the run that ends with the answer.
        text: the answer.
        ask: calls the model for the answer again, if the text is not such data.

    Raises:
        ModelError: the model did not return such data.
        LimitExceeded: a limit is used up.
    """
    output = _output_type(run)
    if output is None:
        return _any_object(text) if run.state.model_settings.response_format == "json" else None
    try:
        answer = output.model_validate_json(strip_fence(text.strip()))
    except ValidationError:
        instruction = late_guidance(_INSTRUCTION.format(name=output.__name__))
        answer = await ask(output, instruction)
    run.keep_answer(answer)
    return answer.model_dump(mode="json", by_alias=True)  # so that it fits the schema that was requested


def _any_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object that an answer consists of, or None if it is something else."""
    try:
        value = read_json(strip_fence(text.strip()))
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _output_type(run: RunContext) -> type[BaseModel] | None:
    requested = run.services.output_type
    if requested is not None and run.parent is None:
        return bounded_model(requested)
    schema = run.state.output_schema
    return None if schema is None else _model_of(schema)


def _model_of(schema: dict[str, Any]) -> type[BaseModel]:
    """Return a model that accepts what an object's JSON Schema accepts; raises ConfigError for an invalid schema."""
    arguments = SchemaArguments(schema)

    class Answer(BaseModel):
        """The answer."""

        model_config = ConfigDict(extra="allow")

        @model_validator(mode="before")
        @classmethod
        def _fits(cls, data: Any) -> Any:
            if not isinstance(data, dict):
                raise ValueError("an object is expected")
            try:
                return arguments.bind(data)
            except ArgumentsError as error:
                raise ValueError(error.message) from None

        @classmethod
        def model_json_schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
            return {**deepcopy(arguments.schema), "title": cls.__name__}  # the name of the tool

    return Answer


# --- typed replies


async def typed_reply(info: ModelInfo, call: SendRequest, request: ModelRequest, output: type[T]) -> T:
    """Call a model for an instance of `output`: natively if the model supports it, else through Instructor.

    Args:
        info: the model that is called.
        call: sends a request; its errors propagate unchanged.
        request: the request.
        output: a pydantic model class.

    Raises:
        ModelError: the answer does not fit `output`, after all retries.
    """
    if not info.typed:
        return await request_typed_output(call, request, output, by_schema=info.any_schema)
    reply = await request_valid_reply(call, request)
    try:
        return output.model_validate_json(reply.message.content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "it"
        raise ModelError(f"the answer does not fit {output.__name__}: {place}: {first['msg']}") from None
