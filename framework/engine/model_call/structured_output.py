"""Answers of a type: the text a run ends with as data, asked for once more only if it is not the data already."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from framework.engine.context.run_context import RunContext
from framework.engine.model_call.retry import primary_client
from framework.llm.json_protocol.reply import strip_fence
from framework.tools.schema.arguments import ArgumentsError, SchemaArguments, bounded_model
from framework.types.errors import ConfigError
from framework.types.messages import Message
from framework.types.text import fix_surrogates

AskTyped = Callable[[type[BaseModel], Message], Awaitable[BaseModel]]
"""Asks the model for an answer of a type, with an instruction at the end of the request."""
FORM = "Your final answer is one JSON object and nothing else: no other text and no code fence."
SCHEMA = "It fits this JSON Schema:"
INSTRUCTION = "Give your answer once more, complete, as the arguments of {name}. Take everything from what was said."


def check_output(output: object, executor: str) -> str:
    """What an executor has given, as it can be kept; raises ConfigError if it is no text."""
    if not isinstance(output, str):
        raise ConfigError(
            f"the executor {executor} gave {type(output).__name__}: an executor returns the answer's text"
        )
    return fix_surrogates(output)


def answer_schema(run: RunContext) -> Mapping[str, Any] | None:
    """Return the JSON Schema that the final answer is to fit, `{}` for any JSON object, or None for text."""
    wanted, schema = run.state.model_settings.response_format, run.state.output_schema
    if wanted == "text" or (schema is None and wanted is None) or primary_client(run).info.typed:
        return None
    if schema is None:
        return {}
    return schema if schema.get("type") == "object" else None


def answer_instruction(run: RunContext) -> Iterator[str]:
    """Yield the system message's lines about the answer's form, unless the provider enforces it."""
    form = answer_schema(run)
    with_tools = bool(run.agent.toolset.definitions)
    if form is None or (form and primary_client(run).info.holds_schema(with_tools=with_tools)):
        return
    yield FORM
    if form:
        yield f"{SCHEMA}\n{json.dumps(form, ensure_ascii=False, separators=(',', ':'))}"


async def final_data(run: RunContext, text: str, ask: AskTyped) -> Any:
    """Return the answer as JSON data of the requested type, or None if no type is requested.

    Args:
        run: the run that ends with the answer.
        text: the answer.
        ask: asks the model for the answer once more, if the text is not such data.

    Raises:
        ModelError: the model could not be brought to give it.
        LimitExceeded: a limit is used up.
    """
    output = _wanted(run)
    if output is None:
        return None
    try:
        answer = output.model_validate_json(strip_fence(text.strip()))
    except ValidationError:
        instruction = Message(role="system", content=INSTRUCTION.format(name=output.__name__))
        answer = await ask(output, instruction)
    return answer.model_dump(mode="json")


def _wanted(run: RunContext) -> type[BaseModel] | None:
    asked_for = run.services.output_type
    if asked_for is not None and run.parent is None:
        return bounded_model(asked_for)
    schema = run.state.output_schema
    return None if schema is None else model_of(schema)


def model_of(schema: dict[str, Any]) -> type[BaseModel]:
    """A model that takes what a JSON Schema of an object takes; raises ConfigError if the schema cannot be used."""
    checked = SchemaArguments(schema)

    class Answer(BaseModel):
        """The answer."""

        model_config = ConfigDict(extra="allow")

        @model_validator(mode="before")
        @classmethod
        def _fits(cls, data: Any) -> Any:
            if not isinstance(data, dict):
                raise ValueError("an object is expected")
            try:
                return checked.bind(data)
            except ArgumentsError as error:
                raise ValueError(error.message) from None

        @classmethod
        def model_json_schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
            return {"title": cls.__name__, **deepcopy(checked.schema)}

    return Answer
