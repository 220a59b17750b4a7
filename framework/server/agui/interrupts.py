"""Confirmations as AG-UI interrupts, and the client's answers as decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ag_ui.core import Interrupt, ResumeEntry
from pydantic import TypeAdapter, ValidationError

from framework.server.agui.ids import call_id_of, interrupt_id, subagent_id
from framework.server.wording import confirmation_text
from framework.types.errors import RequestError
from framework.types.plan import PlanDraft
from framework.types.state import (
    CONFIRMATION_KINDS,
    Approve,
    Confirmation,
    ConfirmationKind,
    Decision,
    Edit,
    Reject,
    Respond,
)

_ABANDONED = "the user closed the question without an answer"
_DECISION: TypeAdapter[Decision] = TypeAdapter(Decision)
_REASONS: Mapping[str, str] = {"approval": "confirmation", "an answer": "input_required", "a choice": "input_required"}
"""AG-UI's reasons by what a confirmation awaits. An approval of a tool call has a reason of its own."""
_PAYLOADS = {
    "approval": 'send {"approved": true}, optionally with "editedArgs", or {"approved": false, "reason": TEXT}',
    "answer": 'send {"answer": TEXT}',
}


class InvalidResume(RequestError):
    """The `resume` of an AG-UI request does not answer what the paused run waits for. The message says how to."""

    code = "invalid_resume"


def interrupt_of(
    run_id: str, asked: Confirmation, calls: Iterable[str], parameters: Mapping[str, Any] | None = None, url: str = ""
) -> Interrupt:
    """Return a confirmation as an interrupt.

    Args:
        run_id: the run that waits for it.
        asked: the confirmation.
        calls: AG-UI ids of the calls of the run.
        parameters: JSON Schema of the tool's arguments, if known, with which clients build a form for edits.
        url: where people decide, if their client shows no form.
    """
    is_approval = not CONFIRMATION_KINDS[asked.kind].is_question
    return Interrupt(
        id=interrupt_id(run_id, asked.id),
        reason="tool_call" if asked.kind == "tool" else _REASONS[CONFIRMATION_KINDS[asked.kind].awaits],
        message=confirmation_text(asked),
        tool_call_id=call_id_of(run_id, asked, calls),
        response_schema=_approval_schema(asked, parameters) if is_approval else _answer_schema(asked),
        expires_at=asked.expires_at.isoformat() if asked.expires_at else None,
        subagent_run_id=subagent_id(run_id, _path(asked)),
        metadata={"agentsd": {**asked.model_dump(mode="json", exclude_none=True), **({"url": url} if url else {})}},
    )


def _path(asked: Confirmation) -> tuple[str, ...]:
    """Return the path of the sub-run that asks."""
    return tuple(asked.id.split("/")[:-1])


def _approval_schema(asked: Confirmation, parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    edited = PlanDraft.model_json_schema() if asked.plan else dict(parameters or {"type": "object"})
    description = "The complete arguments to use instead." if not asked.plan else "The complete plan to use instead."
    return {
        "type": "object",
        "properties": {
            "approved": {"type": "boolean"},
            "editedArgs": {**edited, "description": description},
            "reason": {"type": "string", "description": "Why it is rejected; the model reads it."},
        },
        "required": ["approved"],
    }


def _answer_schema(asked: Confirmation) -> dict[str, Any]:
    answer: dict[str, Any] = {"type": "string", **({"enum": list(asked.choices)} if asked.choices else {})}
    return {"type": "object", "properties": {"answer": answer}, "required": ["answer"]}


def decisions_of(
    resume: Sequence[ResumeEntry], pending: Sequence[Confirmation], expired: frozenset[str] = frozenset()
) -> dict[str, Decision]:
    """Return the client's answers as decisions by confirmation id.

    Args:
        resume: the answers; their ids have been checked to belong to the run.
        pending: the confirmations that the run waits for.
        expired: ids of those that have expired. A client may only abandon them; the run rejects them itself.

    Raises:
        InvalidResume: an answer is missing, doubled, or does not fit its confirmation.
    """
    by_id = {asked.id: asked for asked in pending}
    answers = {entry.interrupt_id.partition("/")[2]: entry for entry in resume}
    if len(answers) < len(resume):
        raise InvalidResume("resume: an interrupt is answered twice; answer each once")
    if unknown := [key for key in answers if key not in by_id]:
        raise InvalidResume(f"resume: the run does not wait for {unknown[0]!r}; it waits for: {', '.join(by_id)}")
    if missing := [key for key in by_id if key not in answers]:
        raise InvalidResume(f"resume: no answer for {missing[0]!r}; answer all interrupts of the run at once")
    abandoned = {key for key, entry in answers.items() if entry.status == "cancelled" and key in expired}
    return {key: decision_of(entry, by_id[key].kind) for key, entry in answers.items() if key not in abandoned}


def decision_of(entry: ResumeEntry, kind: ConfirmationKind) -> Decision:
    """Return the decision that an answer makes; raises InvalidResume if its payload does not fit."""
    if entry.status == "cancelled":
        return Reject(reason=_ABANDONED)
    payload = entry.payload
    if isinstance(payload, dict) and "type" in payload:  # a decision as the routes of runs accept it
        try:
            return _DECISION.validate_python(payload)
        except ValidationError as error:
            what = error.errors(include_url=False, include_input=False)[0]
            raise InvalidResume(f"resume: payload of {entry.interrupt_id}: {what['msg']}") from None
    decision = _answer(payload) if CONFIRMATION_KINDS[kind].is_question else _approval(payload)
    if decision is None:
        expected = _PAYLOADS["answer" if CONFIRMATION_KINDS[kind].is_question else "approval"]
        raise InvalidResume(f"resume: the payload of {entry.interrupt_id} is not an answer to it; {expected}")
    return decision


def _answer(payload: object) -> Decision | None:
    match payload:
        case str(text) | {"answer": str(text)}:
            return Respond(text=text)
        case {"approved": False, **rest}:
            return Reject(reason=str(rest.get("reason") or ""))
    return None


def _approval(payload: object) -> Decision | None:
    match payload:
        case True | {"approved": True, "editedArgs": None}:
            return Approve()
        case {"approved": True, "editedArgs": dict(arguments)}:
            return Edit(arguments=arguments)
        case {"approved": True, **rest} if "editedArgs" not in rest:
            return Approve()
        case False:
            return Reject()
        case {"approved": False, **rest}:
            return Reject(reason=str(rest.get("reason") or ""))
    return None
