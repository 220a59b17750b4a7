"""Answers of a type: from models that give them by themselves, and from all others by way of Instructor."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from framework.engine.context.run_context import RunContext
from framework.engine.model_call.retry import primary_client
from framework.llm.client import ModelRequest
from framework.llm.instructor_client import Ask, request_typed_output
from framework.llm.json_protocol.client import request_valid_reply
from framework.types.errors import ModelError

T = TypeVar("T", bound=BaseModel)


async def typed_reply(run: RunContext, ask: Ask, request: ModelRequest, output: type[T], model: str | None = None) -> T:
    """Ask for an answer of a type.

    Args:
        run: who asks.
        ask: how a request is sent; what it raises comes out unchanged.
        request: what is asked.
        output: the type.
        model: whom, instead of the agent's own model.

    Raises:
        ModelError: the answer does not fit the type, however often the model was asked.
    """
    if not primary_client(run, model).info.typed:
        return await request_typed_output(ask, request, output)
    reply = await request_valid_reply(ask, request)
    try:
        return output.model_validate_json(reply.message.content)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in found["loc"]) or "it"
        raise ModelError(f"the answer does not fit {output.__name__}: {where}: {found['msg']}") from None
