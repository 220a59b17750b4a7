"""Runs in the format of the Responses API: whole, or as its server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from framework.server.openai.answer import AnswerText, Ending
from framework.types.messages import Usage

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why a response is incomplete, by the finish reason."""


def response_id(run_id: str) -> str:
    """Return the id of a run's response."""
    return f"resp_{run_id.removeprefix('run_')}"


class ResponseWriter:
    """One response: collects its output items from the pieces of the answer, and encodes its events."""

    def __init__(self, run_id: str, created: int) -> None:
        """Create a writer. `created` is the Unix time of the request."""
        self._run_id, self._created, self._agent = run_id, created, ""
        self._items: list[dict[str, Any]] = []
        self._open: AnswerText | None = None
        """Last piece of the item in progress."""
        self._sequence = 0

    def begin(self, agent: str) -> Iterator[bytes]:
        """Yield the first events."""
        self._agent = agent
        for name in ("response.created", "response.in_progress"):
            yield self._event(name, response=self._response("in_progress"))

    def own_event(self, event: Mapping[str, Any]) -> bytes:
        """Return an event of the run as an extra key of an ordinary event."""
        return self._event("response.in_progress", response=self._response("in_progress"), agentsd=dict(event))

    def text(self, piece: AnswerText) -> Iterator[bytes]:
        """Yield the events for a piece of the answer. Each message of the model is an output item."""
        if self._open is None or (self._open.kind, self._open.message_id) != (piece.kind, piece.message_id):
            yield from self._close_item("commentary")
            yield from self._open_item(piece)
        self._open = piece
        item = self._items[-1]
        if piece.kind == "content":
            item["content"][0]["text"] += piece.text
            yield self._part_event("response.output_text.delta", delta=piece.text, logprobs=[])
        else:
            item["summary"][0]["text"] += piece.text
            yield self._part_event("response.reasoning_summary_text.delta", delta=piece.text)

    def end(self, ending: Ending) -> Iterator[bytes]:
        """Yield the last events."""
        yield from self._close_item("final_answer")
        if ending.function:
            yield from self._function_call(ending)
        response = self._ended(ending)
        yield self._event(f"response.{response['status']}", response=response)

    def complete(self, agent: str, ending: Ending, reasoning: str) -> dict[str, Any]:
        """Return the whole response of a run, to a client that does not stream it."""
        self._agent = agent
        content = "" if ending.function else ending.text
        for piece in (AnswerText("reasoning", "", reasoning), AnswerText("content", "", content)):
            if piece.text:
                list(self.text(piece))
        list(self._close_item("final_answer"))
        if ending.function:
            list(self._function_call(ending))
        return self._ended(ending)

    def _ended(self, ending: Ending) -> dict[str, Any]:
        if ending.finish_reason is None:
            # OpenAI's clients know a fixed list of codes.
            error = {"code": "server_error", "message": f"{ending.error_code}: {ending.error_message}"}
            return {**self._response("failed"), "error": error, "usage": _response_usage(ending.usage)}
        if reason := _INCOMPLETE.get(ending.finish_reason):
            response = {**self._response("incomplete"), "incomplete_details": {"reason": reason}}
        else:
            response = self._response("completed")
        return {**response, "usage": _response_usage(ending.usage), **ending.notes}

    def error(self, code: str, message: str) -> bytes:
        """Return the event for an error of the server in the middle of a stream."""
        return self._event("error", code=code, message=message, param=None)

    def _open_item(self, piece: AnswerText) -> Iterator[bytes]:
        number = len(self._items)
        if piece.kind == "content":
            item_id = f"msg_{response_id(self._run_id)}_{number}"
            item = {"type": "message", "id": item_id, "role": "assistant", "status": "in_progress", "content": []}
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            key, event = "content", "response.content_part.added"
        else:
            item = {"type": "reasoning", "id": f"rs_{response_id(self._run_id)}_{number}", "summary": []}
            part = {"type": "summary_text", "text": ""}
            key, event = "summary", "response.reasoning_summary_part.added"
        yield self._event("response.output_item.added", output_index=number, item=item)
        self._items.append({**item, key: [dict(part)]})
        self._open = piece
        yield self._part_event(event, part=part)

    def _close_item(self, phase: str) -> Iterator[bytes]:
        """End the item in progress. A message that others follow is a commentary, not the answer."""
        if self._open is None:
            return
        item = self._items[-1]
        if self._open.kind == "content":
            item["status"], item["phase"] = "completed", phase
            part = item["content"][0]
            yield self._part_event("response.output_text.done", text=part["text"], logprobs=[])
            yield self._part_event("response.content_part.done", part=part)
        else:
            part = item["summary"][0]
            yield self._part_event("response.reasoning_summary_text.done", text=part["text"])
            yield self._part_event("response.reasoning_summary_part.done", part=part)
        yield self._event("response.output_item.done", output_index=len(self._items) - 1, item=item)
        self._open = None

    def _function_call(self, ending: Ending) -> Iterator[bytes]:
        """Add the item for a call of the client's function, and yield its events."""
        key, number = response_id(self._run_id), len(self._items)
        item = {"type": "function_call", "id": f"fc_{key}", "call_id": f"call_{key}", "name": ending.function}
        place, started = {"item_id": item["id"], "output_index": number}, {**item, "arguments": ""}
        self._items.append({**item, "arguments": ending.text, "status": "completed"})
        yield self._event("response.output_item.added", output_index=number, item={**started, "status": "in_progress"})
        yield self._event("response.function_call_arguments.delta", **place, delta=ending.text)
        yield self._event("response.function_call_arguments.done", **place, name=ending.function, arguments=ending.text)
        yield self._event("response.output_item.done", output_index=number, item=self._items[-1])

    def _part_event(self, name: str, **fields: Any) -> bytes:
        """Return an event about the only part of the last item."""
        index = "summary_index" if self._items[-1]["type"] == "reasoning" else "content_index"
        place = {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1, index: 0}
        return self._event(name, **place, **fields)

    def _response(self, status: str) -> dict[str, Any]:
        return {
            "id": response_id(self._run_id),
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": self._agent,
            "output": self._items,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "temperature": None,
            "top_p": None,
            "tool_choice": "auto",
            "tools": [],
            "store": False,
            "usage": None,
        }

    def _event(self, name: str, /, **fields: Any) -> bytes:
        data = {"type": name, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def _response_usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.cache_write_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.total_tokens,
    }
