"""The facts that the tests and the demo of fleets rely on: each broken promise is found in the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.scale_demo.facts import Death, Facts, find_facts, hand_overs, starts, take_overs
from examples.scale_demo.log import Entry, Log, read_log
from examples.scale_demo.results import percentile


def entries(*lines: str) -> list[Entry]:
    """Return entries, one a second: `a c1.2 0 begin` is process a, run, step."""
    found = []
    for at, line in enumerate(lines):
        process, run, step, what = line.split()
        conversation, _, turn = run.rpartition(".")
        found.append(Entry(at, what, conversation, int(turn), int(step), process))  # type: ignore[arg-type]
    return found


def facts(*lines: str) -> Facts:
    return find_facts(entries(*lines))


WHOLE = ("a c.1 0 asked", "a c.1 0 begin", "a c.1 0 end", "a c.1 1 asked", "a c.1 1 answered")


def test_a_run_that_does_each_step_once_breaks_no_promise() -> None:
    assert facts(*WHOLE) == Facts(answered=1, repeated=(), interrupted=0, overlaps=(), disordered=())


def test_a_step_that_was_interrupted_may_begin_again_and_a_finished_one_may_not() -> None:
    assert facts("a c.1 0 asked", "a c.1 0 begin", "b c.1 0 begin", "b c.1 1 asked") == Facts(0, (), 1, (), ())
    assert facts(*WHOLE, "b c.1 0 begin").repeated == ("c.1 step 0",)


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(("a c.1 0 asked", "b c.2 0 asked", "a c.1 0 begin"), id="two runs of a conversation"),
        pytest.param(("a c.1 0 asked", "b c.1 0 asked", "a c.1 0 begin"), id="a run in two processes"),
    ],
)
def test_overlaps_are_found(lines: tuple[str, ...]) -> None:
    assert len(facts(*lines).overlaps) == 1


def test_conversations_out_of_order_are_found() -> None:
    assert facts("a c.2 0 asked", "a c.1 0 asked", "a d.1 0 asked", "b d.2 0 asked").disordered == ("c",)


def test_times_between_runs_and_processes() -> None:
    log = entries("a c.1 0 asked", "a c.1 0 answered", "a c.2 0 asked", "a c.3 0 asked", "b c.3 0 asked")
    assert hand_overs(log, {"c.2": 0, "c.3": 1}) == [1], "turn 2 waited for turn 1; turn 2 has not ended"
    assert starts(log, {"c.1": -1, "c.4": 0}) == [1]
    assert take_overs(log, Death("a", 3.5)) == [0.5]
    assert take_overs(log, Death("b", 0.5)) == []
    assert percentile([3, 1, 2, 4], 0.5) == 2
    assert percentile([3, 1, 2, 4], 0.99) == 4


def test_the_log_is_read_in_the_order_of_its_times_without_the_line_that_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Log(path)
    log.add("begin", "a.b.2", 3, "w#1")
    log.close()
    with path.open("a") as file:
        file.write('[0.5, "asked", "a.b.2", 3, "w#1"]\n[1')
    assert [(entry.what, entry.run, entry.step) for entry in read_log(path)] == [
        ("asked", "a.b.2", 3),
        ("begin", "a.b.2", 3),
    ]
