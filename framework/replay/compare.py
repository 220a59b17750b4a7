"""Compares a recorded run with its replays.

A run is replayed twice, with the files that it started with and with the current ones. Prompts and offered tools are
compared between the two replays; calls, plan, status and output are compared with the record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from framework.replay.recorded import NO_RESULT, FirstRequest
from framework.types.state import CallRecord, RunState

DifferenceKind = Literal["agent", "offered", "prompt", "asked", "call", "plan", "record", "status", "output"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between the record and the replay."""

    what: DifferenceKind
    subject: str
    """The agent, call or question that differs; empty for the run as a whole."""
    before: str
    """The recorded value; empty if there was none."""
    after: str
    """The value under the current files; empty if there is none."""


@dataclass(frozen=True, slots=True)
class ReplayedRun:
    """Observations from a replayed run."""

    state: RunState
    requests: Mapping[str, FirstRequest]
    """The first request of each agent to its model."""
    questions: Sequence[str]
    """Ids of the confirmations that were requested."""
    missing: Sequence[str]
    """Replies and results that the run requested and the record does not contain."""


def differences(
    record: RunState, questions: Sequence[str], before: ReplayedRun | None, now: ReplayedRun
) -> Iterator[Difference]:
    """Yield the differences between a recorded run and its replays.

    Args:
        record: the run.
        questions: ids of the confirmations that the run requested.
        before: the replay with the files that the run started with, if they are still stored.
        now: the replay with the current files.
    """
    if before is not None:
        yield from _request_differences(before.requests, now.requests)
    for question in dict.fromkeys((*questions, *now.questions)):
        if (question in questions) != (question in now.questions):
            was, is_now = ("asked" if question in where else "not asked" for where in (questions, now.questions))
            yield Difference("asked", question, was, is_now)
    yield from _calls(dict(_calls_of(record)), dict(_calls_of(now.state)))
    if _plan(record) != _plan(now.state):
        yield Difference("plan", "", _plan(record), _plan(now.state))
    yield from _ending(record, now)


def _request_differences(before: Mapping[str, FirstRequest], now: Mapping[str, FirstRequest]) -> Iterator[Difference]:
    for agent in dict.fromkeys((*before, *now)):
        old, new = before.get(agent), now.get(agent)
        if old is None or new is None:
            yield Difference("agent", agent, "asked" if old else "not asked", "asked" if new else "not asked")
            continue
        if old.offered != new.offered:
            gone, come = set(old.offered) - set(new.offered), set(new.offered) - set(old.offered)
            yield Difference("offered", agent, ", ".join(sorted(gone)), ", ".join(sorted(come)))
        if old.prompt != new.prompt:
            yield Difference("prompt", agent, old.prompt, new.prompt)


def _calls(before: Mapping[str, CallRecord], now: Mapping[str, CallRecord]) -> Iterator[Difference]:
    for key in dict.fromkeys((*before, *now)):
        old, new = (_call_text(calls.get(key)) for calls in (before, now))
        if old != new:
            call = (now.get(key) or before[key]).call
            yield Difference("call", f"{key} {call.tool} {_json(call.arguments)}", old, new)


def _call_text(record: CallRecord | None) -> str:
    """Return how a call ended."""
    if record is None:
        return "not asked for"
    if record.result is None or record.result.output == NO_RESULT:
        return "has no result"
    result = record.result
    if result.metadata.get("decision") == "reject":  # older records have another status and message
        return "rejected"
    return result.status if result.status == "success" else f"{result.status}: {result.error}"


def _ending(record: RunState, now: ReplayedRun) -> Iterator[Difference]:
    """Yield differences of status and output. A run that was interrupted is compared up to the end of its record."""
    was_cut_off = record.status not in ("completed", "paused")
    if now.missing:
        if not was_cut_off:
            yield Difference("record", "", "", now.missing[0])
        return
    old, new = (f"{state.status} ({state.finish_reason})" for state in (record, now.state))
    if old != new:
        why = f": {now.state.error.message}" if now.state.error else ""
        yield Difference("status", "", old, new + why)
    if record.output != now.state.output:
        yield Difference("output", "", record.output, now.state.output)


def _calls_of(state: RunState) -> Iterator[tuple[str, CallRecord]]:
    for run in state.with_sub_runs():
        for record in run.calls.values():
            yield "/".join((*run.path, record.call.id)), record


def _plan(state: RunState) -> str:
    """Return a plan as text, one line per step, with its status and call."""
    lines = [
        f"{step.id} ({step.status}): {step.description}{f': {step.tool} {_json(step.parameters)}' if step.tool else ''}"
        for step in (state.plan.steps if state.plan else ())
    ]
    return "\n".join([*lines, *(_plan(child) for child in state.children.values())]).strip()


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
