"""What of prompts, arguments and results may stand in a trace: nothing, unless the operator wants it.

It is JSON that stays whole when it is cut: backends drop what they cannot parse.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from framework.telemetry import names
from framework.types.messages import Message, ToolDefinition
from framework.types.redact import MASK, redact, redact_data
from framework.types.spec import CONTENT_MODES, ContentMode
from framework.types.text import shorten
from framework.types.trace import AttributeValue

PART_CHARS = 4096
"""Of one text in a message."""
ATTRIBUTE_CHARS = 32_768
"""Of one attribute: of a longer conversation the middle is left out."""
_MESSAGE_CHARS = ATTRIBUTE_CHARS // 2 - 2
"""Of one message: of more calls than that the first are shown."""
TEXT, JSON = "text/plain", "application/json"
_CAPTURE_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CAPTURE_VALUES = frozenset({"true", "1", "span_only", "span_and_event"})

ContentAttributes = dict[str, AttributeValue]


def content_mode(settings: ContentMode | None, environ: Mapping[str, str]) -> ContentMode:
    """The process's mode: the settings', else that of OpenTelemetry's own variable."""
    if settings is not None:
        return settings
    return "full" if environ.get(_CAPTURE_VARIABLE, "").lower() in _CAPTURE_VALUES else "none"


@dataclass(frozen=True, slots=True)
class Content:
    """Makes attributes of content, as far as the mode allows."""

    mode: ContentMode = "none"
    secrets: tuple[str, ...] = ()
    """The operator's own: in no mode shown."""

    def __bool__(self) -> bool:
        """Whether anything may be recorded at all."""
        return self.mode != "none"

    def restricted_to(self, mode: ContentMode | None) -> Content:
        """The same, or less."""
        if mode is None or CONTENT_MODES.index(mode) >= CONTENT_MODES.index(self.mode):
            return self
        return Content(mode, self.secrets)

    def request(self, messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> ContentAttributes:
        """What a model is asked."""
        recorded = self._conversation(names.INPUT_MESSAGES, [self._message(message) for message in messages])
        if tools:
            told = [
                {"type": "function", "name": t.name, "description": t.description, "parameters": t.parameters}
                for t in tools
            ]
            text = _dumps(told)
            if len(text) <= ATTRIBUTE_CHARS:
                recorded[names.TOOL_DEFINITIONS] = self._safe(text)
            else:
                recorded[names.TRUNCATED] = True
        return recorded

    def reply(self, message: Message, finish_reason: str) -> ContentAttributes:
        """What it answered; Phoenix shows no answer without a finish reason."""
        return self._conversation(names.OUTPUT_MESSAGES, [{**self._message(message), "finish_reason": finish_reason}])

    def arguments(self, arguments: Mapping[str, Any]) -> ContentAttributes:
        """Arguments of a tool call."""
        recorded = self.input(dict(arguments))
        return {names.TOOL_ARGUMENTS: recorded[names.INPUT], **recorded}

    def result(self, output: Any) -> ContentAttributes:
        """Result of a tool call."""
        recorded = self.output(output)
        text = recorded[names.OUTPUT]
        return {names.TOOL_RESULT: _dumps(text) if isinstance(output, str) else text, **recorded}

    def input(self, value: Any) -> ContentAttributes:
        """Input of a span: text, or JSON data."""
        text, kind = (self._text(value), TEXT) if isinstance(value, str) else (self._data(value), JSON)
        return {names.INPUT: text, names.INPUT_TYPE: kind}

    def output(self, value: Any) -> ContentAttributes:
        """Output of a span: text, or JSON data."""
        text, kind = (self._text(value), TEXT) if isinstance(value, str) else (self._data(value), JSON)
        return {names.OUTPUT: text, names.OUTPUT_MIME: kind}

    def turn(self, news: Sequence[Message], reply: Message) -> ContentAttributes:
        """Input and output of one model turn.

        Args:
            news: messages since the previous turn: the user's message, or tool results.
            reply: the model's message; its tool calls are written as `tool({"argument": value})`.
        """
        read = "\n".join(self._text(message.content) for message in news if message.content)
        calls = [f"{call.tool}({self._data(call.arguments)})" for call in reply.tool_calls]
        said = "\n".join([*filter(None, [self._text(reply.content)]), *calls])
        return {
            names.INPUT: shorten(read, PART_CHARS),
            names.INPUT_TYPE: TEXT,
            names.OUTPUT: shorten(said, PART_CHARS),
            names.OUTPUT_MIME: TEXT,
        }

    def text(self, name: str, value: str) -> ContentAttributes:
        """Text as an attribute of its own."""
        return {name: self._text(value)}

    def _conversation(self, name: str, messages: Sequence[dict[str, Any]]) -> ContentAttributes:
        """As JSON: the first and the last messages, as many as there is room for."""
        whole = [_dumps(message) for message in messages]
        texts = [
            text if len(text) <= _MESSAGE_CHARS else _dumps(_fit_message(message))
            for text, message in zip(whole, messages, strict=True)
        ]
        room = ATTRIBUTE_CHARS - sum(map(len, texts[:1]))
        kept: list[str] = []
        for text in reversed(texts[1:]):
            room -= len(text) + 1
            if room < 0:
                break
            kept.append(text)
        is_whole = len(kept) == len(texts[1:]) and texts == whole
        recorded: ContentAttributes = {name: self._safe("[" + ",".join([*texts[:1], *reversed(kept)]) + "]")}
        return recorded if is_whole else {**recorded, names.TRUNCATED: True}

    def _message(self, message: Message) -> dict[str, Any]:
        return {"role": message.role, "parts": [*self._parts(message)]}

    def _parts(self, message: Message) -> Iterator[dict[str, Any]]:
        if message.tool_call_id is not None:
            response = self._text(message.content)
            yield {"type": "tool_call_response", "id": message.tool_call_id, "response": response}
            return
        if message.reasoning and message.reasoning.text:
            yield {"type": "reasoning", "content": self._text(message.reasoning.text)}
        if message.content:
            yield {"type": "text", "content": self._text(message.content)}
        for call in message.tool_calls:
            arguments = json.loads(self._data(call.arguments))
            yield {"type": "tool_call", "id": call.id, "name": call.tool, "arguments": arguments}

    def _text(self, text: str) -> str:
        """Cut; first to twice the length, so that no half of a secret stands at the end."""
        shown = redact(text[: 2 * PART_CHARS]) if self.mode == "redacted" else text
        return self._safe(shorten(shown, PART_CHARS))

    def _data(self, value: Any) -> str:
        text = _dumps(redact_data(value) if self.mode == "redacted" else value)
        if len(text) > PART_CHARS:
            text = _dumps({"truncated": shorten(text, PART_CHARS)})
        return self._safe(text)

    def _safe(self, text: str) -> str:
        """Without the operator's secrets, and of characters that can be sent."""
        for secret in self.secrets:
            text = text.replace(secret, MASK)
        return text.encode("utf-8", "replace").decode()


def _fit_message(message: dict[str, Any]) -> dict[str, Any]:
    """A message with as many of its parts as there is room for."""
    room = _MESSAGE_CHARS - len(_dumps({**message, "parts": []}))
    kept: list[Any] = []
    for part in message["parts"]:
        room -= len(_dumps(part)) + 2
        if room < 0:
            break
        kept.append(part)
    return {**message, "parts": kept}


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
