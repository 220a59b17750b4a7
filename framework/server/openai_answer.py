"""Answers in the forms of chat completions and of the Responses API, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from framework.server.openai_request import client_call_id, is_client_call
from framework.server.protocol_texts import confirmations_text
from framework.tools.toolset import CLIENT
from framework.types.errors import LimitExceeded
from framework.types.events import ContentReceived, Event, Thought
from framework.types.messages import Usage
from framework.types.redact import redact
from framework.types.report import IncompleteStep
from framework.types.state import Confirmation, RunResult

AnswerKind = Literal["content", "reasoning"]
AnswerFinish = Literal["stop", "length", "content_filter", "tool_calls"]
_QUESTION_ID = "question"
"""Stands for the id of a message in the text of a question, which no model wrote."""


@dataclass(frozen=True, slots=True)
class AnswerText:
    """A piece of the answer."""

    kind: AnswerKind
    message_id: str
    """Id of the model's message. Pieces of one message and kind belong together."""
    text: str


@dataclass(frozen=True, slots=True)
class AnswerCall:
    """A call of a function of the client."""

    name: str
    arguments: str
    id: str = ""
    """Id of the call; empty if the client is not expected to send a result."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended for its client."""

    text: str
    """The complete answer: the text, the JSON that was asked for, or what a person must decide, in words."""
    finish_reason: AnswerFinish | None
    """None if the run failed or was cancelled."""
    usage: Usage
    calls: tuple[AnswerCall, ...] = ()
    is_question: bool = False
    error_code: str = ""
    error_message: str = ""
    incomplete: tuple[IncompleteStep, ...] = ()
    """Steps of the run's plan that were not done, although it is completed."""

    @property
    def notes(self) -> dict[str, Any]:
        """Our own key of the last object that a client receives; empty if there is nothing to say."""
        return {"agentsd": {"incomplete": [one.model_dump() for one in self.incomplete]}} if self.incomplete else {}


class AnswerReader:
    """Takes the texts of the answer from the events of a run, each once. Those of sub-runs are left out."""

    def __init__(self, *, as_data: bool = False) -> None:
        """Create a reader; `as_data`: the client asked for JSON, which is complete only at the end."""
        self._as_data = as_data
        self._arrived: set[tuple[AnswerKind, str]] = set()
        """Kinds and messages of which text arrived in deltas: their numbered events repeat it."""

    def read(self, event: Event) -> Iterator[AnswerText]:
        """Yield the text of an event, unless it arrived before."""
        if event.path or not isinstance(event, ContentReceived | Thought):
            return
        kind: AnswerKind = "content" if isinstance(event, ContentReceived) else "reasoning"
        # The whole text of a thought contains that of its message, if tool calls follow.
        is_repeated = event.seq and {(kind, event.message_id), ("content", event.message_id)} & self._arrived
        if event.text and not is_repeated and not (kind == "content" and self._as_data):
            self._arrived.add((kind, event.message_id))
            yield AnswerText(kind, event.message_id, event.text)

    def end(self, ending: Ending, message_id: str | None) -> Iterator[AnswerText]:
        """Yield the part of the complete answer that has not arrived.

        `message_id` is that of the message with the run's output.
        """
        place = _QUESTION_ID if ending.is_question else message_id or ""
        if ending.text and ("content", place) not in self._arrived:
            yield AnswerText("content", place, ending.text)


def ending_of(result: RunResult, run_url: str = "", *, as_data: bool = False, function: str = "") -> Ending:
    """Return how a run ended.

    `run_url` is empty if the run is not recorded. `function` is the client's function whose arguments the JSON is that
    it asked for.
    """
    match result.status:
        case "paused":
            calls = tuple(_client_call(result.run_id, one) for one in result.pending if is_client_call(one))
            asked = [one for one in result.pending if not is_client_call(one)]
            question = question_text(result.run_id, asked, run_url) if asked else ""
            return Ending(question, "tool_calls" if calls else "stop", result.usage, calls, is_question=bool(asked))
        case "completed":
            text = json.dumps(result.data, ensure_ascii=False) if as_data else result.output
            if function:
                call = AnswerCall(function, text)
                return Ending("", "tool_calls", result.usage, (call,), incomplete=result.incomplete)
            finish: AnswerFinish = "length" if result.truncated else "stop"
            return Ending(text, finish, result.usage, incomplete=result.incomplete)
        case "stopped":
            limit = LimitExceeded.of(result.stopped_by).message if result.stopped_by else result.finish_reason
            reason: AnswerFinish = "content_filter" if result.finish_reason == "refused" else "length"
            return Ending(result.output or f"[{limit}]", reason, result.usage)
    code = result.error.code if result.error else result.finish_reason
    message = result.error.message if result.error else f"the run was {result.status}"
    text = redact(message) + (f" (run {result.run_id}: {run_url})" if run_url else "")
    return Ending("", None, result.usage, error_code=code, error_message=text)


def _client_call(run_id: str, asked: Confirmation) -> AnswerCall:
    """Return a call that a run waits for, as its client sees it."""
    arguments = json.dumps(asked.arguments, ensure_ascii=False)
    return AnswerCall(asked.tool.removeprefix(CLIENT), arguments, client_call_id(run_id, asked.id))


def question_text(run_id: str, pending: Sequence[Confirmation], run_url: str) -> str:
    """Return what a paused run waits for, in words, with its id and where to decide."""
    return (
        f"This needs a decision before it can continue:\n\n{confirmations_text(pending)}\n\n"
        f"Run {run_id} waits for it: {run_url}\n"
        "A message here decides nothing. When the decision is made, the run continues by itself."
    )


DONE = b"data: [DONE]\n\n"
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

        With `include_usage`, a stream ends with a chunk that contains the number of tokens.
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
        for index, call in enumerate(ending.calls):
            yield self._chunk({"tool_calls": [{"index": index, **self._call(call)}]})
        yield self._chunk({}, finish_reason=ending.finish_reason, **ending.notes)
        if self._include_usage:
            yield _encoded({**self._head, "object": _CHUNK, "choices": [], "usage": chat_usage(ending.usage)})
        yield DONE

    def error(self, code: str, message: str) -> bytes:
        """Return the event for an error after the start of a stream, and the end of the stream."""
        return _encoded({"error": {"code": code, "type": "server_error", "message": message, "param": None}}) + DONE

    def complete(self, agent: str, ending: Ending, reasoning: str) -> dict[str, Any]:
        """Return the whole completion of a run that did not fail."""
        message: dict[str, Any] = {"role": "assistant", "content": ending.text, "refusal": None}
        if ending.calls:
            message |= {"content": ending.text or None, "tool_calls": [self._call(call) for call in ending.calls]}
        if reasoning:
            message["reasoning_content"] = reasoning
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": ending.finish_reason}
        head = {**self._head, "object": "chat.completion", "model": agent}
        return {**head, "choices": [choice], "usage": chat_usage(ending.usage), **ending.notes}

    def _call(self, call: AnswerCall) -> dict[str, Any]:
        called = {"name": call.name, "arguments": call.arguments}
        return {"id": call.id or f"call_{self._head['id']}", "type": "function", "function": called}

    def _chunk(self, delta: Mapping[str, Any], *, finish_reason: str | None = None, **extra: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return _encoded({**self._head, "object": _CHUNK, "choices": [choice], **extra})


def _encoded(data: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why a response is incomplete, by the finish reason."""


def response_id(run_id: str) -> str:
    """Return the id of a run's response."""
    return f"resp_{run_id.removeprefix('run_')}"


class ResponseWriter:
    """One response: collects its output items from the pieces of the answer, and encodes its events."""

    def __init__(self, run_id: str, created: int, *, previous: str | None = None, is_stored: bool = False) -> None:
        """Create a writer.

        `previous` is the id of the response that this one continues, and `is_stored` whether later requests may
        continue it.
        """
        self._run_id, self._created, self._agent = run_id, created, ""
        self._previous, self._is_stored = previous, is_stored
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
        for call in ending.calls:
            yield from self._function_call(call)
        response = self._ended(ending)
        yield self._event(f"response.{response['status']}", response=response)

    def complete(self, agent: str, ending: Ending, reasoning: str) -> dict[str, Any]:
        """Return the whole response of a run, to a client that does not stream it."""
        self._agent = agent
        for piece in (AnswerText("reasoning", "", reasoning), AnswerText("content", "", ending.text)):
            if piece.text:
                list(self.text(piece))
        list(self._close_item("final_answer"))
        for call in ending.calls:
            list(self._function_call(call))
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

    def _function_call(self, call: AnswerCall) -> Iterator[bytes]:
        """Add the item for a call of the client's function, and yield its events."""
        key, number = response_id(self._run_id), len(self._items)
        item = {"type": "function_call", "id": f"fc_{key}", "call_id": f"call_{key}", "name": call.name}
        if call.id:
            item |= {"id": f"fc_{call.id}", "call_id": call.id}
        place, started = {"item_id": item["id"], "output_index": number}, {**item, "arguments": ""}
        self._items.append({**item, "arguments": call.arguments, "status": "completed"})
        yield self._event("response.output_item.added", output_index=number, item={**started, "status": "in_progress"})
        yield self._event("response.function_call_arguments.delta", **place, delta=call.arguments)
        done = {"name": call.name, "arguments": call.arguments}
        yield self._event("response.function_call_arguments.done", **place, **done)
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
            "store": self._is_stored,
            "previous_response_id": self._previous,
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
