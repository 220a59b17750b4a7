"""A recorded run as a case that `agentsd test` carries out: what its models said as the script, its tools' answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from framework.tools.builtin.asking import ASK_USER
from framework.types.confirmation_kinds import is_about_step, subject_of
from framework.types.errors import RequestError
from framework.types.messages import REFUSED, Message, ToolResult
from framework.types.plan import PlanDraft
from framework.types.state import Approve, CallRecord, Decision, Edit, Reject, Respond, RunState
from framework.types.text import one_line

NAME_CHARS = 60
"""Of the message, as the case's name."""
OUTPUT_CHARS = 200
"""Of the answer that must come again."""
SUB_AGENT = "agent."


def case_of(record: RunState, events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The case as data, in the order in which its keys are read best.

    It is about this run alone: earlier turns of its conversation are not part of it. Of models that answered side by
    side, those of the first call come first.

    Args:
        record: the run.
        events: what it told, in the form of the wire: they say in which order tools were called, and what was asked.

    Raises:
        RequestError: the run failed before a model answered, so a case could not repeat it.
    """
    message = record.messages[0].content
    numbers: dict[str, str] = {}
    script = list(_script(record, numbers))
    if record.status == "failed" and not script:
        raise RequestError(f"run {record.run_id} failed before a model answered: there is no answer to test with")
    case: dict[str, Any] = {"name": one_line(message, NAME_CHARS), "agent": record.agent, "message": message}
    if record.inputs:
        case["inputs"] = record.inputs
    case["model"] = script
    if results := _results(record):
        case["results"] = results
    asked = {event["id"] for event in events if event["event"] == "confirm_required"}
    decided = {key: decision for key, decision in record.decisions.items() if key in asked}
    if decisions := dict(_decisions(record, decided, numbers)):
        case["decisions"] = decisions
    case["expect"] = _expected(record, events)
    return case


# --- the script


def _script(record: RunState, numbers: dict[str, str]) -> Iterator[dict[str, Any]]:
    """A run's answers in order, those of its sub-runs behind the answer that began them.

    Args:
        record: the run, or a sub-run.
        numbers: filled with the ids that the script's calls will have, by the ids of the record's.
    """
    drafts = [text for text in record.typed if _is_plan(text)]
    for text in drafts:
        yield {"plan": json.loads(text)}
    if record.plan is not None:
        for key in record.children:
            yield from _script(record.children[key], numbers)
    for place in record.replies:
        message = record.messages[place]
        yield _answer(record, message, numbers)
        if record.plan is None:
            for call in message.tool_calls:
                if call.id in record.children:
                    yield from _script(record.children[call.id], numbers)
    yield from ({"say": text} for text in record.typed if text not in drafts)


def _is_plan(text: str) -> bool:
    try:
        PlanDraft.model_validate_json(text)
    except ValidationError:
        return False
    return True


def _answer(record: RunState, message: Message, numbers: dict[str, str]) -> dict[str, Any]:
    if not message.tool_calls:
        return {"say": message.content or "(nothing)"}
    wanted = []
    for call in message.tool_calls:
        numbers["/".join((*record.path, call.id))] = f"c{len(numbers) + 1}"
        wanted.append({"call": call.tool, **({"arguments": call.arguments} if call.arguments else {})})
    return wanted[0] if len(wanted) == 1 else {"calls": wanted}


# --- tools and humans


def _results(record: RunState) -> dict[str, Any]:
    """What tools answered, by name, one answer or several in order; not of those that were never called."""
    answers: dict[str, list[Any]] = {}
    for _, call in _calls(record):
        named = call.call.tool
        if call.started and call.result and not named.startswith(SUB_AGENT) and named != ASK_USER:
            answers.setdefault(call.call.tool, []).append(_result(call.result))
    return {tool: given[0] if all(one == given[0] for one in given) else given for tool, given in answers.items()}


def _result(result: ToolResult) -> Any:
    if result.status != "success":
        return {"fail": result.error or "failed"}
    return result.output if isinstance(result.output, str) else json.dumps(result.output, ensure_ascii=False)


def _decisions(
    record: RunState, decided: Mapping[str, Decision], numbers: Mapping[str, str]
) -> Iterator[tuple[str, Any]]:
    """By tool where all that was said about it is the same, else by the call's number in the script."""
    said: dict[str, dict[str, Any]] = {}
    for key, call in _calls(record):
        for asked, decision in decided.items():
            if asked == key or asked.startswith((f"{key}~", f"{key}?")):
                number = numbers.get(key, key) + asked.removeprefix(key)
                said.setdefault(call.call.tool, {})[number] = _decision(decision)
    plans = {asked: _decision(decision) for asked, decision in decided.items() if "plan-" in asked}
    called = {call.call.id for _, call in _calls(record)}
    if plans := {asked: one for asked, one in plans.items() if asked.rpartition("/")[2] not in called}:
        said["plan"] = plans
    if steps := {asked: _decision(one) for asked, one in decided.items() if is_about_step(asked)}:
        said["step"] = steps
    for tool, own in said.items():
        values = list(own.values())
        if all(value == values[0] for value in values):
            yield tool, values[0]
        else:
            yield from own.items()


def _decision(decision: Decision) -> Any:
    match decision:
        case Approve():
            return "approve"
        case Reject(reason=reason):
            return {"reject": reason} if reason else "reject"
        case Respond(text=text):
            return {"respond": text}
        case Edit(arguments=arguments):
            return {"edit": arguments}


# --- what came of it


def _expected(record: RunState, events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    started: dict[tuple[str, ...], str] = {}
    asked: dict[str, None] = {}
    denied: dict[str, None] = {}
    for event in events:
        match event:
            case {"event": "tool_call", "status": "running", "id": call, "tool": tool}:
                started.setdefault((*event.get("path", ()), call), tool)
            case {"event": "tool_result", "status": status, "tool": tool} if status in REFUSED:
                denied[tool] = None
            case {"event": "confirm_required", "kind": kind} if kind != "question":  # a stand-in asks nothing
                asked[subject_of(kind, event["tool"])] = None
    expected: dict[str, Any] = {"called_exactly": list(started.values())}
    expected |= {key: list(found) for key, found in (("asked", asked), ("denied", denied)) if found}
    if record.output and record.status == "completed":
        expected["output"] = record.output[:OUTPUT_CHARS]
    expected["status"] = record.status
    if record.status == "stopped":
        expected["finish_reason"] = record.finish_reason
    return expected


def _calls(record: RunState) -> Iterator[tuple[str, CallRecord]]:
    """All calls with their ids, a sub-run's behind the call that began it."""
    for call in record.calls.values():
        yield "/".join((*record.path, call.call.id)), call
        if call.call.id in record.children:
            yield from _calls(record.children[call.call.id])
    for key, child in record.children.items():
        if key not in record.calls:
            yield from _calls(child)
