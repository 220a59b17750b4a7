"""The three API formats: the same answer in each, built from the SDKs' own types."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from anthropic import types as claude
from google.genai import types as gemini

from framework.llm.anthropic.client import AnthropicModel
from framework.llm.gemini.client import GeminiModel
from framework.llm.openai.client import OpenAIModel
from tests.support import wire
from tests.support.wire import Answer

KEY = "sk-very-secret-4711"
SIGNATURE = base64.b64encode(b"signed by the provider").decode()
Model = OpenAIModel | AnthropicModel | GeminiModel
Calls = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """A provider-independent answer."""

    text: str = ""
    calls: Calls = ()
    """Wire names and arguments; the ids are `call_1`, `call_2`, …"""
    thought: str = ""
    end: str = "stop"
    """`stop`, `length`, `refused`, or a value that no provider uses."""
    usage: tuple[int, int, int] = (10, 5, 0)
    """Input tokens, output tokens, and cached input tokens."""


@dataclass(frozen=True, slots=True)
class Format:
    """One provider's format."""

    name: str
    sdk: str
    """The module that the first request loads."""
    model: Callable[..., Model]
    """Creates a client for a server's URL with `/v1`."""
    answer: Callable[[ScriptedReply], Answer]
    failed: Callable[..., Answer]
    """Creates an error response with a status and message."""
    error_event: Callable[[str, bool], str]
    """Creates an error event with a message, retryable or not."""
    returned: Callable[[dict[str, Any]], object]
    """Returns the thinking in a request's body."""


def words(text: str) -> list[str]:
    """Split a text into pieces."""
    return [word if place == 0 else f" {word}" for place, word in enumerate(text.split(" ")) if text]


# --- OpenAI


def _openai(url: str, model: str = "m", **options: Any) -> Model:
    return OpenAIModel("openai", model, base_url=url, **{"api_key": KEY, **options})


def _openai_answer(reply: ScriptedReply) -> Answer:
    completion = wire.calls(*reply.calls).completion
    assert completion is not None
    message = {
        **completion.choices[0].message.to_dict(),
        "content": reply.text or None,
        "reasoning_content": reply.thought,
    }
    ends = {"refused": "content_filter", "stop": "tool_calls" if reply.calls else "stop"}
    whole = wire.whole_completion(message, ends.get(reply.end, reply.end), reply.usage)
    streamed = wire.chunks(Answer(completion=whole), {"stream_options": {"include_usage": True}})
    return Answer(body=whole.to_json(indent=None, warnings=False).encode(), streamed=tuple(streamed))


def _openai_error_event(message: str, passing: bool) -> str:
    return json.dumps({"error": {"message": message, "code": 503 if passing else 400}})


def _openai_returned(body: dict[str, Any]) -> object:
    return next(message.get("reasoning_content") for message in body["messages"] if message.get("tool_calls"))


# --- Anthropic


def _anthropic(url: str, model: str = "m", **options: Any) -> Model:
    return AnthropicModel(model, base_url=url, **{"api_key": KEY, **options})


_CLAUDE_ENDS = {"stop": "end_turn", "length": "max_tokens", "refused": "refusal"}


def _anthropic_answer(reply: ScriptedReply) -> Answer:
    blocks: list[Any] = []
    if reply.thought:
        blocks.append(claude.ThinkingBlock(type="thinking", thinking=reply.thought, signature=SIGNATURE))
    if reply.text:
        blocks.append(claude.TextBlock(type="text", text=reply.text))
    for place, (name, given) in enumerate(reply.calls, 1):
        blocks.append(claude.ToolUseBlock.construct(type="tool_use", id=f"call_{place}", name=name, input=given))
    read, written, cached = reply.usage
    usage = claude.Usage(input_tokens=read - cached, output_tokens=written, cache_read_input_tokens=cached)
    end = "tool_use" if reply.calls and reply.end == "stop" else _CLAUDE_ENDS.get(reply.end, reply.end)
    message = claude.Message.construct(
        id="msg-1", type="message", role="assistant", model="wire-model", content=blocks, stop_reason=end, usage=usage
    )
    return Answer(
        body=message.to_json(indent=None, warnings=False).encode(), streamed=tuple(_anthropic_events(message))
    )


def _anthropic_events(message: claude.Message) -> Iterator[str]:
    usage = message.usage
    begun = {**message.to_dict(warnings=False), "content": [], "stop_reason": None}
    yield _event("message_start", message={**begun, "usage": {**usage.to_dict(), "output_tokens": 1}})
    yield _event("ping")
    for place, block in enumerate(message.content):
        yield from (_event(kind, index=place, **rest) for kind, rest in _anthropic_block(block))
    change = claude.raw_message_delta_event.Delta.construct(stop_reason=message.stop_reason)
    counted = claude.MessageDeltaUsage(output_tokens=usage.output_tokens)
    yield _event("message_delta", delta=change.to_dict(warnings=False), usage=counted.to_dict())
    yield _event("message_stop")


def _anthropic_block(block: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the events of a block: its start, its pieces, its end."""
    pieces: list[dict[str, Any]] = []
    begun: dict[str, Any]
    match block.type:
        case "text":
            begun = {"type": "text", "text": ""}
            pieces += [claude.TextDelta(type="text_delta", text=word).to_dict() for word in words(block.text)]
        case "thinking":
            begun = {"type": "thinking", "thinking": "", "signature": ""}
            thoughts = [claude.ThinkingDelta(type="thinking_delta", thinking=word) for word in words(block.thinking)]
            signed = claude.SignatureDelta(type="signature_delta", signature=block.signature)
            pieces += [*(thought.to_dict() for thought in thoughts), signed.to_dict()]
        case _:
            begun = {"type": "tool_use", "id": block.id, "name": block.name, "input": {}}
            text = block.input if isinstance(block.input, str) else json.dumps(block.input)
            halves = ("", text[: len(text) // 2], text[len(text) // 2 :])
            pieces += [claude.InputJSONDelta(type="input_json_delta", partial_json=half).to_dict() for half in halves]
    yield "content_block_start", {"content_block": begun}
    yield from (("content_block_delta", {"delta": piece}) for piece in pieces)
    yield "content_block_stop", {}


def _event(kind: str, **data: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}"


def _anthropic_failed(status: int, message: str, **headers: str) -> Answer:
    error = {"type": "error", "error": {"type": "api_error", "message": message}}
    return wire.raw(status, json.dumps(error).encode(), **headers)


def _anthropic_error_event(message: str, passing: bool) -> str:
    kind = "overloaded_error" if passing else "invalid_request_error"
    return _event("error", error={"type": kind, "message": message})


def _anthropic_returned(body: dict[str, Any]) -> object:
    blocks = next(turn["content"] for turn in body["messages"] if turn["role"] == "assistant")
    return next((block for block in blocks if block["type"] == "thinking"), None)


# --- Gemini


def _gemini(url: str, model: str = "m", **options: Any) -> Model:
    return GeminiModel(model, base_url=url, **{"api_key": KEY, **options})


_GEMINI_ENDS = {"stop": "STOP", "length": "MAX_TOKENS", "refused": "SAFETY"}


def _gemini_answer(reply: ScriptedReply) -> Answer:
    signature = base64.b64decode(SIGNATURE) if reply.thought else None
    parts = [gemini.Part(text=word, thought=True) for word in words(reply.thought)]
    parts += [gemini.Part(text=word) for word in words(reply.text)]
    for place, (name, given) in enumerate(reply.calls, 1):
        call = gemini.FunctionCall(id=f"call_{place}", name=name, args=given)
        parts.append(gemini.Part(function_call=call, thought_signature=signature if place == 1 else None))
    read, written, cached = reply.usage
    usage = gemini.GenerateContentResponseUsageMetadata(
        prompt_token_count=read,
        candidates_token_count=written - 2,
        thoughts_token_count=2,
        cached_content_token_count=cached,
        total_token_count=read + written,
    )
    end = _GEMINI_ENDS.get(reply.end, reply.end)
    last = {"usageMetadata": usage.model_dump(by_alias=True, exclude_none=True)}
    chunks = [_gemini_response([part], None) for part in parts]
    chunks.append({**_gemini_response([gemini.Part(text="")], end), **last})
    whole = {**_gemini_response(parts, end), **last}
    return Answer(body=json.dumps(whole).encode(), streamed=tuple(json.dumps(chunk) for chunk in chunks))


def _gemini_response(parts: list[gemini.Part], end: str | None) -> dict[str, Any]:
    candidate = gemini.Candidate(index=0, content=gemini.Content(role="model", parts=parts))
    response = gemini.GenerateContentResponse(
        candidates=[candidate], model_version="wire-model", response_id="response-1"
    )
    body: dict[str, Any] = json.loads(response.model_dump_json(by_alias=True, exclude_none=True))
    if end:
        body["candidates"][0]["finishReason"] = end
    return body


def _gemini_error(status: int, message: str) -> dict[str, Any]:
    return {"error": {"code": status, "message": message, "status": "SOME_STATUS"}}


def _gemini_failed(status: int, message: str, **headers: str) -> Answer:
    return wire.raw(status, json.dumps(_gemini_error(status, message)).encode(), **headers)


def _gemini_error_event(message: str, passing: bool) -> str:
    return json.dumps(_gemini_error(503 if passing else 400, message))


def _gemini_returned(body: dict[str, Any]) -> object:
    parts = next(turn["parts"] for turn in body["contents"] if turn["role"] == "model")
    return next((part.get("thoughtSignature") for part in parts if "functionCall" in part), None)


OPENAI = Format("openai", "openai", _openai, _openai_answer, wire.failed, _openai_error_event, _openai_returned)
ANTHROPIC = Format(
    "anthropic",
    "anthropic",
    _anthropic,
    _anthropic_answer,
    _anthropic_failed,
    _anthropic_error_event,
    _anthropic_returned,
)
GEMINI = Format(
    "gemini", "google.genai", _gemini, _gemini_answer, _gemini_failed, _gemini_error_event, _gemini_returned
)
FORMATS = (OPENAI, ANTHROPIC, GEMINI)
each_format = pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
each_way = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def says(form: Format, text: str = "", **rest: Any) -> Answer:
    """Return an answer in a format."""
    return form.answer(ScriptedReply(text, **rest))


def begun(form: Format, *more: str, ending: wire.Ending = "clean") -> Answer:
    """Return a stream of `par`, `tial` and then `more`."""
    events = [event for event in says(form, "par tial").streamed if '"par"' in event or 'tial"' in event]
    first = [event for event in says(form, "par tial").streamed[:3] if "_start" in event]
    return replace(says(form, "x"), streamed=(), events=(*first, *events, *more), ending=ending, body=b"")
