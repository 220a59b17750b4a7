"""Tools and typed answers for models without function calls: a client that wraps another one.

No part of a reply is shown before it has been parsed completely: a valid beginning may turn out to belong to an invalid
reply. The only text delta is therefore the complete final answer.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError

from framework.llm.capabilities import Capabilities
from framework.llm.client import (
    Delta,
    FinishReason,
    ModelClient,
    ModelInfo,
    ModelReply,
    ModelRequest,
    SendRequest,
    Unusable,
    other_seed,
)
from framework.llm.json_protocol.prompt import protocol_rules, rejection, to_text_messages, typed_rules
from framework.llm.json_protocol.reply import FinalAnswer, ToolAction, parse_answer, parse_object
from framework.llm.json_protocol.schema import reply_schema
from framework.llm.reply_check import has_visible_text, require_content
from framework.llm.thoughts import split_thoughts
from framework.types.errors import ModelError
from framework.types.messages import Message, Reasoning, ToolCall, ToolDefinition
from framework.types.spec import Protocol
from framework.types.text import fix_surrogates

_MAX_ERRORS = 5


def needs_json_protocol(protocol: Protocol, capabilities: Capabilities) -> bool:
    """Return whether an agent's `protocol` selects this protocol for a model."""
    return protocol == "json" or (protocol == "auto" and capabilities.tools is False)


def with_protocol(client: ModelClient, protocol: Protocol) -> ModelClient:
    """Return the client for an agent's `protocol`; `auto` wraps models known to have no function calls.

    A client that is no language model (`ModelInfo.stand_in`) is returned unchanged.
    """
    info = client.info
    needs_json = needs_json_protocol(protocol, info.capabilities) and not info.stand_in
    return JsonProtocol(client) if needs_json else client


async def request_valid_reply(send: SendRequest, request: ModelRequest) -> ModelReply:
    """Send the request; retry an invalid reply once, with a message about what is wrong with it.

    Errors raised by `send` are re-raised unchanged.

    Raises:
        ModelError: the reply was cut off, or the second one is invalid too.
    """
    reply = await send(request)
    if reply.unusable is None:
        return reply
    if _is_complete(reply.finish_reason):
        correction = rejection(reply.message.content, _describe(reply.unusable))
        changed = other_seed(replace(request, messages=(*request.messages, correction)), 1)
        reply = await send(changed)
    if reply.unusable is None:
        return reply
    if not _is_complete(reply.finish_reason):
        raise ModelError("the answer was cut by max_tokens: raise model_settings.max_tokens")
    raise ModelError(f"the answer still does not follow the protocol: {reply.unusable.reason}")


class JsonProtocol:
    """A client that sends tools as text: the model calls a tool or answers with one JSON object per reply."""

    def __init__(self, client: ModelClient) -> None:
        self._client = client

    @property
    def info(self) -> ModelInfo:
        """The wrapped model's info; the protocol adds tools, one call per turn, and typed answers."""
        info = self._client.info
        capabilities = info.capabilities.model_copy(update={"tools": True})
        return replace(info, typed=True, single_call=True, describes_json=True, capabilities=capabilities)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        """Send the request and yield the reply, with `ModelReply.unusable` set if it is invalid; raise ModelError."""
        instructions = (
            typed_rules(request.output)
            if request.output
            else protocol_rules(_offered(request), must_act=_must_act(request), answer=request.json)
        )
        settings = request.settings.model_copy(update={"tool_choice": None})
        messages = to_text_messages(request.messages, instructions)
        schema = request.output.model_json_schema() if request.output else self._reply_schema(request)
        text_request = ModelRequest(
            messages,
            settings=settings,
            stream=request.stream,
            json=schema,
            media=request.media,
            scratch=request.scratch,
        )
        async for delta in self._client.stream(text_request):
            if delta.reply is None:
                yield Delta(reasoning=delta.reasoning)
                continue
            if not has_visible_text(delta.reply.message.content):
                require_content(delta.reply, self._client.info)
            reply = _to_reply(delta.reply, request, self._client.info.provider)
            if request.stream and reply.unusable is None and reply.message.content:
                yield Delta(text=reply.message.content)
            yield Delta(reply=reply)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    def _reply_schema(self, request: ModelRequest) -> dict[str, Any]:
        """Return the JSON Schema of a reply for a server that enforces any, and `{}` for others.

        Large providers reject alternatives at the top level of a schema.
        """
        if not self._client.info.any_schema:
            return {}
        return reply_schema(_offered(request), must_act=_must_act(request), answer=request.json)


def _offered(request: ModelRequest) -> tuple[ToolDefinition, ...]:
    return () if request.settings.tool_choice == "none" else request.tools


def _must_act(request: ModelRequest) -> bool:
    return request.settings.tool_choice not in (None, "auto", "none")


def _to_reply(reply: ModelReply, request: ModelRequest, provider: str) -> ModelReply:
    """Return the reply with the model's text parsed as a tool call, a final answer, or neither."""
    match _parse(reply, request):
        case Unusable() as unusable:
            message = Message(role="assistant", content=fix_surrogates(reply.message.content))
            return replace(reply, message=message, unusable=replace(unusable, near=fix_surrogates(unusable.near)))
        case ToolAction(tool=tool, args=args):
            finish: FinishReason = "tool_calls"
            message = Message(role="assistant", tool_calls=(ToolCall(id="", tool=tool, arguments=args),))
        case FinalAnswer(answer=answer):
            finish, message = "stop", Message(role="assistant", content=answer)
    reasoning = reply.message.reasoning or _reasoning(reply.message.content, provider)
    return replace(reply, message=message.model_copy(update={"reasoning": reasoning}), finish_reason=finish)


def _reasoning(text: str, provider: str) -> Reasoning | None:
    reasoning, _ = split_thoughts(text)
    return Reasoning(text=fix_surrogates(reasoning), provider=provider) if reasoning else None


def _parse(reply: ModelReply, request: ModelRequest) -> ToolAction | FinalAnswer | Unusable:
    if not _is_complete(reply.finish_reason):
        return Unusable("it was cut off")
    if reply.message.tool_calls:
        return Unusable("it calls a function in another format")
    if request.output is not None:
        return _parse_typed(reply.message.content, request.output)
    answer = parse_answer(reply.message.content, as_object=request.json is not None)
    if isinstance(answer, ToolAction) and not _offered(request):
        return Unusable('no tool can be called now: answer with a "final"')
    if isinstance(answer, FinalAnswer) and _must_act(request):
        return Unusable('a tool must be called now: answer with an "action"')
    if isinstance(answer, FinalAnswer) and not has_visible_text(answer.answer):
        return Unusable('"answer" is empty: write the answer to the user, or call a tool with an "action"')
    return answer


def _parse_typed(text: str, output: type[BaseModel]) -> FinalAnswer | Unusable:
    value = parse_object(text)
    if isinstance(value, Unusable):
        return value
    body = json.dumps(value, ensure_ascii=False)
    try:
        output.model_validate_json(body)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False, include_context=False)[:_MAX_ERRORS]
        return Unusable(
            "; ".join(f"{'.'.join(map(str, detail['loc'])) or 'it'}: {detail['msg']}" for detail in details)
        )
    return FinalAnswer(body)


def _is_complete(finish_reason: FinishReason) -> bool:
    return finish_reason in ("stop", "tool_calls")


def _describe(unusable: Unusable) -> str:
    return f"{unusable.reason}, near {unusable.near!r}" if unusable.near else unusable.reason
