"""How a run is drawn: what becomes output, in which order, and what the lines below it show."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from typing import Any

from framework.cli.run_view import TAIL_LINES, TREE_LINES, RunStatus, RunView
from framework.types.events import (
    ContentReceived,
    Event,
    PlanProposed,
    Routed,
    RunFinished,
    Thought,
    ToolFinished,
    ToolRequested,
    ToolStarted,
    Warned,
)
from framework.types.plan import Plan, PlanChange
from tests.support.plans import draft, step
from tests.support.screens import without_styles

HEAD: dict[str, Any] = {"run_id": "r", "seq": 1, "generation": 1}
ROUTED = Routed(**HEAD, agent="one", reason="named", confidence=1)


class Recorded:
    """A live area that records what it shows."""

    def __init__(self, columns: int = 80) -> None:
        self.size = os.terminal_size((columns, 24))
        self.written = ""
        self.lines: Sequence[str] = ()
        self.drawn: list[Sequence[str]] = []

    def draw(self, lines: Sequence[str]) -> None:
        self.lines = lines
        self.drawn.append(lines)

    def write(self, text: str) -> None:
        self.written += without_styles(text)


def text(part: str, message: str = "m", **head: Any) -> ContentReceived:
    return ContentReceived(**HEAD | {"seq": 0} | head, message_id=message, text=part)


def called(tool: str, call: str = "c1", **head: Any) -> list[Event]:
    return [
        ToolRequested(**HEAD | head, id=call, tool=tool, arguments={"a": 1}),
        ToolStarted(**HEAD | head, id=call, tool=tool, arguments={"a": 1}),
        ToolFinished(**HEAD | head, id=call, tool=tool, status="success", result="done", elapsed_ms=1),
    ]


def finished(output: str) -> RunFinished:
    return RunFinished(**HEAD, status="completed", finish_reason="final", output=output, message_id="m")


def shown(*events: Event, columns: int = 80, shows_answer: bool = True) -> Recorded:
    """Return the area after a run with these events."""

    async def show() -> Recorded:
        area = Recorded(columns)
        view = RunView(area, shows_answer=shows_answer)
        for event in events:
            view.show(event)
        view.close()
        return area

    return asyncio.run(show())


def test_text_calls_and_the_answer_appear_in_order_and_once() -> None:
    area = shown(
        ROUTED,
        text("Let me look.", "m1"),
        Thought(**HEAD, message_id="m1", text="Let me look.", reasoning_chars=0),
        *called("find"),
        text("It is **here**.", "m2"),
        finished("It is **here**."),
    )
    assert area.written.splitlines() == [
        "● one (named; generation 1)",
        "",
        "Let me look.",
        "",
        "✓ find a=1  1 ms",
        "└── done",
        "",
        "It is here.",
    ]
    assert area.lines == ()


def test_text_is_drawn_with_the_event_that_brings_it() -> None:
    async def first_drawing() -> Sequence[str]:
        area = Recorded()
        view = RunView(area)
        view.show(ROUTED)
        await asyncio.sleep(0.1)  # longer than a frame: a pause of the model
        view.show(text("Hel"))
        lines = area.lines
        view.close()
        return lines

    assert any("Hel" in line for line in asyncio.run(first_drawing()))


def test_an_answer_that_a_hook_changed_is_shown_below_the_text() -> None:
    assert shown(text("secret"), finished("withheld")).written == "secret\n\nwithheld\n"
    assert shown(finished("whole")).written == "whole\n"
    assert shown(text("same"), finished("same")).written == "same\n"


def test_text_of_a_failed_attempt_is_void() -> None:
    warning = Warned(**HEAD, code="model_retry", message="retrying", message_id="m1")
    area = shown(text("wro", "m1"), warning, text("right", "m2"), finished("right"))
    assert "wro" not in area.written
    assert area.written.splitlines() == ["! retrying", "", "right"]


def test_an_answer_printed_elsewhere_is_not_shown() -> None:
    area = shown(ROUTED, text("answer"), finished("answer"), shows_answer=False)
    assert "answer" not in area.written
    assert area.written == "● one (named; generation 1)\n"


def test_text_of_sub_agents_is_not_the_answer() -> None:
    assert "sub" not in shown(ROUTED, text("sub", path=("c1",)), finished("")).written


def test_text_waits_for_the_call_above_it() -> None:
    requested, started, ended = called("slow")
    answer = "Early.\n\nLate.\n\nLast."
    area = shown(ROUTED, requested, started, text(answer), ended, finished(answer))
    assert area.written.index("✓ slow") < area.written.index("Early.")
    assert area.written.count("slow") == 1


def test_a_long_tree_continues_in_a_new_one_and_nothing_is_lost() -> None:
    calls = [event for number in range(100) for event in called(f"tool{number}", f"c{number}")]
    area = shown(ROUTED, *calls, finished(""))
    assert all(area.written.count(f"✓ tool{number} ") == 1 for number in range(100))
    assert max(map(len, area.drawn)) <= 24, "the lines fit the terminal"
    assert TREE_LINES > 24


def test_a_long_block_shows_its_end() -> None:
    async def drawing() -> Sequence[str]:
        area = Recorded()
        view = RunView(area)
        for number in range(60):
            view.show(text(f"- item {number}\n"))
        while not any("item 59" in line for line in area.lines):  # noqa: ASYNC110 - a timer draws it
            await asyncio.sleep(0)
        lines = [without_styles(line) for line in area.lines]
        view.close()
        return lines

    assert len(asyncio.run(drawing())) <= TAIL_LINES + 3


def test_a_narrow_terminal_gets_no_wider_line() -> None:
    area = shown(ROUTED, *called("a_tool_with_a_long_name"), text("word " * 40), finished("word " * 40), columns=40)
    assert max(map(len, area.written.splitlines())) <= 40
    assert max(len(without_styles(line)) for lines in area.drawn for line in lines) <= 40


def test_a_long_text_that_arrives_at_once_is_complete() -> None:
    words = [f"word{number}" for number in range(2000)]
    assert shown(finished("\n\n".join(words))).written.split() == words


# --- the status line


def status(*events: Event, columns: int = 80, tokens: int = 0, cost: float = 0.0) -> str:
    line = RunStatus()
    for event in events:
        line.note(event)
    line.count(tokens, cost)
    return without_styles(line.line(columns))


def test_the_status_line_names_agent_step_usage_and_the_way_out() -> None:
    shown = re.sub(r"\d+ s", "0 s", status(ROUTED, tokens=1203, cost=0.0012))  # a stalled machine counts seconds
    assert shown[2:] == "one · waiting for the model · 0 s · 1,203 tokens · $0.0012 · Ctrl-C cancels"
    assert "thinking" in status(ROUTED, Thought(**HEAD, message_id="m", text="hm"))
    assert "writing" in status(ROUTED, text("x" * 40))


def test_the_status_line_shows_open_calls_and_progress() -> None:
    half = ToolStarted(**HEAD, id="c1", tool="copy", arguments={}, progress=0.5)
    other = ToolStarted(**HEAD, id="c2", tool="find", arguments={})
    assert "copy 50%" in status(ROUTED, half)
    assert "find (+1)" in status(ROUTED, half, other)
    assert "waiting for the model" in status(ROUTED, *called("copy"))


def test_the_status_line_fits_and_escapes() -> None:
    evil = ToolStarted(**HEAD, id="c1", tool="\x1b[2J" + "x" * 99, arguments={})
    for columns in (20, 40, 80):
        assert len(status(ROUTED, evil, columns=columns)) <= columns
        assert "\x1b" not in status(ROUTED, evil, columns=columns)


def test_the_items_of_a_loop_stand_before_it_and_a_removed_step_where_it_was() -> None:
    def plan(*names: str, **changed: str) -> PlanProposed:
        steps = Plan.from_draft(draft(*map(step, names))).steps
        changes = tuple(
            PlanChange.model_validate({"kind": kind, "id": name, "description": name}) for name, kind in changed.items()
        )
        return PlanProposed(**HEAD, revision=1, goal="g", hash="h", steps=steps, changes=changes)

    area = shown(ROUTED, plan("a", "b", "c"), plan("a", "c", b="removed"), plan("a", "c1", "c"), finished("x"))
    names = re.findall(r"(?:├──|└──) \S (\S+)", area.written)
    assert names == ["a", "b", "c1", "c"]
