"""Confirmations as forms for elicitation, and what a person entered as decisions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp.types import ElicitRequestFormParams, ElicitResult

from framework.server.wording import confirmation_text
from framework.types.state import CONFIRMATION_KINDS, Approve, Confirmation, Decision, Edit, Reject, Respond

_MAX_EDITABLE_CHARS = 1000
"""Length of a text up to which a form has a field to edit it."""
_ARGUMENT = "argument."
"""Prefix of the fields for arguments, so that none has the name of another field."""
_TYPES: Mapping[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}
DECLINED = "declined by the user"


def form_of(asked: Confirmation, parameters: Mapping[str, Any] | None = None) -> ElicitRequestFormParams:
    """Return the form that asks a person for a decision.

    Args:
        asked: the confirmation.
        parameters: JSON Schema of the tool's arguments, if known: describes the fields of arguments.
    """
    message = confirmation_text(asked)
    if CONFIRMATION_KINDS[asked.kind].is_question:
        answer = {"type": "string", "title": "Answer", **({"enum": [*asked.choices]} if asked.choices else {})}
        return _form(message, {"answer": answer}, "answer")
    decision = {"type": "string", "title": "Decision", "enum": ["approve", "reject"]}
    reason = {"type": "string", "title": "Reason", "description": "Why it is rejected; the agent reads it."}
    fields = {"decision": decision, **_argument_fields(asked, parameters or {}), "reason": reason}
    return _form(message, fields, "decision")


def _form(message: str, fields: dict[str, Any], required: str) -> ElicitRequestFormParams:
    schema = {"type": "object", "properties": fields, "required": [required]}
    return ElicitRequestFormParams(message=message, requested_schema=schema)


def _argument_fields(asked: Confirmation, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields for the arguments that a form can contain: numbers, booleans and short texts."""
    schemas = parameters.get("properties", {})
    fields = {}
    for name, value in asked.arguments.items():
        kind = _TYPES.get(type(value))
        if kind is None or (kind == "string" and len(value) > _MAX_EDITABLE_CHARS):
            continue
        schema = schemas.get(name, {})
        field = {"type": kind, "title": name, "default": value}
        if isinstance(description := schema.get("description"), str):
            field["description"] = description
        if kind == "string" and value in (choices := schema.get("enum") or ()) and all(map(_is_text, choices)):
            field["enum"] = [*choices]
        fields[_ARGUMENT + name] = field
    return fields


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def decision_from(asked: Confirmation, result: ElicitResult) -> Decision | None:
    """Return the decision that a person made in a form; None if they made none, so that the run stays paused."""
    if result.action == "decline":
        return Reject(reason=DECLINED)
    if result.action == "cancel":
        return None
    match result.content or {}:
        case {"answer": str(text)} if CONFIRMATION_KINDS[asked.kind].is_question:
            return Respond(text=text)
        case {"decision": "reject", **rest}:
            return Reject(reason=str(rest.get("reason") or ""))
        case {"decision": "approve", **rest} if not CONFIRMATION_KINDS[asked.kind].is_question:
            return _approval(asked, rest)
    return None


def _approval(asked: Confirmation, entered: Mapping[str, Any]) -> Decision:
    given = ((name, value, entered.get(_ARGUMENT + name)) for name, value in asked.arguments.items())
    edited = {name: _like(value, new) for name, value, new in given if new is not None and new != value}
    return Edit(arguments={**asked.arguments, **edited}) if edited else Approve()


def _like(value: object, entered: Any) -> Any:
    """Return an entered number as an integer if the argument was one: clients may send 2 as 2.0."""
    return int(entered) if isinstance(value, int) and isinstance(entered, float) and entered.is_integer() else entered
