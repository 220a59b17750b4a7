"""Runs in the format of chat completions: whole, or in chunks as server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from framework.server.openai.answer import AnswerKind, AnswerText, Ending
from framework.types.messages import Usage

DONE = b"data: [DONE]\n\n"
"""The last event of a stream."""
_CHUNK = "chat.completion.chunk"


def completion_id(run_id: str) -> str:
    """Return the id of a run's completion."""
    return f"chatcmpl-{run_id.removeprefix('run_')}"


def chat_usage(usage: Usage) -> dict[str, Any]:
    """Return token counts in the format of chat completions."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


class ChatWriter:
    """One completion: whole, or its chunks."""

    def __init__(self, run_id: str, created: int, *, include_usage: bool = False) -> None:
        """Create a writer.

        Args:
            run_id: id of the run.
            created: Unix time of the request.
            include_usage: end a stream with a chunk that contains the number of tokens.
        """
        self._head: dict[str, Any] = {"id": completion_id(run_id), "created": created}
        self._include_usage = include_usage
        self._last: dict[AnswerKind, str] = {}
        """Message of the last text of each kind."""

    def begin(self, agent: str) -> Iterator[bytes]:
        """Yield the first chunk."""
        self._head["model"] = agent
        yield self._chunk({"role": "assistant", "content": ""})

    def text(self, piece: AnswerText) -> Iterator[bytes]:
        """Yield the chunk for a piece of the answer. A blank line separates the texts of two messages."""
        gap = "" if self._last.get(piece.kind, piece.message_id) == piece.message_id else "\n\n"
        self._last[piece.kind] = piece.message_id
        yield self._chunk({"reasoning_content" if piece.kind == "reasoning" else "content": gap + piece.text})

    def own_event(self, event: Mapping[str, Any]) -> bytes:
        """Return an event of the run in an ordinary, empty chunk: clients fail on events with other names."""
        return self._chunk({}, agentsd=dict(event))

    def end(self, ending: Ending) -> Iterator[bytes]:
        """Yield the last chunks: the finish reason or the error, and the number of tokens if requested."""
        if ending.finish_reason is None:
            yield self.error(ending.error_code, ending.error_message)
            return
        if ending.function:
            yield self._chunk({"tool_calls": [{"index": 0, **self._call(ending)}]})
        yield self._chunk({}, finish_reason=ending.finish_reason, **ending.notes)
        if self._include_usage:
            yield _encoded({**self._head, "object": _CHUNK, "choices": [], "usage": chat_usage(ending.usage)})
        yield DONE

    def error(self, code: str, message: str) -> bytes:
        """Return the event for an error after the beginning of a stream, and the end of the stream."""
        return _encoded({"error": {"code": code, "type": "server_error", "message": message, "param": None}}) + DONE

    def complete(self, agent: str, ending: Ending, reasoning: str) -> dict[str, Any]:
        """Return the whole completion of a run that did not fail."""
        message: dict[str, Any] = {"role": "assistant", "content": ending.text, "refusal": None}
        if ending.function:
            message |= {"content": None, "tool_calls": [self._call(ending)]}
        if reasoning:
            message["reasoning_content"] = reasoning
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": ending.finish_reason}
        head = {**self._head, "object": "chat.completion", "model": agent}
        return {**head, "choices": [choice], "usage": chat_usage(ending.usage), **ending.notes}

    def _call(self, ending: Ending) -> dict[str, Any]:
        called = {"name": ending.function, "arguments": ending.text}
        return {"id": f"call_{self._head['id']}", "type": "function", "function": called}

    def _chunk(self, delta: Mapping[str, Any], *, finish_reason: str | None = None, **extra: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return _encoded({**self._head, "object": _CHUNK, "choices": [choice], **extra})


def _encoded(data: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()
