"""Recorded models, tools and hooks: they repeat the answers of a recorded run, and call nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, fields
from typing import Any

from framework.engine.routing.by_model import RouteChoice
from framework.llm.client import Delta, FinishReason, ModelInfo, ModelReply, ModelRequest
from framework.tools.declaration import Extension
from framework.tools.tool import Tool, ToolContext
from framework.types.errors import ModelError, Paused, Refused, ToolError
from framework.types.messages import Message, ToolCall, ToolResult, Usage
from framework.types.spec import HookPlace
from framework.types.state import CONFIRMATION_KINDS, Confirmation, RunState

RECORDED = "recorded"
"""Name of the recorded model."""
NO_RESULT = "(the record has no result of this call)"
_USAGE_LIMITS = ("max_total_tokens", "max_cost_usd")
RunPath = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FirstRequest:
    """The first request of an agent to its model."""

    agent: str
    prompt: str
    """The system prompt."""
    offered: tuple[str, ...]
    """Names of the offered tools, sorted."""


class Recording:
    """Replies, results and decisions of a recorded run, repeated to a run with the same beginning."""

    def __init__(self, record: RunState, live: RunState) -> None:
        """Initialize from the record, and the replayed run's state, which shows which sub-run a request is from."""
        self._records = {state.path: state for state in record.with_sub_runs()}
        self._live, self._record = live, record
        self._given_counts: Counter[tuple[RunPath, str]] = Counter()
        self._questions = {
            question.id.partition("?")[0]: question
            for question in record.pending
            if CONFIRMATION_KINDS[question.kind].asked_by_tool
        }
        self.first_requests: dict[str, FirstRequest] = {}
        """First requests, by agent."""
        self.missing: list[str] = []
        """Requests that the record has no answer for."""

    # --- the model

    def reply(self, request: ModelRequest) -> ModelReply:
        """Return the recorded reply to this request; raise ModelError if there is none."""
        if request.continued is not None:  # the record contains the whole answer
            return _reply(Message(role="assistant"), Usage(), truncated=True)
        path = self._asking_path(request)
        if path is None:
            return _reply(Message(role="assistant", content=self._answer_outside_turns(request)), Usage())
        self._record_request(path, request)
        kind = "reply" if request.output is None else "typed"
        place = self._given_counts[path, kind]
        self._given_counts[path, kind] += 1
        record = self._records.get(path)
        answers = _answers(record, kind) if record else []
        if place >= len(answers):
            where = f"the sub-run {'/'.join(path)}" if path else "the run"
            self.missing.append(f"{where} calls its model more often than recorded: {place} replies")
            raise ModelError("the record has no further reply")
        is_last = place == len(answers) - 1 and kind == "reply"
        truncated = is_last and self._records[path].truncated
        return _reply(answers[place], self._usage(), truncated=truncated)

    def _answer_outside_turns(self, request: ModelRequest) -> str:
        """Return the reply to a request outside a turn, for an executor or a summary; raise ModelError if none."""
        if request.output is not RouteChoice:
            if self._record.summary is None:
                raise ModelError("the record has no summary")
            return self._record.summary.text
        message = request.messages[-1].content
        candidates = (s for s in self._live.with_sub_runs() if not s.executor and s.messages[0].description == message)
        for live in candidates:
            if (record := self._records.get(live.path)) and record.executor:
                return json.dumps({"agent": live.agent, "executor": record.executor})
        raise ModelError("the record has no choice of executor")

    def _asking_path(self, request: ModelRequest) -> RunPath | None:
        """Return the path of the run whose first message is in the request; None if the request is not a turn."""
        message_ids = {id(message) for message in request.messages}
        own = (s.path for s in self._live.with_sub_runs() if s.messages and id(s.messages[0]) in message_ids)
        return next(own, None)

    def _record_request(self, path: RunPath, request: ModelRequest) -> None:
        agent = next(state.agent for state in self._live.with_sub_runs() if state.path == path)
        if agent not in self.first_requests:
            offered = tuple(sorted(tool.name for tool in request.tools))
            prompt = request.messages[0].content if request.messages[0].role == "system" else ""
            self.first_requests[agent] = FirstRequest(agent, prompt, offered)

    def _usage(self) -> Usage:
        """Return the usage of one reply, so that the replay uses as much as the record, and meets the same limits."""
        used, answers = self._record.usage, sum(len(_answers(run, k)) for run in self._records.values() for k in _KINDS)
        share = 1 / max(answers, 1)
        if self._record.finish_reason in _USAGE_LIMITS:
            share = float(sum(self._given_counts.values()) == answers)
        return Usage(
            prompt_tokens=round(used.prompt_tokens * share),
            completion_tokens=round(used.completion_tokens * share),
            total_tokens=round(used.total_tokens * share),
            cost_usd=None if used.cost_usd is None else used.cost_usd * share,
        )

    # --- tools and hooks

    def tool(self, tool: Tool) -> Tool:
        """Return a tool that looks like the original to the policy and the model, and returns its recorded results."""
        if tool.source == "agent":
            return tool
        known = {field.name: getattr(tool, field.name) for field in fields(Tool) if field.init}
        return _Recorded(**{**known, "retries": 0, "rate": None, "needs": {}}, recording=self)

    def result(self, call_id: str) -> ToolResult | Confirmation:
        """Return the recorded result of a call, or the question that its tool asked."""
        if known := self._recorded_result(call_id):
            return known
        if question := self._questions.get(call_id):
            return question
        self.missing.append(f"call {call_id} has no recorded result")
        return ToolResult(status="success", output=NO_RESULT)

    def hooks(self) -> Mapping[HookPlace, tuple[Extension, ...]]:
        """Return hooks that refuse what the recorded run's hooks refused."""

        async def before_tool(context: ToolContext, call: ToolCall) -> None:  # noqa: ARG001 - a hook's signature
            result = self._recorded_result(context.call_id)
            if result is not None and str(result.metadata.get("rule", "")).startswith("hook "):
                raise Refused(result.error or "")

        async def after_run(context: ToolContext, output: str) -> None:  # noqa: ARG001 - a hook's signature
            if context.call_id == "" and self._record.finish_reason == "refused":
                raise Refused(self._record.output)

        is_refused = self._record.finish_reason == "refused"
        hooks: dict[HookPlace, tuple[Extension, ...]] = {"before_tool": (Extension("hook", RECORDED, before_tool),)}
        if is_refused:
            hooks["after_run"] = (Extension("hook", RECORDED, after_run),)
        return hooks

    def _recorded_result(self, call_id: str) -> ToolResult | None:
        *path, own = call_id.split("/")
        record = self._records.get(tuple(path))
        call = record.calls.get(own) if record else None
        return call.result if call else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded(Tool):
    recording: Recording

    async def invoke(  # the signature is Tool's
        self,
        bound: Mapping[str, Any],  # noqa: ARG002
        context: Callable[[], ToolContext],
        threads: Executor | None,  # noqa: ARG002
    ) -> Any:
        match self.recording.result(context().call_id):
            case Confirmation() as question:
                raise Paused([question])
            case ToolResult(status="success", output=output):
                return output
            case ToolResult(error=error):
                raise ToolError(error or "")


class RecordedModel:
    """A model client that returns recorded replies."""

    info = ModelInfo(provider=RECORDED, model="", typed=True, stand_in=True)

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Yield the next reply; raise ModelError at the end of the record."""
        yield Delta(reply=self._recording.reply(request))

    async def close(self) -> None:
        """Do nothing: there is no connection."""


_KINDS = ("reply", "typed")


def _answers(record: RunState, kind: str) -> list[Message]:
    if kind == "reply":
        return [record.messages[place] for place in record.replies]
    return [Message(role="assistant", content=text) for text in record.typed]


def _reply(message: Message, usage: Usage, *, truncated: bool = False) -> ModelReply:
    finish: FinishReason = "tool_calls" if message.tool_calls else "length" if truncated else "stop"
    return ModelReply(message, finish, usage, RECORDED)


def requested_calls(record: RunState) -> Iterator[ToolCall]:
    """Yield every call that a run and its sub-runs requested."""
    for state in record.with_sub_runs():
        yield from (call.call for call in state.calls.values())
