"""The API formats: the same answer in each, built from the SDKs' own types."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from anthropic import types as claude
from google.genai import types as gemini
from openai.types import responses as oai
from openai.types.responses.response import IncompleteDetails
from openai.types.responses.response_reasoning_item import Summary
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails, ResponseUsage

from framework.llm.anthropic import AnthropicModel
from framework.llm.gemini import GeminiModel
from framework.llm.openai.client import OpenAIModel
from framework.llm.openai.responses import ResponsesModel
from tests.support import wire
from tests.support.wire import Answer

KEY = "sk-very-secret-4711"
SIGNATURE = base64.b64encode(b"signed by the provider").decode()
Model = OpenAIModel | ResponsesModel | AnthropicModel | GeminiModel
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
    api: str = ""
    """OpenAI's API, if it is not chat completions."""

    @property
    def id(self) -> str:
        """The name of the format; `name` is that of its provider."""
        return self.api or self.name

    @property
    def timeout(self) -> str:
        """The path of the constant with the timeout of its SDK."""
        module = "openai.client" if self.name == "openai" else self.name
        return f"framework.llm.{module}.SDK_TIMEOUT"

    def alias(self, url: str, more: str = "", *, api_key: str = "sk-test-1234567890") -> str:
        """Return an alias in YAML for a model on a server."""
        api = f", api: {self.api}" if self.api else ""
        return f"{{model: {self.name}/test, base_url: '{url}', api_key: {api_key}{api}{more}}}"


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


# --- OpenAI's Responses API


def _responses(url: str, model: str = "m", **options: Any) -> Model:
    return ResponsesModel("openai", model, base_url=url, **{"api_key": KEY, **options})


_RESPONSE_ENDS = {"length": "max_output_tokens", "refused": "content_filter"}


def response_items(reply: ScriptedReply) -> list[Any]:
    """Return the output items of an answer: reasoning, a message, and calls."""
    items: list[Any] = []
    if reply.thought:
        summary = [Summary(type="summary_text", text=reply.thought)]
        items.append(
            oai.ResponseReasoningItem(id="rs_1", type="reasoning", summary=summary, encrypted_content=SIGNATURE)
        )
    if reply.text:
        text = oai.ResponseOutputText(type="output_text", text=reply.text, annotations=[])
        items.append(
            oai.ResponseOutputMessage(id="msg_1", type="message", role="assistant", status="completed", content=[text])
        )
    for place, (name, given) in enumerate(reply.calls, 1):
        arguments = given if isinstance(given, str) else json.dumps(given)
        items.append(
            oai.ResponseFunctionToolCall(
                id=f"fc_{place}", type="function_call", call_id=f"call_{place}", name=name, arguments=arguments
            )
        )
    return items


def whole_response(items: list[Any], end: str = "stop", usage: tuple[int, int, int] = (10, 5, 0)) -> oai.Response:
    """Return a response of these items, without validation."""
    read, written, cached = usage
    reason = _RESPONSE_ENDS.get(end)
    return oai.Response.construct(
        id="resp_1",
        object="response",
        created_at=1.0,
        model="wire-model",
        output=items,
        status="incomplete" if reason else {"stop": "completed"}.get(end, end),
        error=None,
        incomplete_details=IncompleteDetails.construct(reason=reason) if reason else None,
        usage=ResponseUsage(
            input_tokens=read,
            output_tokens=written,
            total_tokens=read + written,
            input_tokens_details=InputTokensDetails(cached_tokens=cached, cache_write_tokens=0),
            output_tokens_details=OutputTokensDetails(reasoning_tokens=2),
        ),
        parallel_tool_calls=True,
        tool_choice="auto",
        tools=[],
    )


def _responses_answer(reply: ScriptedReply) -> Answer:
    response = whole_response(response_items(reply), reply.end, reply.usage)
    return Answer(
        body=response.to_json(indent=None, warnings=False).encode(), streamed=tuple(response_events(response))
    )


def response_events(response: oai.Response) -> Iterator[str]:
    """Generate the events of a streamed response."""
    whole = response.to_dict(warnings=False)
    begun = {**whole, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    number = 0

    def event(kind: str, **data: Any) -> str:
        nonlocal number
        number += 1
        return _event(kind, sequence_number=number, **data)

    yield event("response.created", response=begun)
    yield event("response.in_progress", response=begun)
    for place, item in enumerate(response.output):
        for kind, data in _item_events(item):
            yield event(kind, output_index=place, **data)
    ends = {"incomplete": "incomplete", "failed": "failed"}
    yield event(f"response.{ends.get(str(response.status), 'completed')}", response=whole)


def _item_events(item: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Generate the events of an item: its start, its pieces, its end."""
    whole = item.to_dict(warnings=False)
    match item.type:
        case "message":
            yield "response.output_item.added", {"item": {**whole, "content": [], "status": "in_progress"}}
            for part_place, part in enumerate(item.content):
                place = {"item_id": item.id, "content_index": part_place}
                field = "text" if part.type == "output_text" else "refusal"
                text = getattr(part, field)
                yield "response.content_part.added", {**place, "part": {**part.to_dict(), field: ""}}
                yield from ((f"response.{part.type}.delta", {**place, "delta": word}) for word in words(text))
                yield f"response.{part.type}.done", {**place, field: text}
                yield "response.content_part.done", {**place, "part": part.to_dict()}
        case "reasoning":
            yield "response.output_item.added", {"item": {**whole, "summary": [], "encrypted_content": "begun"}}
            for part_place, part in enumerate(item.summary):
                place = {"item_id": item.id, "summary_index": part_place}
                yield "response.reasoning_summary_part.added", {**place, "part": {**part.to_dict(), "text": ""}}
                kind = "response.reasoning_summary_text"
                yield from ((f"{kind}.delta", {**place, "delta": word}) for word in words(part.text))
                yield f"{kind}.done", {**place, "text": part.text}
        case _:
            yield "response.output_item.added", {"item": {**whole, "arguments": ""}}
            half = len(item.arguments) // 2
            for piece in (item.arguments[:half], item.arguments[half:]):
                yield "response.function_call_arguments.delta", {"item_id": item.id, "delta": piece}
            done = {"item_id": item.id, "name": item.name, "arguments": item.arguments}
            yield "response.function_call_arguments.done", done
    yield "response.output_item.done", {"item": whole}


def _responses_error_event(message: str, passing: bool) -> str:
    event = oai.ResponseErrorEvent(
        type="error", code="server_error" if passing else "invalid_prompt", message=message, sequence_number=9
    )
    return _event("error", **event.to_dict())


def _responses_returned(body: dict[str, Any]) -> object:
    return next((item["encrypted_content"] for item in body["input"] if item.get("type") == "reasoning"), None)


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
    return f"event: {kind}\ndata: {json.dumps({**data, 'type': kind})}"


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
RESPONSES = Format(
    "openai",
    "openai",
    _responses,
    _responses_answer,
    wire.failed,
    _responses_error_event,
    _responses_returned,
    api="responses",
)
FORMATS = (OPENAI, ANTHROPIC, GEMINI, RESPONSES)
each_format = pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.id)
each_way = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def says(form: Format, text: str = "", **rest: Any) -> Answer:
    """Return an answer in a format."""
    return form.answer(ScriptedReply(text, **rest))


def begun(form: Format, *more: str, ending: wire.Ending = "clean") -> Answer:
    """Return a stream of `par`, `tial` and then `more`."""
    events = [event for event in says(form, "par tial").streamed if '"par"' in event or '" tial"' in event]
    first = [event for event in says(form, "par tial").streamed[:3] if "_start" in event]
    return replace(says(form, "x"), streamed=(), events=(*first, *events, *more), ending=ending, body=b"")
