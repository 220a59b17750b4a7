"""The texts of a run arrive once, whether as deltas or whole, and each status has its ending."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.server.openai_answer import AnswerReader, AnswerText, Ending, ending_of
from framework.types.events import ContentReceived, Event, RunFinished, Thought, ToolStarted
from framework.types.messages import Usage
from framework.types.plan import Plan
from framework.types.report import ErrorInfo, LimitUse
from framework.types.state import Confirmation, RunResult
from tests.support.cases import cases

HEAD: dict[str, Any] = {"run_id": "run_1", "generation": 1}
URL = "http://127.0.0.1:8321/agent/runs/run_1"


def content(text: str, seq: int = 0, message_id: str = "m1", **fields: Any) -> ContentReceived:
    return ContentReceived(**HEAD, seq=seq, message_id=message_id, text=text, **fields)


def thought(text: str, seq: int = 0, message_id: str = "m1") -> Thought:
    return Thought(**HEAD, seq=seq, message_id=message_id, text=text)


def read(*events: Event, ending: Ending | None = None, message_id: str | None = None, **options: Any) -> list[str]:
    reader = AnswerReader(**options)
    pieces = [piece for event in events for piece in reader.read(event)]
    pieces += reader.end(ending, message_id) if ending else ()
    return [f"{piece.kind} {piece.message_id} {piece.text}" for piece in pieces]


def result(status: str, **fields: Any) -> RunResult:
    head = {"run_id": "run_1", "agent": "one", "generation": 1, "digest": "d", "steps": 1, "messages": ()}
    return RunResult.model_validate({**head, "status": status, "finish_reason": "final", "output": "", **fields})


def test_text_that_arrived_in_deltas_is_not_repeated() -> None:
    assert read(content("a"), content("b"), content("ab", 3)) == ["content m1 a", "content m1 b"]
    assert read(thought("a"), thought("a", 2), content("b", 3)) == ["reasoning m1 a", "content m1 b"]
    assert read(content("whole", 3)) == ["content m1 whole"]
    assert read(thought("let me look", 2)) == ["reasoning m1 let me look"]
    # The thought of a message with tool calls repeats the text that was streamed.
    assert read(content("let me look"), thought("hm\nlet me look", 2)) == ["content m1 let me look"]
    assert read(content("a"), content("b", message_id="m2")) == ["content m1 a", "content m2 b"]


def test_sub_runs_and_other_events_have_no_text() -> None:
    started = ToolStarted(**HEAD, seq=2, id="c1", tool="look", arguments={})
    assert read(content("inner", path=("agent.b",)), started) == []


def test_the_end_adds_what_has_not_arrived() -> None:
    done = Ending("ab", "stop", Usage())
    assert read(content("ab"), ending=done, message_id="m1") == ["content m1 ab"]
    assert read(ending=done, message_id="m1") == ["content m1 ab"]
    assert read(content("void"), ending=done, message_id="m2") == ["content m1 void", "content m2 ab"]
    question = Ending("which?", "stop", Usage(), is_question=True)
    assert read(content("ab"), ending=question, message_id="m1") == ["content m1 ab", "content question which?"]
    assert read(ending=Ending("", None, Usage(), error_code="x"), message_id="m1") == []


def test_data_arrives_only_whole() -> None:
    done = Ending('{"a": 1}', "stop", Usage())
    events = (thought("hm"), content('{"a"'), content('{"a": 1}', 3))
    assert read(*events, ending=done, message_id="m1", as_data=True) == ["reasoning m1 hm", 'content m1 {"a": 1}']


@cases(100)
@given(pieces=st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=6), begin=st.integers(0, 6))
def test_the_pieces_of_a_message_are_its_text_wherever_a_reader_joins(pieces: list[str], begin: int) -> None:
    text, so_far = "".join(pieces), "".join(pieces[:begin])
    deltas = [content(piece) for piece in ([so_far] if so_far else []) + pieces[begin:]]
    reader = AnswerReader()
    finished = Ending(text, "stop", Usage())
    for events in (deltas, [*deltas, content(text, 5)], [content(text, 5)]):
        reader = AnswerReader()
        found = [piece for event in events for piece in reader.read(event)] + list(reader.end(finished, "m1"))
        assert "".join(piece.text for piece in found) == text


@pytest.mark.parametrize(
    ("given_result", "text", "finish_reason"),
    [
        (result("completed", output="yes"), "yes", "stop"),
        (result("completed", output="cut", truncated=True), "cut", "length"),
        (result("stopped", finish_reason="max_steps", output="so far"), "so far", "length"),
        (
            result("stopped", finish_reason="max_steps",
                   stopped_by=LimitUse(limit="max_steps", used=3, allowed=3, place="agents.d/one.yaml:7")),
            "[max_steps reached: 3 of 3 (set at agents.d/one.yaml:7)]",
            "length",
        ),
        (result("stopped", finish_reason="refused", output="not that"), "not that", "content_filter"),
    ],
)  # fmt: skip
def test_each_status_has_its_finish_reason(given_result: RunResult, text: str, finish_reason: str) -> None:
    ending = ending_of(given_result, URL)
    assert (ending.text, ending.finish_reason, ending.is_question) == (text, finish_reason, False)


def test_a_schema_makes_the_data_the_answer() -> None:
    completed = result("completed", output="It is Rome.", data={"city": "Röm"})
    assert json.loads(ending_of(completed, URL, as_data=True).text) == {"city": "Röm"}
    assert ending_of(completed, URL).text == "It is Rome."


def test_failed_and_cancelled_runs_are_errors_that_name_the_run_and_mask_secrets() -> None:
    error = ErrorInfo(code="model_error", message="key sk-abcdefghijklmnopqrstuvwxyz123456 is wrong")
    failed = ending_of(result("failed", finish_reason="model_error", error=error), URL)
    assert (failed.finish_reason, failed.error_code) == (None, "model_error")
    assert failed.error_message.endswith(f"(run run_1: {URL})")
    assert "sk-abc" not in failed.error_message
    cancelled = ending_of(result("cancelled", finish_reason="cancelled"), URL)
    assert (cancelled.finish_reason, cancelled.error_code) == (None, "cancelled")
    assert cancelled.error_message.startswith("the run was cancelled")


def pending(**fields: Any) -> Confirmation:
    return Confirmation.model_validate({"id": "c1", "kind": "tool", "agent": "one", "hash": "h", **fields})


@pytest.mark.parametrize(
    ("confirmation", "words"),
    [
        (pending(tool="refund", arguments={"order": 5}, reason="it is over 50"),
         'one asks: may it call refund?\n  order: 5\n  (it is over 50, risk medium)'),
        (pending(tool="refund", arguments={"text": "x" * 5000}), "may it call refund?"),
        (pending(kind="ask_user", reason="Which size?", choices=("S", "M")), "one asks: Which size? (S / M)"),
        (pending(kind="plan", plan=Plan(goal="ship it", steps=())), "one asks: may it execute this plan? ship it"),
    ],
)  # fmt: skip
def test_a_pause_is_a_question_in_words_with_the_run_and_its_url(confirmation: Confirmation, words: str) -> None:
    ending = ending_of(result("paused", finish_reason="confirmation", pending=(confirmation,)), URL)
    assert (ending.finish_reason, ending.is_question) == ("stop", True)
    assert words in ending.text
    assert f"Run run_1 waits for it: {URL}" in ending.text
    assert len(ending.text) < 3000


def test_a_piece_names_its_kind_and_message() -> None:
    (piece,) = AnswerReader().read(content("a"))
    assert piece == AnswerText("content", "m1", "a")
    finished = RunFinished(**HEAD, seq=9, status="completed", finish_reason="final", output="a", message_id="m1")
    assert list(AnswerReader().read(finished)) == []
