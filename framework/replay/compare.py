"""A recorded run once more, offline and through the same engine, under other files: what would be different?

Models and tools answer as they did, whatever they are asked: nothing is called, no network is used. The run is carried
out twice, with the files that it began with and with those of now. What its agents were told and offered is compared
between the two; what came of it, with the record.
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
    """One thing that would be otherwise."""

    what: DifferenceKind
    subject: str
    """The agent, the call or the question that it is about; empty for the run."""
    before: str
    """As it was; empty where there was nothing."""
    after: str
    """As it would be; empty where there would be nothing."""


@dataclass(frozen=True, slots=True)
class ReplayedRun:
    """What a replayed run did."""

    state: RunState
    requests: Mapping[str, FirstRequest]
    """What models were asked, by agent."""
    questions: Sequence[str]
    """Ids of what a human was asked."""
    missing: Sequence[str]
    """What it wanted that the record does not have."""


def differences(
    record: RunState, questions: Sequence[str], before: ReplayedRun | None, now: ReplayedRun
) -> Iterator[Difference]:
    """What would be otherwise.

    Args:
        record: the run.
        questions: ids of what a human was asked in it.
        before: the run once more under the files that it began with, if they are still known.
        now: the run once more under the files of now.
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
    """How a call ended, and with what arguments where they are not the model's."""
    if record is None:
        return "not asked for"
    if record.result is None or record.result.output == NO_RESULT:
        return "has no result"
    result = record.result
    if result.metadata.get("decision") == "reject":  # its status and words were others in older records
        return "rejected"
    return result.status if result.status == "success" else f"{result.status}: {result.error}"


def _ending(record: RunState, now: ReplayedRun) -> Iterator[Difference]:
    """How it ends; a run that was cut off ends where its record does."""
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
    """A plan as lines: its steps with what they do and how they ended."""
    lines = [
        f"{step.id} ({step.status}): {step.description}{f': {step.tool} {_json(step.parameters)}' if step.tool else ''}"
        for step in (state.plan.steps if state.plan else ())
    ]
    return "\n".join([*lines, *(_plan(child) for child in state.children.values())]).strip()


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
