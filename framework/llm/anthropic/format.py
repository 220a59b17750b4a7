"""Our messages in the form of Anthropic's Messages API, and back. Pure: no I/O, no SDK."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any

from framework.llm.capabilities import THINKING_TOKENS, Capabilities
from framework.llm.client import ModelInfo, ModelReply, ModelRequest
from framework.llm.openai_format import parse_call, to_wire_name, token_count, wire_names
from framework.types.messages import REFUSED_STATUSES, Message, Reasoning, ToolCall, ToolDefinition, Usage
from framework.types.spec import ModelSettings
from framework.types.text import fix_surrogates

_DEFAULT_MAX_TOKENS = 4096
"""Longest answer where the settings say nothing: this API must be told."""
_SAMPLING_VERSION = "2023-06-01"
"""The last version of the API that knows `temperature` and `top_p`."""
_THINKING_BLOCKS = ("thinking", "redacted_thinking")
_CACHE = {"type": "ephemeral"}
_EFFORT = {"minimal": "low", "low": "low", "medium": "medium", "high": "high"}
ANSWER_TOOL = "agentsd.answer"
"""Name of the tool that takes a typed answer: the API enforces a schema only for the arguments of a tool."""
_ANSWER_DESCRIPTION = "Give your final answer: call this, and nothing else, once you have all you need."
_NOTHING = "(empty)"
"""Stands for an empty text, which the API refuses."""

_Block = dict[str, Any]


def request_to_body(request: ModelRequest, info: ModelInfo) -> dict[str, Any]:
    """The arguments of `messages.create`."""
    system, tools = _system(request.messages), _tools(request.tools)
    names, settings, can = wire_names(request.tools), request.settings, info.capabilities
    choice = can.tool_choice(settings.tool_choice) if tools else "auto"
    mark = thinking_stamp(info.model, system, tools)
    last_user = max((place for place, message in enumerate(request.messages) if message.role == "user"), default=-1)

    def thinks(place: int, data: Mapping[str, Any]) -> bool:
        """Thinking goes back only while its tool turns last: what is older was made for another conversation."""
        return place > last_user and data.get("stamp") == mark

    turns = to_turns(request.messages, names, thinks)
    if tools or any(turn["role"] == "assistant" for turn in turns):  # it goes on: a lone question is not asked again
        _mark_end(turns, request.messages)
    body: dict[str, Any] = {
        "model": info.model,
        "max_tokens": _max_tokens(settings, can),
        "messages": turns,
        **_thinking(settings, can, forced=choice not in ("auto", "none"), open_loop=_unthought_calls(turns)),
    }
    if system:
        body["system"] = system
    if tools:
        body |= {"tools": tools, "tool_choice": _tool_choice(choice, names)}
    if settings.stop:
        body["stop_sequences"] = list(settings.stop)
    sampling = {"temperature": settings.temperature, "top_p": settings.top_p}
    sampling = {key: value for key, value in sampling.items() if value is not None}
    if sampling and body.get("thinking", {}).get("type") not in ("adaptive", "enabled"):  # which sample by themselves
        body |= {"extra_body": sampling, "extra_headers": {"anthropic-version": _SAMPLING_VERSION}}
    return body


def thinking_stamp(model: str, system: Sequence[_Block], tools: Sequence[_Block]) -> str:
    """Names what thinking is bound to: put behind anything else, models refuse their own."""
    told = json.dumps([model, system, tools], sort_keys=True)
    return blake2b(told.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()


def content_to_message(content: Iterable[Mapping[str, Any]], names: Mapping[str, str], *, mark: str) -> Message:
    """The blocks of an answer as a message. Thinking is kept as it is, with its place among the other blocks."""
    texts: list[str] = []
    calls: list[ToolCall] = []
    thoughts: list[str] = []
    outline: list[_Block | str] = []
    for block in content:
        match block.get("type"):
            case "text":
                texts.append(str(block.get("text") or ""))
                outline.append("text")
            case "tool_use":
                name = fix_surrogates(str(block.get("name") or ""))
                calls.append(
                    parse_call(fix_surrogates(str(block.get("id") or "")), names.get(name, name), block.get("input"))
                )
                outline.append("call")
            case "thinking" | "redacted_thinking":
                thoughts.append(str(block.get("thinking") or ""))
                outline.append(
                    {key: fix_surrogates(part) if isinstance(part, str) else part for key, part in block.items()}
                )
    reasoning = None
    if thoughts:
        data = {"stamp": mark, "outline": outline}
        reasoning = Reasoning(text=fix_surrogates("\n".join(filter(None, thoughts))), provider="anthropic", data=data)
    return Message(
        role="assistant", content=fix_surrogates("".join(texts)), tool_calls=tuple(calls), reasoning=reasoning
    )


def parse_usage(usage: Mapping[str, Any]) -> Usage:
    """Token counts; the API counts cached input apart from the other."""
    read, kept = (
        token_count(usage.get("cache_read_input_tokens")),
        token_count(usage.get("cache_creation_input_tokens")),
    )
    prompt, written = token_count(usage.get("input_tokens")) + read + kept, token_count(usage.get("output_tokens"))
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=written,
        total_tokens=prompt + written,
        cached_tokens=read,
        cache_write_tokens=kept,
    )


def _system(messages: Sequence[Message]) -> list[_Block]:
    """What the conversation begins with, marked to be cached: with the tools before it, it is the same every time."""
    text = "\n\n".join(message.content for message in messages[: _leading(messages)] if message.content.strip())
    return [{"type": "text", "text": text, "cache_control": _CACHE}] if text else []


def _leading(messages: Sequence[Message]) -> int:
    return next((place for place, message in enumerate(messages) if message.role != "system"), len(messages))


def _tools(definitions: Sequence[ToolDefinition]) -> list[_Block]:
    tools: list[_Block] = [
        {"name": tool.wire_name, "description": tool.description, "input_schema": {"type": "object", **tool.parameters}}
        for tool in definitions
    ]
    if tools:
        tools[-1]["cache_control"] = _CACHE
    return tools


def _mark_end(turns: Sequence[_Block], messages: Sequence[Message]) -> None:
    """Mark the conversation to be cached, up to what will stand there the next time, too: not the last instructions.

    The API refuses a mark on what is empty.
    """
    kept = list(messages)
    while kept and kept[-1].role == "system":
        kept.pop()
    if kept and kept[-1].role in ("user", "tool") and kept[-1].content.strip():
        turns[-1]["content"][len(kept) - len(messages) - 1]["cache_control"] = _CACHE


def to_turns(
    messages: Sequence[Message], names: Mapping[str, str], thinks: Callable[[int, Mapping[str, Any]], bool]
) -> list[_Block]:
    """The conversation with one turn for neighbours of one role; instructions in its midst are the user's.

    Args:
        messages: all of them; those of the system that it begins with are left out.
        names: tool -> name on the wire.
        thinks: of a message by its place, and what Anthropic's model thought before it: does that go along?
    """
    turns: list[_Block] = []
    for place, message in enumerate(messages[_leading(messages) :], _leading(messages)):
        if message.role == "assistant":
            blocks = _assistant(message, names, partial(thinks, place))
        elif message.role == "tool":
            result = {"type": "tool_result", "tool_use_id": _call_id(message.tool_call_id or "")}
            failed = {"is_error": True} if message.status in ("error", *REFUSED_STATUSES) else {}
            blocks = [{**result, "content": message.content, **failed}]
        else:
            blocks = [{"type": "text", "text": message.content if message.content.strip() else _NOTHING}]
        role = "assistant" if message.role == "assistant" else "user"
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return turns


def _assistant(message: Message, names: Mapping[str, str], thinks: Callable[[Mapping[str, Any]], bool]) -> list[_Block]:
    texts: list[_Block] = [{"type": "text", "text": message.content}] if message.content.strip() else []
    calls: list[_Block] = [
        {
            "type": "tool_use",
            "id": _call_id(call.id),
            "name": to_wire_name(call.tool, names),
            "input": call.arguments,
        }
        for call in message.tool_calls
    ]
    data = message.reasoning.data if message.reasoning and message.reasoning.provider == "anthropic" else None
    if not calls or not data or not thinks(data):
        return texts + calls
    blocks: list[_Block] = []
    for part in data["outline"]:
        if isinstance(part, dict):
            blocks.append(part)
        elif waiting := texts if part == "text" else calls:
            blocks.append(waiting.pop(0))
    return blocks + texts + calls


def _unthought_calls(turns: Sequence[_Block]) -> bool:
    """Is a tool turn going on that did not begin with thinking? Then there is none with a budget."""
    for turn in reversed(turns):
        if turn["role"] == "assistant":
            called = any(block["type"] == "tool_use" for block in turn["content"])
            return called and turn["content"][0]["type"] not in _THINKING_BLOCKS
        if not any(block["type"] == "tool_result" for block in turn["content"]):
            return False
    return False


def _tool_choice(choice: str, names: Mapping[str, str]) -> _Block:
    match choice:
        case "auto" | "none":
            return {"type": choice}
        case "required":
            return {"type": "any"}
        case tool:
            return {"type": "tool", "name": to_wire_name(tool, names)}


def _max_tokens(settings: ModelSettings, can: Capabilities) -> int:
    if settings.max_tokens:
        return settings.max_tokens
    thinking = THINKING_TOKENS[settings.reasoning] if settings.reasoning and can.thinking != "none" else 0
    return min(_DEFAULT_MAX_TOKENS + thinking, can.max_output or _DEFAULT_MAX_TOKENS + thinking)


def _thinking(settings: ModelSettings, can: Capabilities, *, forced: bool, open_loop: bool) -> dict[str, Any]:
    """How long to think; a model that must call a tool may not think."""
    effort = settings.reasoning
    if can.thinking == "adaptive_thinking" and forced:
        return {"thinking": {"type": "disabled"}}
    if effort is None or can.thinking == "none" or forced:
        return {}
    if can.thinking != "thinking_budget":
        thinking = {"type": "adaptive", "display": "summarized"}
        return {"thinking": thinking, "output_config": {"effort": _EFFORT[effort]}}
    least = THINKING_TOKENS["minimal"]
    budget = min(THINKING_TOKENS[effort], _max_tokens(settings, can) - least)
    return {} if open_loop or budget < least else {"thinking": {"type": "enabled", "budget_tokens": budget}}


def _call_id(call_id: str) -> str:
    """Ids of other providers may hold what this one refuses."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", call_id) or "unknown"


# --- typed answers as the arguments of a tool


def with_answer_tool(request: ModelRequest) -> ModelRequest:
    """Return the request with one more tool that takes the answer, where it asks for an answer of a schema.

    The model must call it only if there is no other tool and it is not asked to think, which excludes a forced choice.
    """
    settings = request.settings
    if not request.json or not request.json_by_tool or settings.tool_choice == "none":
        return request
    answer = ToolDefinition(name=ANSWER_TOOL, description=_ANSWER_DESCRIPTION, parameters=dict(request.json))
    if not request.tools:
        forced = ANSWER_TOOL if settings.reasoning is None else None
        settings = settings.model_copy(update={"tool_choice": forced})
    return replace(request, tools=(*request.tools, answer), settings=settings)


def without_answer_tool(reply: ModelReply) -> ModelReply:
    """Return the reply with the arguments of the answer tool as its text; beside calls of other tools it is dropped."""
    message = reply.message
    others = tuple(call for call in message.tool_calls if call.tool != ANSWER_TOOL)
    if len(others) == len(message.tool_calls):
        return reply
    answers = [call for call in message.tool_calls if call.tool == ANSWER_TOOL and not call.invalid]
    # What the provider keeps of its thinking names the calls that are gone.
    reasoning = message.reasoning.model_copy(update={"data": None}) if message.reasoning else None
    changed = {"tool_calls": others, "reasoning": reasoning}
    if others or not answers:
        return replace(reply, message=message.model_copy(update=changed))
    text = json.dumps(answers[0].arguments, ensure_ascii=False)
    return replace(reply, message=message.model_copy(update={**changed, "content": text}), finish_reason="stop")
