"""Forms and addresses of tool servers, as the protocols pass them on."""

from __future__ import annotations

from typing import Any

import pytest
from ag_ui.core import ResumeEntry
from mcp.types import ElicitResult

from framework.server.agui import InvalidResume, decision_of, interrupt_of
from framework.server.mcp import decision_from, form_of
from framework.server.protocol_texts import confirmation_text
from framework.tools.form import checked_form
from framework.types.state import Approve, Confirmation, Decision, Reject, Respond

FORM = checked_form("", {"type": "object", "properties": {"seat": {"type": "string", "enum": ["w", "a"]}}})
ASKED: dict[str, Any] = {"id": "c?1", "kind": "elicitation", "agent": "a", "tool": "mcp.air.book", "hash": "h"}
SEAT = Confirmation(**ASKED, reason="Which seat?", rule="mcp.air asks", form=FORM, arguments={"flight": "LX1"})
PAY = Confirmation(**ASKED, reason="Pay first", rule="mcp.air asks", url="https://pay.xn--exmple-cua.com/7")


def test_a_form_is_passed_on_to_the_clients_of_the_mcp_server() -> None:
    form = form_of(SEAT)
    assert (form.requested_schema, "Which seat?" in form.message) == (FORM, True)
    accepted = ElicitResult(action="accept", content={"seat": "w"})
    assert decision_from(SEAT, accepted) == Respond(values={"seat": "w"})
    assert list(form_of(PAY).requested_schema["properties"]) == ["decision", "reason"]
    assert decision_from(PAY, ElicitResult(action="accept", content={"decision": "approve"})) == Approve()


@pytest.mark.parametrize(
    ("asked", "payload", "decision"),
    [
        (SEAT, {"values": {"seat": "w"}}, Respond(values={"seat": "w"})),
        (SEAT, {"approved": False, "reason": "no"}, Reject(reason="no")),
        (SEAT, {"answer": "w"}, None),
        (SEAT, "yes", None),
        (PAY, {"approved": True}, Approve()),
        (PAY, {"values": {}}, None),
    ],
)
def test_an_ag_ui_client_answers_a_form_with_values(
    asked: Confirmation, payload: Any, decision: Decision | None
) -> None:
    entry = ResumeEntry(interrupt_id="run/c?1", status="resolved", payload=payload)
    if decision is not None:
        assert decision_of(entry, asked) == decision
    else:
        with pytest.raises(InvalidResume):
            decision_of(entry, asked)


def test_an_ag_ui_client_gets_the_schema_of_the_form() -> None:
    assert interrupt_of("run", SEAT, []).response_schema == {
        "type": "object",
        "properties": {"values": FORM},
        "required": ["values"],
    }


def test_clients_that_show_text_get_the_fields_and_the_host() -> None:
    assert "seat (one of w, a)" in confirmation_text(SEAT)
    text = confirmation_text(PAY)
    assert "host  pay.xn--exmple-cua.com (it stands for a name with other letters" in text
    assert "(mcp.air asks; mcp.air.book)" in text


@pytest.mark.parametrize("data", [{}, {"text": "x", "values": {}}])
def test_a_response_is_a_text_or_values(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="write `text`, or `values`"):
        Respond.model_validate(data)


def test_a_response_keeps_its_form_when_it_is_stored() -> None:
    assert Respond(text="").model_dump() == {"type": "respond", "text": ""}
    stored = Respond(values={"seat": "w"}).model_dump(mode="json")
    assert Respond.model_validate(stored) == Respond(values={"seat": "w"})
