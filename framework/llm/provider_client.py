"""What the clients of all providers share: options, assembly of streams, and the check of a complete response."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeVar
from uuid import uuid4

from framework.llm.capabilities import Capabilities, OpenAIApi, with_cost
from framework.llm.client import Delta, FinishReason, ModelInfo, ModelReply, ModelRequest, served_model
from framework.llm.openai_format import (
    OPAQUE_FIELDS,
    PART_THOUGHTS,
    REASONING_FIELDS,
    content_text,
    content_thoughts,
)
from framework.llm.provider_errors import ProviderErrors, option_secrets
from framework.types.errors import ModelError
from framework.types.messages import Message, ToolCall, Usage, unique_calls
from framework.types.text import fix_surrogates

T = TypeVar("T")


class ProviderClient:
    """A model at a provider. The SDK is loaded with the first request.

    Args:
        model: the model's name in the API.
        api_key: empty for a server that requires none.
        base_url: a different server with the same API; None for the provider's own.
        capabilities: override the known ones.
        stream: whether responses are always or never streamed; None to stream them if the request asks for it.
        extra_body: fields added to the body of each request.
        headers: headers added to each request.
        usual_path: the path that most servers' `base_url` ends with.
    """

    provider: str
    """The first part of the model name."""
    api: OpenAIApi | None = None
    """Which of OpenAI's APIs is used; None for other providers."""
    credential = "API key"
    """What the server authenticates, as errors call it."""
    media_types: frozenset[str]
    """Media types of files that the API can express."""

    def __init__(
        self,
        model: str,
        *,
        api_key: str,
        base_url: str | None = None,
        capabilities: Capabilities | None = None,
        stream: bool | None = None,
        extra_body: Mapping[str, Any] = MappingProxyType({}),
        headers: Mapping[str, str] = MappingProxyType({}),
        usual_path: str = "",
    ) -> None:
        self._info = served_model(
            self.provider, model, base_url, capabilities, media_types=self.media_types, stream=stream
        )
        self._api_key, self._base_url = api_key, base_url
        self._extra_body, self._headers = extra_body, headers
        self._errors = ProviderErrors(
            self._info.name,
            api_key,
            base_url,
            usual_path=usual_path,
            api=self.api,
            credential=self.credential,
            secrets=option_secrets(headers, extra_body),
        )

    @property
    def info(self) -> ModelInfo:
        """Provider, model and capabilities."""
        return self._info

    def _sdk_errors(self) -> tuple[type[Exception], ...]:
        """Return the root classes of the SDK's errors."""
        return ()

    def _explain(self, error: Any) -> ModelError | None:  # noqa: ARG002 - for subclasses
        """Translate an error of the SDK; return None if it only wraps one of the transport."""
        return None

    async def _guard(self, call: Awaitable[T]) -> T:
        """Await a call of the SDK; raise ModelError for whatever it raises."""
        return await self._errors.guard(call, self._sdk_errors(), self._explain)


FinishReasons = Mapping[str, FinishReason | Literal["error"]]
"""A provider's finish reasons, mapped to those of `ModelReply`; `error` marks a failed response."""
MAX_ANSWER_CHARS = 10_000_000
"""Limit of a reply's text."""


@dataclass(frozen=True, slots=True)
class ProviderResponse:
    """A provider's response, with the finish reason as the provider reports it."""

    message: Message
    finish_reason: str
    """Empty if the provider reported none: unless `is_ended`, the response was cut off."""
    usage: Usage
    model: str
    response_id: str
    chunks: int
    """Number of chunks received; 0 if the server streamed nothing."""
    refusal: str | None = None
    """The provider's explanation of a refusal, which may be empty; None if nothing was refused."""
    is_ended: bool = False
    """Whether the server ended its stream: the response is complete, also without a finish reason."""


def to_reply(
    response: ProviderResponse, request: ModelRequest, info: ModelInfo, reasons: FinishReasons, errors: ProviderErrors
) -> ModelReply:
    """Return the reply with unique call ids and priced usage.

    Raises:
        ModelError: the response is incomplete, empty or refused. Carries the usage, which is charged nevertheless.
    """
    calls = response.message.tool_calls
    usage = with_cost(response.usage, info.capabilities)
    try:
        finish = _finish_reason(response, reasons, errors)
    except ModelError as error:
        error.usage = usage
        raise
    used_ids = {call.id for earlier in request.messages for call in earlier.tool_calls} if calls else set[str]()
    unique = _unique_ids(unique_calls(calls), used_ids)
    return ModelReply(
        message=response.message if unique == calls else response.message.model_copy(update={"tool_calls": unique}),
        finish_reason="tool_calls" if calls and finish == "stop" else finish,
        usage=usage,
        model=fix_surrogates(response.model),
        response_id=fix_surrogates(response.response_id),
        lacks_finish_reason=not response.finish_reason,
    )


def merge_finish_reason(earlier: str, reported: object, reasons: FinishReasons) -> str:
    """Return the finish reason of a response that reports several: a later success does not override an earlier one."""
    later = str(reported or "")
    return earlier if not later or (earlier and reasons.get(later) in ("stop", "tool_calls")) else later


def _finish_reason(response: ProviderResponse, reasons: FinishReasons, errors: ProviderErrors) -> FinishReason:
    """Return the finish reason of a complete response; raise ModelError for others, whose tool calls must not run."""
    if response.refusal is not None:
        raise errors.refusal("refused", response.refusal)
    has_calls, reported = bool(response.message.tool_calls), response.finish_reason
    if len(response.message.content) > MAX_ANSWER_CHARS:
        problem = f"the answer exceeds {MAX_ANSWER_CHARS} characters, more than any model writes"
        raise errors.error(problem, unavailable=True)
    match reasons.get(reported):
        case "tool_calls" if not has_calls and not response.message.content.strip():
            raise errors.error("the finish reason announces a tool call, but the answer contains none", retryable=True)
        case "stop" | "tool_calls":
            return "stop"
        case "length":
            if has_calls:
                raise errors.error("a tool call was cut by max_tokens: raise model_settings.max_tokens")
            return "length"
        case "content_filter":
            raise errors.refusal("refused: the provider's content filter stopped the answer", reported)
        case None if not reported:
            return _unreported(response, errors)
        case None if not has_calls and "error" not in reported:
            return "stop"
        case _:
            raise errors.unexpected_finish(reported)


def _unreported(response: ProviderResponse, errors: ProviderErrors) -> FinishReason:
    """Return the finish reason of a response without one; raise ModelError if it was cut off."""
    if response.is_ended and response.chunks and not any(call.invalid for call in response.message.tool_calls):
        return "stop"
    empty = "the server streamed nothing: check base_url"
    incomplete = "the stream ended before the answer was complete"
    error = errors.error(incomplete if response.chunks else empty, retryable=True)
    raise error.of_type("incomplete_answer" if response.chunks else "empty_answer")


def _unique_ids(calls: Iterable[ToolCall], used_ids: set[str]) -> tuple[ToolCall, ...]:
    """Assign a new id to each call without one or with a used one: some servers count from 0 in each response."""
    unique = []
    for call in calls:
        call_id = call.id if call.id and call.id not in used_ids else f"call_{uuid4().hex[:16]}"
        used_ids.add(call_id)
        unique.append(call if call.id == call_id else call.model_copy(update={"id": call_id}))
    return tuple(unique)


_TEXTS = frozenset(("content", "refusal", *REASONING_FIELDS))
"""Fields of a delta that contain a piece of text. Nearly every delta has one of them only."""
STREAM_END = "[DONE]"
"""The last chunk of a stream that its server has ended."""
_NO_IDS = ("", "null", "none", "undefined")
"""Texts that some servers send in place of a call's id."""
_TEXT_TYPES = ("reasoning.text", "reasoning.summary", "thinking")
_TEXT_KEYS = ("text", "summary", "thinking")
"""Types of entries of opaque lists that arrive in pieces, and the keys of their texts."""
_MAX_PARSED_CHARS = 10_000_000
"""Characters of arguments that are parsed, in total, to find out where a call ends."""


class StreamAssembler:
    """Accumulates a streamed response: accepts chunks, returns deltas. Chunks are untrusted: each field is checked."""

    def __init__(self, reasons: FinishReasons) -> None:
        self._reasons = reasons
        self.chunks = 0
        self.finish_reason = self.model = self.response_id = ""
        self.usage: object = None
        self.is_ended = False
        """Whether the server has ended the stream: the answer is complete, also without a finish reason."""
        self.message: dict[str, Any] = {}
        """The message, if it arrived in one piece."""
        self._texts: dict[str, list[str]] = {}
        self._opaque: dict[str, list[Any]] = {}
        self._calls: list[dict[str, Any]] = []
        self._call_by_index: dict[object, dict[str, Any]] = {}
        self._call_by_id: dict[object, dict[str, Any]] = {}
        self._doubtful: list[dict[str, Any]] = []
        """Calls that started with the name of the call before them only: none, if no arguments follow."""
        self._parsed_chars = 0

    def add_chunk(self, chunk: Any) -> Delta | None:
        """Add a chunk; return its delta, which is empty if nothing can be shown yet, or None if it has no content."""
        if chunk == STREAM_END:
            self.is_ended = True
            return None
        chunk = as_dict(chunk)
        self.chunks += 1
        self.model = str(chunk.get("model") or self.model)
        self.response_id = str(chunk.get("id") or self.response_id)
        usage = chunk.get("usage") or (chunk.get("x_groq") and as_dict(chunk["x_groq"]).get("usage"))
        self.usage = usage or self.usage
        choices = chunk.get("choices")
        self.is_ended = bool(usage) and not choices
        if not isinstance(choices, list) or not choices:
            return None
        first = as_dict(choices[0])
        self.finish_reason = merge_finish_reason(self.finish_reason, first.get("finish_reason"), self._reasons)
        delta = as_dict(first.get("delta"))
        fragments = as_list(delta.get("tool_calls"))
        for fragment in fragments:
            self._add_call_fragment(as_dict(fragment))
        text, reasoning = self._add_texts(delta)
        return (
            Delta(text=fix_surrogates(text), reasoning=fix_surrogates(reasoning))
            if text or reasoning or fragments
            else None
        )

    def set_response(self, body: Mapping[str, Any]) -> None:
        """Set a response that was not streamed, so it is complete; its `choices` must be a non-empty list."""
        first = as_dict(body["choices"][0])
        self.chunks = 1
        self.model, self.response_id = str(body.get("model") or ""), str(body.get("id") or "")
        self.usage = body.get("usage") or as_dict(body.get("x_groq")).get("usage")
        self.finish_reason = str(first.get("finish_reason") or "stop")
        self.message = as_dict(first.get("message"))

    def assembled_message(self) -> dict[str, Any]:
        """Return the streamed message in the format of chat completions."""
        texts = {field: "".join(fragments) for field, fragments in self._texts.items()}
        repeated = [call for call in self._doubtful if not call["function"]["arguments"]]
        calls = [call for call in self._calls if not any(call is one for one in repeated)] if repeated else self._calls
        opaque = {field: _joined(values) for field, values in self._opaque.items()}
        return {**texts, **opaque, "tool_calls": calls}

    def _add_texts(self, delta: Mapping[str, Any]) -> tuple[str, str]:
        """Add the pieces of text in a delta; return that of the content, and the longest one of reasoning."""
        text = reasoning = ""
        for field, content in delta.items():
            if field in OPAQUE_FIELDS and content:
                self._opaque.setdefault(field, []).append(content)
            if field == "content" and isinstance(content, list) and (thoughts := content_thoughts(content)):
                self._texts.setdefault(PART_THOUGHTS, []).append(thoughts)
                reasoning = max(reasoning, thoughts, key=len)
            if field not in _TEXTS or not (piece := content_text(content)):
                continue
            self._texts.setdefault(field, []).append(piece)
            if field == "content":
                text = piece
            elif field in REASONING_FIELDS:
                reasoning = max(reasoning, piece, key=len)
        return text, reasoning

    def _add_call_fragment(self, fragment: Mapping[str, Any]) -> None:
        function, custom = as_dict(fragment.get("function")), as_dict(fragment.get("custom"))
        name, given = function.get("name"), function.get("arguments")
        arguments = given if isinstance(given, str) else "" if given is None else json.dumps(given)
        call = self._call_for(fragment, name, arguments)
        if fragment.get("type") == "custom" or custom:
            call["type"], call["custom"] = "custom", call.get("custom") or custom
        known = call["function"]
        for target, fields in ((call, fragment), (known, function)):
            target.update({field: fields[field] for field in OPAQUE_FIELDS if fields.get(field)})
        if not known["name"]:
            known["name"] = name
        elif isinstance(name, str) and not known["arguments"]:  # some servers send it in pieces, some again
            known["name"] = name if name.startswith(known["name"]) else f"{known['name']}{name}"
        if not self._repeats(known["arguments"], arguments):
            text = known.pop("arguments")
            text += arguments  # in place: nothing else refers to it, and a copy each time would be quadratic
            known["arguments"] = text

    def _call_for(self, fragment: Mapping[str, Any], name: object, arguments: str) -> dict[str, Any]:
        """Return the call that a fragment continues, or add a new one."""
        index, call_id = _index_of(fragment), _id_of(fragment)
        call, is_doubtful = self._matching(index, call_id, name), False
        if call is not None and name and self._is_object(known := call["function"]["arguments"]):
            # Complete arguments are followed by another call, unless the fragment repeats something of this one.
            is_same = name == call["function"]["name"]
            is_doubtful = is_same and not arguments and call_id is None
            if is_doubtful or not (is_same and (not arguments or self._repeats(known, arguments))):
                call = None
        if call is None:
            call = {"id": call_id, "type": "function", "function": {"name": None, "arguments": ""}}
            self._calls.append(call)
            self._doubtful += [call] if is_doubtful else []
        call["id"] = call["id"] or call_id
        if index is not None:
            self._call_by_index[index] = call
        if call_id is not None:
            self._call_by_id[call_id] = call
        return call

    def _matching(self, index: object, call_id: object, name: object) -> dict[str, Any] | None:
        """Return the call with the id, or else the index: some servers number every call 0, and omit ids later.

        Of fragments with neither, one with a name starts a call and one without continues the last call.
        """
        if call_id is not None and call_id in self._call_by_id:
            return self._call_by_id[call_id]
        if index is None and call_id is None:
            return self._calls[-1] if self._calls and not name else None
        call = self._call_by_index.get(index)
        is_another = call is not None and name and call_id and call["id"] and call["id"] != call_id
        return None if is_another else call

    def _repeats(self, known: str, arguments: str) -> bool:
        """Return whether a fragment contains the complete arguments of a call once more."""
        if known == arguments:
            return self._is_object(known)
        return self._is_object(arguments) and self._is_object(known) and json.loads(arguments) == json.loads(known)

    def _is_object(self, arguments: str) -> bool:
        """Return whether arguments are a complete JSON object; False once too much was parsed to find out."""
        if self._parsed_chars > _MAX_PARSED_CHARS:
            return False
        text = arguments.strip()
        self._parsed_chars += len(text)
        if not (text.startswith("{") and text.endswith("}")):
            return False
        try:
            return isinstance(json.loads(text), dict)
        except (ValueError, RecursionError):
            return False


def _joined(values: Sequence[Any]) -> Any:
    """Return an opaque field that arrived in pieces: lists are joined, and of objects the later values count."""
    if all(isinstance(value, dict) for value in values):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: _joined([value[key] for value in values if key in value]) for key in keys}
    if not all(isinstance(value, list) for value in values):
        return values[-1]
    entries: list[Any] = []
    texts: list[dict[str, list[str]]] = []
    for entry in (one for value in values for one in value):
        pieces = {key: entry[key] for key in _TEXT_KEYS if isinstance(entry, dict) and isinstance(entry.get(key), str)}
        if entries and _continues(entries[-1], entry):
            entries[-1].update({key: value for key, value in entry.items() if value is not None})
        else:
            entries.append(dict(entry) if isinstance(entry, dict) else entry)
            texts.append({})
        for key, piece in pieces.items():
            texts[-1].setdefault(key, []).append(piece)
    for entry, pieces_of in zip(entries, texts, strict=True):
        for key, parts in pieces_of.items():
            entry[key] = "".join(parts)
    return entries


def _continues(last: Any, entry: Any) -> bool:
    """Return whether an entry of a list is the next piece of the text in the entry before it."""
    if not isinstance(last, dict) or not isinstance(entry, dict) or entry.get("type") not in _TEXT_TYPES:
        return False
    return not last.get("signature") and all(last.get(key) == entry.get(key) for key in ("type", "index"))


def _index_of(fragment: Mapping[str, Any]) -> int | str | None:
    """Return the index of a fragment, which some servers send as text."""
    index = index_key(fragment.get("index"))
    return int(index) if isinstance(index, str) and index.isdecimal() and len(index) < 10 else index


def _id_of(fragment: Mapping[str, Any]) -> int | str | None:
    call_id = index_key(fragment.get("id"))
    return None if str(call_id).strip().lower() in _NO_IDS else call_id


def index_key(value: object) -> int | str | None:
    """Return an index or id as a key, or None if it is neither a number nor a string."""
    return value if isinstance(value, (int, str)) else None


def as_list(value: object) -> list[Any]:
    """Return a list unchanged, and an empty list for any other value."""
    return value if isinstance(value, list) else []


def as_dict(value: Any) -> dict[str, Any]:
    """Return an SDK object or a mapping as a dict, and an empty dict for any other value."""
    if isinstance(value, dict):
        return value
    if hasattr(value, "to_dict"):
        value = value.to_dict(warnings=False)
    return dict(value) if isinstance(value, Mapping) else {}
