"""Events survive their JSON form: `read_event` returns what `wire` wrote."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from framework.types import events
from framework.types.messages import Usage
from framework.types.plan import PlanChange, PlanStep, TodoItem

HEAD: dict[str, Any] = {"run_id": "run_1", "seq": 3, "generation": 2, "path": ("call_1",)}
NOW = datetime(2026, 1, 1, tzinfo=UTC)
STEP = PlanStep(id="a", description="Look.")
ADDED = PlanChange(kind="added", id="a", description="Look.")
EVENTS: tuple[events.Event, ...] = (
    events.Routed(**HEAD, agent="a", reason="the only agent", confidence=1.0),
    events.HandedOff(**HEAD, agent="b", origin="a"),
    events.GrantUsed(
        **HEAD, id="1", confirmation_id="1", tool="t", grant="g", covers="t", origin="ann", rule="ask t (a.yaml:1)"
    ),
    events.Thought(**HEAD, message_id="m1", text="Hm."),
    events.ContentReceived(**HEAD, message_id="m1", text="Grüße 👋"),
    events.ToolRequested(**HEAD, id="c", tool="t", arguments={"a": None, "b": [{"c": None}]}),
    events.ToolStarted(**HEAD, id="c", tool="t", arguments={}, progress=0.5, message="half"),
    events.ToolFinished(**HEAD, id="c", tool="t", status="error", result="", error="no", elapsed_ms=1.5),
    events.Warned(**HEAD, code="context", message="80 %"),
    events.PlanProposed(**HEAD, revision=1, goal="g", hash="h", steps=(STEP,), changes=(ADDED,)),
    events.PlanStepChanged(**HEAD, id="a", description="Look.", status="done", result="seen"),
    events.TodoChanged(**HEAD, items=(TodoItem(id="1", task="Look.", created_at=NOW),)),
    events.ConfirmationRequested(
        **HEAD,
        id="c",
        kind="tool",
        agent="a",
        tool="t",
        arguments={},
        hash="h",
        reason="",
        rule="r",
        risk="high",
        expires_at=NOW,
    ),
    events.RunFailed(**HEAD, code="model_error", message="gone", retryable=True),
    events.RunPaused(**HEAD, finish_reason="confirmation", output="", usage=Usage(total_tokens=3)),
    events.RunFinished(**HEAD, status="completed", finish_reason="final", output="done"),
)


def test_there_is_an_example_of_every_event() -> None:
    assert {type(event) for event in EVENTS} == set(get_args(events.Event))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_is_read_as_it_was_written(event: events.Event) -> None:
    read = events.read_event(json.loads(json.dumps(events.wire(event))))
    assert (type(read), read) == (type(event), event)


def test_a_pause_is_the_end_of_a_stream_but_not_of_a_run() -> None:
    pause = events.RunPaused(**HEAD, finish_reason="confirmation", output="")
    assert (events.wire(pause)["event"], events.wire(pause)["status"]) == ("done", "paused")
    assert isinstance(pause, events.StreamEnd)
    assert not isinstance(pause, events.RunFinished)
    with pytest.raises(ValidationError):
        events.RunFinished.model_validate({**pause.model_dump(), "status": "paused"})


def test_keys_of_a_newer_version_are_ignored() -> None:
    assert events.read_event({**events.wire(EVENTS[0]), "added_later": 1}) == EVENTS[0]


@pytest.mark.parametrize("data", [{}, {"event": "unheard_of"}, {"event": "config_reloaded", "generation": 1}])
def test_data_that_is_no_event_of_a_run_is_rejected(data: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"not an event of a run: .*; known: confirm_required, content, done"):
        events.read_event(data)
