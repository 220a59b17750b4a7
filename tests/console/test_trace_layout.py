"""The layout of a run's spans on a time line: parts, rows and rulers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import cases
from tests.support.node_modules import call

MODULE = "widgets/trace-layout.js"
MS = 1_000_000
NAMES = ("invoke_workflow a", "invoke_agent a", "agent.step 1", "chat gpt", "execute_tool find", "plan a", "other")


def span(name: str, key: str, start: float, length: float, parent: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a span that begins `start` milliseconds after the epoch."""
    times = {"start_ns": int(start * MS), "end_ns": int((start + length) * MS)}
    return {"name": name, "span_id": key, "parent_id": parent, **times, "attributes": {}, "error": None, **more}


def layout(*spans: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = call(MODULE, "layout", list(spans))
    return found


def rows_of(part: dict[str, Any], *names: str) -> list[Any]:
    return [tuple(row[name] for name in names) for row in part["rows"]]


def model_call(key: str, start: float, parent: str, used: int, cost: float) -> dict[str, Any]:
    attributes = {"gen_ai.usage.input_tokens": used, "gen_ai.usage.output_tokens": 1, "agentsd.model.cost_usd": cost}
    return span("chat gpt", key, start, 10, parent, attributes=attributes)


def test_rows_are_nested_in_the_order_they_began_with_sums_of_tokens_and_cost() -> None:
    (part,) = layout(
        model_call("m2", 40, "s", 20, 0.25),
        span("invoke_workflow a", "run", 0, 100),
        span("agent.step 3", "s", 10, 50, "run"),
        model_call("m1", 20, "s", 10, 0.5),
        span("execute_tool find", "t", 35, 5, "s"),
    )
    assert rows_of(part, "label", "level", "parent", "start", "length") == [
        ("run › a", 1, None, 0, 100),
        ("step 3", 2, "run", 10, 50),
        ("gpt", 3, "s", 20, 10),
        ("find", 3, "s", 35, 5),
        ("gpt", 3, "s", 40, 10),
    ]
    assert rows_of(part, "kind", "used", "cost") == [
        ("run", [30, 2], 0.75),
        ("agent", [30, 2], 0.75),
        ("model", [10, 1], 0.5),
        ("tool", None, 0),
        ("model", [20, 1], 0.25),
    ]
    assert (part["length"], part["open"], part["ticks"]) == (100, False, [0, 20, 40, 60, 80])


def test_a_resume_begins_a_part_and_calls_in_progress_are_at_the_top_level() -> None:
    waiting = {"agentsd.tool.outcome": "waiting"}
    first, second, third = layout(
        span("invoke_workflow a", "r1", 0, 100),
        span("execute_tool pay", "p1", 90, 1, "r1", attributes=waiting),
        span("invoke_workflow a", "r2", 5_000, 200),
        span("execute_tool pay", "p2", 5_010, 20, "r2", attributes={"agentsd.tool.outcome": "rejected"}),
        span("chat gpt", "c", 9_000, 50, "not ended yet"),
        span("execute_tool find", "f", 9_060, 500, "not ended yet", error="timeout"),
    )
    assert [part["start"] for part in (first, second, third)] == [0, 5_000, 9_000]
    assert rows_of(first, "kind", "word")[1] == ("human", "waits")
    assert rows_of(second, "kind", "word")[1] == ("tool", "rejected")
    assert rows_of(third, "level", "word", "failed") == [(1, "", False), (1, "timeout", True)]
    assert [part["open"] for part in (first, second, third)] == [False, False, True]


def test_the_times_of_calls_replace_spans_that_are_not_stored() -> None:
    entry = {"agent": "a", "call_id": "c1", "elapsed_ms": 250, "timestamp": "2026-11-23T10:00:01Z", "error": "no"}
    tool = {"type": "tool", "tool": "find", "args": {}}
    calls = call(MODULE, "spansOfCalls", [{**entry, "action": tool}, {**entry, "action": {"type": "final"}}])
    (part,) = layout(*calls)
    assert rows_of(part, "label", "length", "failed") == [("find", pytest.approx(250, abs=0.01), True)]
    assert part["rows"][0]["span"]["attributes"]["gen_ai.tool.call.id"] == "c1"


@pytest.mark.parametrize("folded", [[], ["s"], ["run"], ["run", "s"]])
def test_rows_below_a_folded_one_are_not_shown(folded: list[str]) -> None:
    (part,) = layout(
        span("invoke_workflow a", "run", 0, 9), span("agent.step 1", "s", 1, 5, "run"), model_call("m", 2, "s", 1, 0)
    )
    shown = [row["key"] for row in call(MODULE, "unfolded", part["rows"], folded)]
    assert shown == ["run", *(["s"] if "run" not in folded else []), *(["m"] if not folded else [])]


@st.composite
def spans(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Return spans with any times, names and parents, also missing ones and each other's."""
    keys = [str(number) for number in range(draw(st.integers(1, 12)))]
    times = st.floats(0, 1e6, allow_nan=False)
    parents = st.one_of(st.none(), st.sampled_from([*keys, "missing"]))
    return [span(draw(st.sampled_from(NAMES)), key, draw(times), draw(times), draw(parents)) for key in keys]


@cases(60)
@given(found=spans())
def test_any_spans_are_laid_out_within_their_part(found: list[dict[str, Any]]) -> None:
    seen: set[str] = set()
    for number, part in enumerate(layout(*found), 1):
        assert part["number"] == number
        assert part["length"] > 0
        levels = {None: 0}
        for row in part["rows"]:
            assert row["key"] not in seen, "each span is in one row"
            seen.add(row["key"])
            assert row["level"] == levels[row["parent"]] + 1, "parents come before their children"
            levels[row["key"]] = row["level"]
            assert row["start"] + row["length"] <= part["length"] * 1.000001
    roots = {one["span_id"] for one in found if one["parent_id"] in (None, "missing")}
    assert roots <= seen


@cases(60)
@given(length=st.floats(1e-3, 1e12, allow_nan=False))
def test_a_ruler_has_a_few_round_numbers(length: float) -> None:
    found = call(MODULE, "ticks", length)
    assert found[0] == 0
    assert 3 <= len(found) <= 6
    assert all(before < after for before, after in pairwise(found))
    assert found[-1] < length
    step = f"{found[1]:.0e}"
    assert step[0] in "125", found
