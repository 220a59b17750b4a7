"""The answer of a run as a client of OpenAI's APIs sees it: its texts as they arrive, and how it ended."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from framework.server.wording import confirmations_text
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
class Ending:
    """How a run ended for its client."""

    text: str
    """The complete answer: the text, the JSON that was asked for, or what a person must decide, in words.

    With the finish reason `tool_calls`, it is the arguments of `function`.
    """
    finish_reason: AnswerFinish | None
    """None if the run failed or was cancelled."""
    usage: Usage
    function: str = ""
    """Name of the client's function that the answer calls."""
    is_question: bool = False
    """Whether the run waits for a decision."""
    error_code: str = ""
    """Code of the error, if there is no finish reason."""
    error_message: str = ""
    """The error, for people."""
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

        Args:
            ending: how the run ended.
            message_id: id of the message with the run's output.
        """
        place = _QUESTION_ID if ending.is_question else message_id or ""
        if ending.text and not ending.function and ("content", place) not in self._arrived:
            yield AnswerText("content", place, ending.text)


def ending_of(result: RunResult, run_url: str = "", *, as_data: bool = False, function: str = "") -> Ending:
    """Return how a run ended.

    Args:
        result: the run's result.
        run_url: URL of the run, for people; empty if it is not recorded.
        as_data: the client asked for JSON of a schema.
        function: name of the client's function whose arguments that JSON is, if any.
    """
    match result.status:
        case "paused":
            question = question_text(result.run_id, result.pending, run_url)
            return Ending(question, "stop", result.usage, is_question=True)
        case "completed":
            text = json.dumps(result.data, ensure_ascii=False) if as_data else result.output
            finish: AnswerFinish = "tool_calls" if function else "length" if result.truncated else "stop"
            return Ending(text, finish, result.usage, function, incomplete=result.incomplete)
        case "stopped":
            limit = LimitExceeded.of(result.stopped_by).message if result.stopped_by else result.finish_reason
            reason: AnswerFinish = "content_filter" if result.finish_reason == "refused" else "length"
            return Ending(result.output or f"[{limit}]", reason, result.usage)
    code = result.error.code if result.error else result.finish_reason
    message = result.error.message if result.error else f"the run was {result.status}"
    text = redact(message) + (f" (run {result.run_id}: {run_url})" if run_url else "")
    return Ending("", None, result.usage, error_code=code, error_message=text)


def question_text(run_id: str, pending: Sequence[Confirmation], run_url: str) -> str:
    """Return what a paused run waits for, in words, with its id and where to decide."""
    return (
        f"This needs a decision before it can continue:\n\n{confirmations_text(pending)}\n\n"
        f"Run {run_id} waits for it: {run_url}\n"
        "A message here decides nothing. When the decision is made, the run continues by itself."
    )
