"""Our messages in the form of Gemini's `generateContent`, and back. Pure: no I/O, no SDK."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from framework.llm.capabilities import THINKING_TOKENS, Capabilities
from framework.llm.client import Delta, ModelInfo, ModelRequest
from framework.llm.gemini.schema import gemini_parameters
from framework.llm.openai_format import parse_call, to_wire_name, token_count, wire_names
from framework.llm.reply_check import FinishReasons, merge_finish_reason
from framework.types.messages import Message, Reasoning, ToolCall, ToolDefinition, Usage
from framework.types.spec import ModelSettings
from framework.types.text import fix_surrogates

FOREIGN_SIGNATURE = b"skip_thought_signature_validator"
"""Stands for the signature of calls that another model made: without any, models that think refuse them."""

_Part = dict[str, Any]


def request_to_arguments(request: ModelRequest, info: ModelInfo) -> dict[str, Any]:
    """The arguments of `generate_content`."""
    names, settings = wire_names(request.tools), request.settings
    leading = next((place for place, m in enumerate(request.messages) if m.role != "system"), len(request.messages))
    system = "\n\n".join(message.content for message in request.messages[:leading] if message.content.strip())
    config: dict[str, Any] = {
        "system_instruction": system or None,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_output_tokens": settings.max_tokens,
        "stop_sequences": list(settings.stop) or None,
        "seed": settings.seed,
        "thinking_config": _thinking(settings, info.capabilities),
        "automatic_function_calling": {"disable": True},
        # The SDK would ask again by itself, past our budget.
        "automatic_continuation": False,
    }
    if request.tools:
        config["tools"] = [{"function_declarations": [_declaration(tool) for tool in request.tools]}]
        choice = _tool_choice(info.capabilities.tool_choice(settings.tool_choice), names)
        config["tool_config"] = {"function_calling_config": choice}
    elif request.json is not None and info.capabilities.json_schema:  # it takes either tools or a form
        config |= {"response_mime_type": "application/json", "response_json_schema": dict(request.json) or None}
    contents = to_contents(request.messages[leading:], names, info.capabilities)
    given = {key: value for key, value in config.items() if value is not None}
    return {"model": info.model, "contents": contents, "config": given}


class ResponseAssembler:
    """An answer under way: takes responses, gives deltas."""

    def __init__(self, endings: FinishReasons) -> None:
        self._endings = endings
        self.pieces = 0
        self.finish_reason = self.model = self.response_id = self.blocked = ""
        self.usage = Usage()
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[Any] = []
        self._signatures: dict[str, Any] = {"text": None, "calls": []}

    def take(self, response: Any) -> Delta | None:
        """Add a response, or a part of a streamed one; gives what of it can be shown, be it nothing."""
        self.pieces += 1
        self.model = str(response.model_version or self.model)
        self.response_id = str(response.response_id or self.response_id)
        if response.usage_metadata is not None:
            self.usage = _usage(response.usage_metadata)
        feedback = response.prompt_feedback
        if feedback is not None and feedback.block_reason:
            self.blocked = str(feedback.block_reason_message or feedback.block_reason.value)
        if not response.candidates:
            return None
        candidate = response.candidates[0]
        if candidate.finish_reason:
            self.finish_reason = merge_finish_reason(self.finish_reason, candidate.finish_reason.value, self._endings)
        parts = candidate.content.parts if candidate.content else None
        deltas = [self.take_part(part) for part in parts or ()]
        text, reasoning = "".join(d.text for d in deltas), "".join(d.reasoning for d in deltas)
        return Delta(text=text, reasoning=reasoning) if deltas else None

    def message(self, names: Mapping[str, str]) -> Message:
        """What has come so far; `names` maps names on the wire to tools."""
        reasoning = None
        if self._thoughts or self._signatures["text"] or any(self._signatures["calls"]):
            text = fix_surrogates("".join(self._thoughts))
            reasoning = Reasoning(text=text, provider="gemini", data=self._signatures)
        calls = tuple(_call(call, names) for call in self._calls)
        return Message(
            role="assistant", content=fix_surrogates("".join(self._texts)), tool_calls=calls, reasoning=reasoning
        )

    def take_part(self, part: Any) -> Delta:
        """Add one part; gives what of it can be shown."""
        signature = b64encode(part.thought_signature).decode() if part.thought_signature else None
        if part.function_call is not None:
            self._calls.append(part.function_call)
            self._signatures["calls"].append(signature)
            return Delta()
        text = part.text or ""
        if part.thought:
            self._thoughts.append(text)
            return Delta(reasoning=fix_surrogates(text))
        self._signatures["text"] = signature or self._signatures["text"]
        self._texts.append(text)
        return Delta(text=fix_surrogates(text))


def _call(call: Any, names: Mapping[str, str]) -> ToolCall:
    name = fix_surrogates(str(call.name or ""))
    return parse_call(fix_surrogates(str(call.id or "")), names.get(name, name), call.args)


def _usage(counted: Any) -> Usage:
    """Token counts; what was thought is counted apart from what was written."""
    prompt = token_count(counted.prompt_token_count) + token_count(counted.tool_use_prompt_token_count)
    written = token_count(counted.candidates_token_count) + token_count(counted.thoughts_token_count)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=written,
        total_tokens=token_count(counted.total_token_count) or prompt + written,
        cached_tokens=token_count(counted.cached_content_token_count),
    )


def _declaration(tool: ToolDefinition) -> dict[str, Any]:
    declaration = {"name": tool.wire_name, "description": tool.description}
    parameters = gemini_parameters(tool.parameters)
    return {**declaration, "parameters_json_schema": parameters} if parameters else declaration


def _tool_choice(choice: str, names: Mapping[str, str]) -> dict[str, Any]:
    match choice:
        case "auto" | "none":
            return {"mode": choice.upper()}
        case "required":
            return {"mode": "ANY"}
        case tool:
            return {"mode": "ANY", "allowed_function_names": [to_wire_name(tool, names)]}


def _thinking(settings: ModelSettings, can: Capabilities) -> dict[str, Any] | None:
    if settings.reasoning is None or can.thinking == "none":
        return None
    if can.thinking == "thinking_budget":
        return {"include_thoughts": True, "thinking_budget": THINKING_TOKENS[settings.reasoning]}
    return {"include_thoughts": True, "thinking_level": settings.reasoning.upper()}


def to_contents(messages: Sequence[Message], names: Mapping[str, str], can: Capabilities) -> list[dict[str, Any]]:
    """The conversation with one turn for neighbours of one role; instructions in its midst are the user's."""
    contents: list[dict[str, Any]] = []
    called: dict[str, str] = {}
    for message in messages:
        if message.role == "assistant":
            called |= {call.id: to_wire_name(call.tool, names) for call in message.tool_calls}
            parts = _model_parts(message, names, can)
        elif message.role == "tool":
            call_id = message.tool_call_id or ""
            answer = {"name": called.get(call_id, "unknown"), "response": {"output": message.content}}
            parts = [{"function_response": {"id": call_id, **answer}}]
        else:
            parts = [{"text": message.content}]
        role = "model" if message.role == "assistant" else "user"
        if contents and contents[-1]["role"] == role:
            contents[-1]["parts"] += parts
        elif parts:
            contents.append({"role": role, "parts": parts})
    return contents


def _model_parts(message: Message, names: Mapping[str, str], can: Capabilities) -> list[_Part]:
    reasoning = message.reasoning
    data = (reasoning.data if reasoning and reasoning.provider == "gemini" else None) or {}
    parts: list[_Part] = []
    if message.content:
        parts.append(_signed({"text": message.content}, data.get("text")))
    signatures = [*data.get("calls", ()), *(None for _ in message.tool_calls)]
    for call, signature in zip(message.tool_calls, signatures, strict=False):
        asked = {"id": call.id, "name": to_wire_name(call.tool, names), "args": call.arguments}
        parts.append(_signed({"function_call": asked}, signature))
    calls = [part for part in parts if "function_call" in part]
    if calls and can.thinking == "thinking_level" and not any("thought_signature" in part for part in calls):
        calls[0]["thought_signature"] = FOREIGN_SIGNATURE
    return parts


def _signed(part: _Part, signature: str | None) -> _Part:
    return {**part, "thought_signature": b64decode(signature)} if signature else part
