"""Converts prompts, arguments and results to span attributes, as far as settings allow; by default nothing.

Structured content is JSON that remains valid when it is shortened, because backends drop JSON that they cannot parse.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from framework.telemetry import names
from framework.types.media import MediaPart, TextPart
from framework.types.messages import Message, ToolDefinition
from framework.types.redact import MASK, redact, redact_data
from framework.types.spec import CONTENT_MODES, ContentMode
from framework.types.text import shorten
from framework.types.trace import AttributeValue

PART_CHARS = 4096
"""Limit for one text of a message."""
ATTRIBUTE_CHARS = 32_768
"""Limit for one attribute; the middle of a longer conversation is omitted."""
_MESSAGE_CHARS = ATTRIBUTE_CHARS // 2 - 2
"""Limit for one message; the last of its parts are omitted if it is longer."""
TEXT, JSON = "text/plain", "application/json"
_CAPTURE_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CAPTURE_VALUES = frozenset({"true", "1", "span_only", "span_and_event"})

ContentAttributes = dict[str, AttributeValue]


def content_mode(settings: ContentMode | None, environ: Mapping[str, str]) -> ContentMode:
    """Return the mode from the settings, or else from OpenTelemetry's standard variable."""
    if settings is not None:
        return settings
    return "full" if environ.get(_CAPTURE_VARIABLE, "").lower() in _CAPTURE_VALUES else "none"


@dataclass(frozen=True, slots=True)
class Content:
    """Converts content to span attributes, as far as the mode allows."""

    mode: ContentMode = "none"
    secrets: tuple[str, ...] = ()
    """Secrets of the operator, which are masked in every mode."""

    def __bool__(self) -> bool:
        """Return whether any content may be recorded."""
        return self.mode != "none"

    def restricted_to(self, mode: ContentMode | None) -> Content:
        """Return a converter for the stricter of the two modes."""
        if mode is None or CONTENT_MODES.index(mode) >= CONTENT_MODES.index(self.mode):
            return self
        return Content(mode, self.secrets)

    def request(self, messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> ContentAttributes:
        """Return the attributes of a model request: messages and tool definitions."""
        recorded = self._conversation(names.INPUT_MESSAGES, [self._message(message) for message in messages])
        if tools:
            definitions = [
                {"type": "function", "name": t.name, "description": t.description, "parameters": t.parameters}
                for t in tools
            ]
            text = _dumps(definitions)
            if len(text) <= ATTRIBUTE_CHARS:
                recorded[names.TOOL_DEFINITIONS] = self._safe(text)
            else:
                recorded[names.TRUNCATED] = True
        return recorded

    def reply(self, message: Message, finish_reason: str) -> ContentAttributes:
        """Return the attributes of a model's reply. Phoenix does not display a reply without a finish reason."""
        return self._conversation(names.OUTPUT_MESSAGES, [{**self._message(message), "finish_reason": finish_reason}])

    def arguments(self, arguments: Mapping[str, Any]) -> ContentAttributes:
        """Return the attributes of a tool call's arguments."""
        recorded = self.input(dict(arguments))
        return {names.TOOL_ARGUMENTS: recorded[names.INPUT], **recorded}

    def result(self, output: Any) -> ContentAttributes:
        """Return the attributes of a tool call's result."""
        recorded = self.output(output)
        text = recorded[names.OUTPUT]
        return {names.TOOL_RESULT: _dumps(text) if isinstance(output, str) else text, **recorded}

    def input(self, value: Any) -> ContentAttributes:
        """Return the input of a span: text or JSON."""
        text, kind = (self._text(value), TEXT) if isinstance(value, str) else (self._data(value), JSON)
        return {names.INPUT: text, names.INPUT_TYPE: kind}

    def output(self, value: Any) -> ContentAttributes:
        """Return the output of a span: text or JSON."""
        text, kind = (self._text(value), TEXT) if isinstance(value, str) else (self._data(value), JSON)
        return {names.OUTPUT: text, names.OUTPUT_MIME: kind}

    def turn(self, new_messages: Sequence[Message], reply: Message) -> ContentAttributes:
        """Return the input and output of one model turn.

        Args:
            new_messages: messages since the previous turn: the user's message, or tool results.
            reply: the model's message; its tool calls are written as `tool({"argument": value})`.
        """
        received = "\n".join(self._text(text) for message in new_messages if (text := message.description))
        calls = [f"{call.tool}({self._data(call.arguments)})" for call in reply.tool_calls]
        answered = "\n".join([*filter(None, [self._text(reply.content)]), *calls])
        return {
            names.INPUT: shorten(received, PART_CHARS),
            names.INPUT_TYPE: TEXT,
            names.OUTPUT: shorten(answered, PART_CHARS),
            names.OUTPUT_MIME: TEXT,
        }

    def text(self, name: str, value: str) -> ContentAttributes:
        """Return a single text attribute."""
        return {name: self._text(value)}

    def _conversation(self, name: str, messages: Sequence[dict[str, Any]]) -> ContentAttributes:
        """Return messages as JSON: the first one, and as many of the last ones as fit into `ATTRIBUTE_CHARS`."""
        full_texts = [_dumps(message) for message in messages]
        texts = [
            text if len(text) <= _MESSAGE_CHARS else _dumps(_fit_message(message))
            for text, message in zip(full_texts, messages, strict=True)
        ]
        remaining = ATTRIBUTE_CHARS - sum(map(len, texts[:1]))
        last: list[str] = []
        for text in reversed(texts[1:]):
            remaining -= len(text) + 1
            if remaining < 0:
                break
            last.append(text)
        is_complete = len(last) == len(texts[1:]) and texts == full_texts
        recorded: ContentAttributes = {name: self._safe("[" + ",".join([*texts[:1], *reversed(last)]) + "]")}
        return recorded if is_complete else {**recorded, names.TRUNCATED: True}

    def _message(self, message: Message) -> dict[str, Any]:
        return {"role": message.role, "parts": [*self._parts(message)]}

    def _parts(self, message: Message) -> Iterator[dict[str, Any]]:
        if message.tool_call_id is not None:
            response = self._text(message.content)
            yield {"type": "tool_call_response", "id": message.tool_call_id, "response": response}
            yield from map(self._file, message.media)
            return
        if message.reasoning and message.reasoning.text:
            yield {"type": "reasoning", "content": self._text(message.reasoning.text)}
        for part in message.parts or ([TextPart(text=message.content)] if message.content else ()):
            yield {"type": "text", "content": self._text(part.text)} if isinstance(part, TextPart) else self._file(part)
        for call in message.tool_calls:
            arguments = json.loads(self._data(call.arguments))
            yield {"type": "tool_call", "id": call.id, "name": call.tool, "arguments": arguments}

    def _file(self, part: MediaPart) -> dict[str, Any]:
        """Return a file as a `file` part of the conventions, without its bytes."""
        modality = "document" if part.kind == "pdf" else part.kind
        name = {"name": self._text(part.name)} if part.name else {}
        file = {"modality": modality, "mime_type": part.media_type, "file_id": part.digest, "size": part.size}
        return {"type": "file", **file, **name}

    def _text(self, text: str) -> str:
        """Mask and shorten a text. It is cut to twice the limit first, so that no secret is cut before it is masked."""
        shown = redact(text[: 2 * PART_CHARS]) if self.mode == "redacted" else text
        return self._safe(shorten(shown, PART_CHARS))

    def _data(self, value: Any) -> str:
        text = _dumps(redact_data(value) if self.mode == "redacted" else value)
        if len(text) > PART_CHARS:
            text = _dumps({"truncated": shorten(text, PART_CHARS)})
        return self._safe(text)

    def _safe(self, text: str) -> str:
        """Mask the operator's secrets and replace characters that cannot be encoded."""
        for secret in self.secrets:
            text = text.replace(secret, MASK)
        return text.encode("utf-8", "replace").decode()


def _fit_message(message: dict[str, Any]) -> dict[str, Any]:
    """Return the message with as many of its parts as fit into `_MESSAGE_CHARS`."""
    remaining = _MESSAGE_CHARS - len(_dumps({**message, "parts": []}))
    parts: list[Any] = []
    for part in message["parts"]:
        remaining -= len(_dumps(part)) + 2
        if remaining < 0:
            break
        parts.append(part)
    return {**message, "parts": parts}


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
