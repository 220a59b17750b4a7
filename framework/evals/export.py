"""Exports a recorded run as a case for `agentsd test`: its replies become the script, its tool results the stubs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from framework.tools.builtin.notes import ASK_USER
from framework.types.case import SUB_AGENT_PREFIX
from framework.types.errors import RequestError
from framework.types.messages import REFUSED_STATUSES, Message, ToolResult
from framework.types.plan import PlanDraft
from framework.types.state import (
    Approve,
    CallRecord,
    Decision,
    Edit,
    Rating,
    Reject,
    Respond,
    RunState,
    subject_of,
)
from framework.types.text import one_line

_NAME_CHARS = 60
"""Maximum length of a case's name, which is taken from the message."""
_OUTPUT_CHARS = 200
"""Maximum length of the answer that the case expects."""


def export_case(record: RunState, events: Sequence[Mapping[str, Any]], rating: Rating | None = None) -> dict[str, Any]:
    """Return the case as data, with its keys in reading order.

    The case covers this run only, without earlier turns of its conversation. Replies of sub-agents that ran
    concurrently are listed in the order of their calls.

    Args:
        record: the run.
        events: the run's events in wire format, which contain the order of tool calls and the confirmations.
        rating: a person's rating of the answer, which becomes the note of the case.

    Raises:
        RequestError: the run failed before a model replied, so a case cannot repeat it.
    """
    message = record.messages[0].description
    numbers: dict[str, str] = {}
    script = list(_script(record, numbers))
    if record.status == "failed" and not script:
        raise RequestError(f"cannot export run {record.run_id}: it failed before a model replied")
    case: dict[str, Any] = {"name": one_line(message, _NAME_CHARS), "agent": record.agent, "message": message}
    if rating is not None:
        case["note"] = f"rated {rating.value}: {rating.comment}" if rating.comment else f"rated {rating.value}"
    if record.inputs:
        case["inputs"] = record.inputs
    case["model"] = script
    if results := _results(record):
        case["results"] = results
    if decisions := _decisions(record, events, numbers):
        case["decisions"] = decisions
    case["expect"] = _expected(record, events)
    return case


# --- the script


def _script(record: RunState, numbers: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yield a run's replies in order, those of a sub-run after the reply that started it.

    Args:
        record: the run, or a sub-run.
        numbers: filled with the ids of calls in the script, by their ids in the record.
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
    calls = []
    for call in message.tool_calls:
        numbers["/".join((*record.path, call.id))] = f"c{len(numbers) + 1}"
        calls.append({"call": call.tool, **({"arguments": call.arguments} if call.arguments else {})})
    return calls[0] if len(calls) == 1 else {"calls": calls}


# --- tools and decisions


def _results(record: RunState) -> dict[str, Any]:
    """Return the results of executed tools by name: one value if all are equal, else a list in order."""
    answers: dict[str, list[Any]] = {}
    for _, call in _calls(record):
        tool = call.call.tool
        if call.started and call.result and not tool.startswith(SUB_AGENT_PREFIX) and tool != ASK_USER:
            answers.setdefault(call.call.tool, []).append(_result(call.result))
    return {
        tool: results[0] if all(one == results[0] for one in results) else results for tool, results in answers.items()
    }


def _result(result: ToolResult) -> Any:
    if result.status != "success":
        return {"fail": result.error or "failed"}
    return result.output if isinstance(result.output, str) else json.dumps(result.output, ensure_ascii=False)


def _decisions(record: RunState, events: Sequence[Mapping[str, Any]], numbers: Mapping[str, str]) -> dict[str, Any]:
    """Return decisions by subject if all decisions on it are equal, else by the id of the call in the script."""
    by_subject: dict[str, dict[str, Any]] = {}
    for event in events:
        if event["event"] == "confirm_required" and (decision := record.decisions.get(event["id"])) is not None:
            asked = event["id"]
            call = next((key for key in numbers if asked == key or asked.startswith((f"{key}~", f"{key}?"))), "")
            number = numbers[call] + asked.removeprefix(call) if call else asked
            by_subject.setdefault(subject_of(event["kind"], event["tool"]), {})[number] = _decision(decision)
    found: dict[str, Any] = {}
    for subject, own in by_subject.items():
        values = [*own.values()]
        found |= {subject: values[0]} if all(value == values[0] for value in values) else own
    return found


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


# --- expectations


def _expected(record: RunState, events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    started: dict[tuple[str, ...], str] = {}
    confirmation_id: dict[str, None] = {}
    denied: dict[str, None] = {}
    for event in events:
        match event:
            case {"event": "tool_call", "status": "running", "id": call, "tool": tool}:
                started.setdefault((*event.get("path", ()), call), tool)
            case {"event": "tool_result", "status": status, "tool": tool} if status in REFUSED_STATUSES:
                denied[tool] = None
            case {"event": "confirm_required", "kind": kind} if kind != "question":  # stubs ask nothing
                confirmation_id[subject_of(kind, event["tool"])] = None
    expected: dict[str, Any] = {"called_exactly": list(started.values())}
    expected |= {key: list(found) for key, found in (("asked", confirmation_id), ("denied", denied)) if found}
    if record.output and record.status == "completed":
        expected["output"] = record.output[:_OUTPUT_CHARS]
    expected["status"] = record.status
    if record.status == "stopped":
        expected["finish_reason"] = record.finish_reason
    return expected


def _calls(record: RunState) -> Iterator[tuple[str, CallRecord]]:
    """Yield all calls with their ids, those of a sub-run after the call that started it."""
    for call in record.calls.values():
        yield "/".join((*record.path, call.call.id)), call
        if call.call.id in record.children:
            yield from _calls(record.children[call.call.id])
    for key, child in record.children.items():
        if key not in record.calls:
            yield from _calls(child)
