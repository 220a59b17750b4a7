"""Tools and typed answers for models that know only text: a client around any other client.

Nothing of an answer is shown before all of it is read: a text that begins well may end as one that is refused, so there
are no deltas but one, the whole final answer.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError

from framework.llm.client import Delta, FinishReason, ModelClient, ModelInfo, ModelReply, ModelRequest, Unusable
from framework.llm.json_protocol.prompt import protocol_rules, rejection, to_text_messages, typed_rules
from framework.llm.json_protocol.reply import FinalAnswer, ToolAction, answer_schema, parse_answer, parse_object
from framework.llm.reply_check import require_content, split_reasoning
from framework.types.errors import ModelError
from framework.types.messages import Message, Reasoning, ToolCall, ToolDefinition
from framework.types.spec import Protocol
from framework.types.text import fix_surrogates

Ask = Callable[[ModelRequest], Awaitable[ModelReply]]
_MAX_ERRORS = 5


def with_protocol(client: ModelClient, protocol: Protocol) -> ModelClient:
    """The client as an agent wants to speak with it; `auto` is text for models known to have no function calls.

    A stand-in answers in our own types, and needs no protocol.
    """
    info = client.info
    wanted = protocol == "json" or (protocol == "auto" and info.capabilities.tools is False)
    return JsonProtocol(client) if wanted and not info.stand_in else client


async def request_valid_reply(ask: Ask, request: ModelRequest) -> ModelReply:
    """Ask, and if the answer cannot be used, once more with what is wrong with it.

    Raises:
        ModelError: it was cut off, or the second one cannot be used either. Whatever `ask` raises comes out unchanged.
    """
    reply = await ask(request)
    if reply.unusable is None:
        return reply
    if _is_whole(reply.finish_reason):
        told = rejection(reply.message.content, _quoting(reply.unusable))
        reply = await ask(replace(request, messages=(*request.messages, told)))
    if reply.unusable is None:
        return reply
    if not _is_whole(reply.finish_reason):
        raise ModelError("the answer was cut by max_tokens: raise model_settings.max_tokens")
    raise ModelError(f"the answer still does not follow the protocol: {reply.unusable.reason}")


class JsonProtocol:
    """Speaks with a model in text: it acts and answers by one JSON object at a time."""

    def __init__(self, client: ModelClient) -> None:
        self._client = client

    @property
    def info(self) -> ModelInfo:
        """The model's own; tools and typed answers come with the protocol."""
        info = self._client.info
        return replace(info, typed=True, capabilities=info.capabilities.model_copy(update={"tools": True}))

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        """Ask; an answer that cannot be used comes back as `ModelReply.unusable`. Raises ModelError."""
        told = (
            typed_rules(request.output)
            if request.output
            else protocol_rules(_offered(request), must_act=_must_act(request))
        )
        settings = request.settings.model_copy(update={"tool_choice": None})
        messages = to_text_messages(request.messages, told)
        schema = request.output.model_json_schema() if request.output else self._grammar(request)
        in_text = ModelRequest(messages, settings=settings, stream=request.stream, json=schema)
        async for delta in self._client.stream(in_text):
            if delta.reply is None:
                yield Delta(reasoning=delta.reasoning)
                continue
            require_content(delta.reply, self._client.info)
            reply = _read(delta.reply, request, self._client.info.provider)
            if request.stream and reply.unusable is None and reply.message.content:
                yield Delta(text=reply.message.content)
            yield Delta(reply=reply)

    async def close(self) -> None:
        """Give connections back."""
        await self._client.close()

    def _grammar(self, request: ModelRequest) -> dict[str, Any]:
        """The protocol as a schema, for a server of one's own that holds a model to one; `{}` elsewhere.

        Large providers take no alternatives at the top of a schema.
        """
        info = self._client.info
        if not info.capabilities.json_schema or info.server_address is None:
            return {}
        return answer_schema([tool.name for tool in _offered(request)], must_act=_must_act(request))


def _offered(request: ModelRequest) -> tuple[ToolDefinition, ...]:
    return () if request.settings.tool_choice == "none" else request.tools


def _must_act(request: ModelRequest) -> bool:
    return request.settings.tool_choice not in (None, "auto", "none")


def _read(reply: ModelReply, request: ModelRequest, provider: str) -> ModelReply:
    """The model's text as a reply of calls, of an answer, or of neither."""
    match _judged(reply, request):
        case Unusable() as unusable:
            message = Message(role="assistant", content=fix_surrogates(reply.message.content))
            return replace(reply, message=message, unusable=replace(unusable, near=fix_surrogates(unusable.near)))
        case ToolAction(tool=tool, args=args):
            finish: FinishReason = "tool_calls"
            message = Message(role="assistant", tool_calls=(ToolCall(id="", tool=tool, arguments=args),))
        case FinalAnswer(answer=answer):
            finish, message = "stop", Message(role="assistant", content=answer)
    reasoning = reply.message.reasoning or _thought(reply.message.content, provider)
    return replace(reply, message=message.model_copy(update={"reasoning": reasoning}), finish_reason=finish)


def _thought(text: str, provider: str) -> Reasoning | None:
    thought, _ = split_reasoning(text)
    return Reasoning(text=fix_surrogates(thought), provider=provider) if thought else None


def _judged(reply: ModelReply, request: ModelRequest) -> ToolAction | FinalAnswer | Unusable:
    if not _is_whole(reply.finish_reason):
        return Unusable("it was cut off before its end")
    if reply.message.tool_calls:
        return Unusable("it calls a function in a form of its own")
    if request.output is not None:
        return _typed(reply.message.content, request.output)
    answer = parse_answer(reply.message.content)
    if isinstance(answer, ToolAction) and not _offered(request):
        return Unusable('there is no tool to call now: answer with a "final"')
    if isinstance(answer, FinalAnswer) and _must_act(request):
        return Unusable('a tool must be called now: answer with an "action"')
    return answer


def _typed(text: str, output: type[BaseModel]) -> FinalAnswer | Unusable:
    value = parse_object(text)
    if isinstance(value, Unusable):
        return value
    body = json.dumps(value, ensure_ascii=False)
    try:
        output.model_validate_json(body)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)[:_MAX_ERRORS]
        return Unusable("; ".join(": ".join((".".join(map(str, one["loc"])) or "it", one["msg"])) for one in found))
    return FinalAnswer(body)


def _is_whole(finish_reason: FinishReason) -> bool:
    return finish_reason in ("stop", "tool_calls")


def _quoting(unusable: Unusable) -> str:
    return f"{unusable.reason}, near {unusable.near!r}" if unusable.near else unusable.reason
