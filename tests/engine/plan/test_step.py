"""The steps of a plan: parameters, allowed tools, timeouts, concurrency, retries."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import Approve, Reject, ToolError, tool
from framework.config.agents.plan_steps import StepReference, invalid_references, references, resolve_references
from framework.engine.context.run_context import RateLimiter
from framework.store.types import RunRecord
from framework.testing import JsonStore, calls
from framework.tools.declaration import RateLimit
from framework.tools.tool import Tool
from framework.types.plan import PlanDraft, StepDraft
from framework.types.state import RunState
from tests.support.cases import cases
from tests.support.clocks import skip
from tests.support.plans import (
    Workshop,
    draft,
    model_step,
    plan_project,
    run_plan,
    run_plan_with_requests,
    step,
    step_results,
    tool_step,
)

HOSTILE = "{{ steps.a.output }} {% for x in y %}{{ 7 * 7 }}"


# --- references


class Shelf:
    """Tools that return data, and one that records its arguments."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def tools(self) -> list[Tool]:
        @tool(risk="low")
        def find(what: Any) -> Any:
            """Return the argument."""
            return what

        @tool(risk="low")
        def take(value: Any) -> str:
            """Record a value."""
            self.got.append(value)
            return "taken"

        return [find, take]


@pytest.mark.parametrize(
    ("found", "written", "taken"),
    [
        ([1, 2], "{{ steps.a.output }}", [1, 2]),
        ({"n": 5}, "{{steps.a.output.n}}", 5),
        ({"n": [{"m": None}]}, "{{ steps.a.output.n.0.m }}", None),
        (True, " {{ steps.a.output }} ", True),
        ([1, "ü"], "got {{ steps.a.output }}!", 'got [1, "ü"]!'),
        ("x", "{{ steps.a.output }}{{ steps.a.output }}", "xx"),
        ({"n": 1}, {"deep": ["{{ steps.a.output.n }}", "plain"]}, {"deep": [1, "plain"]}),
        (HOSTILE, "{{ steps.a.output }}", HOSTILE),
        (HOSTILE, "<{{ steps.a.output }}>", f"<{HOSTILE}>"),
    ],
)
def test_a_parameter_accepts_an_earlier_result_as_data(tmp_path: Path, found: Any, written: Any, taken: Any) -> None:
    shelf = Shelf()
    plan = draft(tool_step("a", "find", what=found), tool_step("b", "take", "a", value=written))
    if found == HOSTILE:  # in a parameter this would be a reference; in a result it is text
        plan = draft(tool_step("a", "find", what="x"), tool_step("b", "take", "a", value=written))

        @tool(risk="low", name="find")
        def hostile(what: str) -> str:
            """Return hostile text."""
            return HOSTILE + what[1:]

        tools = [hostile, shelf.tools()[1]]
    else:
        tools = shelf.tools()
    result, _, _ = run_plan_with_requests(plan_project(tmp_path), tools, plan, "done")
    assert result.status == "completed"
    assert shelf.got == [taken]
    assert result.steps == 2


def test_a_missing_part_of_a_result_fails_the_step_before_the_call(tmp_path: Path) -> None:
    shelf = Shelf()
    plan = draft(tool_step("a", "find", what={"n": 1}), tool_step("b", "take", "a", value="{{ steps.a.output.m }}"))
    result, _, seen = run_plan_with_requests(
        plan_project(tmp_path, plan="{on_failure: skip}"), shelf.tools(), plan, "done"
    )
    assert step_results(seen)["b"] == (
        "failed",
        "not called: the result of step a has no m: it is an object with n",
    )
    assert shelf.got == []
    assert [call.tool for call in result.tool_calls] == ["find"]


def test_the_answer_of_a_step_without_a_tool_can_be_referred_to(tmp_path: Path) -> None:
    shelf = Shelf()
    plan = draft(model_step("a"), tool_step("b", "take", "a", value="{{ steps.a.output }}"))
    run_plan_with_requests(plan_project(tmp_path), shelf.tools(), plan, "a thought", "done")
    assert shelf.got == ["a thought"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.just(HOSTILE),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@cases(200)
@given(VALUES)
def test_a_reference_is_replaced_by_the_exact_result_which_is_not_scanned_again(value: Any) -> None:
    assert resolve_references({"x": ["{{ steps.a.output }}"]}, lambda _: value) == {"x": [value]}


@cases(200)
@given(st.text("{}sop.ateu 1_", max_size=40))
def test_double_braces_are_a_reference_or_a_finding(text: str) -> None:
    wrapped = f"{{{{ steps.a.output }}}}{text}"
    found, wrong = list(references(wrapped)), list(invalid_references(wrapped))
    assert found[0] == StepReference("a")
    if not wrong:
        assert "{{" not in resolve_references(wrapped, lambda _: "")


# --- steps with only a goal


def test_a_step_may_use_the_tools_it_names_and_no_others(tmp_path: Path) -> None:
    shelf = Shelf()
    plan = draft(model_step("a", tools=["find"]))
    turns = plan, calls(("take", {"value": 1})), calls(("find", {"what": 2}), prefix="d"), "found", "done"
    result, requests, _ = run_plan_with_requests(plan_project(tmp_path), shelf.tools(), *turns)
    assert [definition.name for definition in requests[1].tools] == ["find"]
    assert shelf.got == []
    assert [(call.tool, call.status) for call in result.tool_calls] == [("take", "denied"), ("find", "success")]
    tool_results = [message.content for message in requests[2].messages if message.role == "tool"]
    assert "not among the tools of step a of the plan" in tool_results[0]


def test_a_step_gets_its_expected_result(tmp_path: Path) -> None:
    _, requests, _ = run_plan_with_requests(
        plan_project(tmp_path), [], draft(model_step("a", expected="one word")), "word", "done"
    )
    assert requests[1].messages[1].content == "think about a\n\nExpected result: one word"


def test_calls_outside_the_plans_approval_are_asked_about_again(tmp_path: Path) -> None:
    asked: list[str] = []

    @tool(risk="medium")
    def pay(amount: Any) -> str:
        """Pay."""
        asked.append(f"paid {amount}")
        return "paid"

    root = plan_project(tmp_path, plan="{approval: always}", skill_policy='{ask: [pay], allow: ["*"]}')
    plan = draft(
        tool_step("shown", "pay", amount=1),
        tool_step("later", "pay", "shown", amount="{{ steps.shown.output }}"),
        model_step("think", "later"),
    )
    turns = plan, calls(("pay", {"amount": 3})), "thought", "done"
    result, _, seen = run_plan_with_requests(root, [pay], *turns, decide={"plan": Approve(), "pay": Approve()})
    assert result.status == "completed"
    assert asked == ["paid 1", "paid paid", "paid 3"]
    confirmed = [(e["kind"], e["id"]) for e in seen if e["event"] == "confirm_required"]
    assert [kind for kind, _ in confirmed] == ["plan", "tool", "tool"]
    assert [key for kind, key in confirmed if kind == "tool"] == ["plan-1-later", "step-think/c1"]
    (shown,) = [e["preflight"]["steps"] for e in seen if e["event"] == "confirm_required" and e["kind"] == "plan"]
    assert [(s["id"], s["verdict"], s["waits_for"]) for s in shown] == [
        ("shown", "ask", []),
        ("later", "ask", ["shown"]),
        ("think", "open", []),
    ]


# --- timeouts and retries


def test_a_slow_step_delays_only_its_dependents(tmp_path: Path) -> None:
    log: list[str] = []
    last = asyncio.Event()

    @tool(risk="low")
    async def work(n: str) -> str:
        """Works."""
        log.append(f"+{n}")
        if n == "slow":
            await last.wait()
        if n == "third":
            last.set()
        log.append(f"-{n}")
        return n

    plan = draft(
        tool_step("slow", "work", n="slow"),
        tool_step("first", "work", n="first"),
        tool_step("second", "work", "first", n="second"),
        tool_step("third", "work", "second", n="third"),
    )
    result, _, _ = run_plan_with_requests(plan_project(tmp_path, plan="{max_parallel: 2}"), [work], plan, "done")
    assert result.status == "completed"
    assert log[0] == "+slow"
    assert log[-1] == "-slow", "a chain of steps finished while it was running"


def test_at_most_max_parallel_steps_run_concurrently(tmp_path: Path) -> None:
    running: list[int] = [0]
    most: list[int] = []

    @tool(risk="low")
    async def work(n: int) -> str:
        """Works."""
        running[0] += 1
        most.append(running[0])
        await asyncio.sleep(0)
        running[0] -= 1
        return str(n)

    plan = draft(*(tool_step(f"s{n}", "work", n=n) for n in range(7)))
    run_plan_with_requests(plan_project(tmp_path, plan="{max_parallel: 3}"), [work], plan, "done")
    assert max(most) == 3


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_timed_out_step_fails_and_reports_whether_it_may_have_taken_effect(tmp_path: Path, idempotent: bool) -> None:
    @tool(risk="low", idempotent=idempotent)
    async def forever() -> str:
        """Never ends."""
        skip(25)
        await asyncio.Event().wait()
        return ""

    plan = draft(tool_step("a", "forever"), tool_step("b", "forever", "a"))
    root = plan_project(tmp_path, plan="{step_timeout: 20s, on_failure: skip}")
    result, _, seen = run_plan_with_requests(root, [forever], plan, "done")
    status, text = step_results(seen)["a"]
    assert status == "failed"
    assert text is not None
    assert "timed out after plan.step_timeout (20s)" in text
    assert ("whether it took effect is unknown" in text) is not idempotent
    assert result.output == "done"
    assert step_results(seen)["b"] == ("skipped", "a was not done")


def test_a_goal_step_has_a_timeout_too(tmp_path: Path) -> None:
    @tool(risk="low")
    async def forever() -> str:
        """Never ends."""
        skip(25)
        await asyncio.Event().wait()
        return ""

    root = plan_project(tmp_path, plan="{step_timeout: 20s, on_failure: skip}")
    _, _, seen = run_plan_with_requests(root, [forever], draft(model_step("a")), calls(("forever", {})), "done")
    assert step_results(seen)["a"] == ("failed", "stopped by timeout")


@pytest.mark.parametrize(("idempotent", "attempts"), [(True, 2), (False, 1)])
def test_only_idempotent_tools_are_retried(tmp_path: Path, idempotent: bool, attempts: int) -> None:
    made: list[int] = []

    @tool(risk="low", idempotent=idempotent)
    def flaky() -> str:
        """Breaks the first time."""
        made.append(1)
        if len(made) == 1:
            raise ConnectionError("lost")
        return "there"

    root = plan_project(tmp_path, plan="{on_failure: skip}")
    result, _, seen = run_plan_with_requests(root, [flaky], draft(tool_step("a", "flaky")), "done")
    assert len(made) == attempts
    assert step_results(seen)["a"][0] == ("done" if idempotent else "failed")
    assert [call.id for call in result.tool_calls] == ["plan-1-a", "plan-1-a~2"][:attempts]


def test_a_retry_does_not_count_as_a_repeated_call(tmp_path: Path) -> None:
    made: list[int] = []

    @tool(risk="low", idempotent=True)
    def broken() -> str:
        """Is broken."""
        made.append(1)
        raise ConnectionError("lost")

    root = plan_project(tmp_path, plan="{on_failure: skip, step_retries: 3}", runtime_policy="{max_repeated_calls: 2}")
    result, _, seen = run_plan_with_requests(root, [broken], draft(tool_step("a", "broken")), "done")
    assert (result.status, len(made)) == ("completed", 4)
    assert step_results(seen)["a"][0] == "failed"
    assert "max_repeated_calls" not in str(seen)


def test_a_tool_error_is_not_retried(tmp_path: Path) -> None:
    made: list[int] = []

    @tool(risk="low", idempotent=True)
    def never() -> str:
        """Cannot."""
        made.append(1)
        raise ToolError("there is no such thing")

    _, _, seen = run_plan_with_requests(
        plan_project(tmp_path, plan="{on_failure: skip}"), [never], draft(tool_step("a", "never")), "done"
    )
    assert made == [1]
    assert "there is no such thing" in (step_results(seen)["a"][1] or "")


def test_a_new_plan_needs_approval_to_repeat_a_call_that_may_have_taken_effect(tmp_path: Path) -> None:
    made: list[int] = []

    @tool(risk="low")
    async def pay(amount: int) -> str:
        """Pay."""
        made.append(amount)
        if len(made) == 1:
            skip(25)
            await asyncio.Event().wait()
        return "paid"

    root = plan_project(tmp_path, plan="{step_timeout: 20s}")
    plans = draft(tool_step("a", "pay", amount=1)), draft(tool_step("again", "pay", amount=1))
    result, _, _ = run_plan_with_requests(root, [pay], *plans, "done")
    assert result.status == "paused"
    (asked,) = result.pending
    assert (asked.kind, asked.tool) == ("tool", "pay")
    assert "whether it took effect is unknown" in asked.reason
    assert made == [1]

    made.clear()
    result, _, _ = run_plan_with_requests(
        root, [pay], *plans, draft(), "not sure", decide={"pay": Reject(reason="look first")}
    )
    assert made == [1]
    assert result.output == "not sure"


class Slow(JsonStore):
    """A store that takes longer than the step timeout to save a result."""

    async def start(self, *begun: Any) -> RunRecord:
        record = await super().start(*begun)
        write = record.write

        async def slowly(state: RunState, *more: Any, **options: Any) -> None:
            await write(state, *more, **options)
            if any(call.result for call in state.calls.values()):
                skip(25)
                for _ in range(10):  # meanwhile the timeout expires
                    await asyncio.sleep(0)

        record.write = slowly  # type: ignore[method-assign]  # a store of a test
        return record


def test_a_step_that_times_out_after_its_result_keeps_the_result(tmp_path: Path) -> None:
    @tool(risk="low")
    async def pay(amount: float) -> str:
        """Pay."""
        return f"paid {amount:g}"

    root = plan_project(tmp_path, plan="{step_timeout: 20s, on_failure: skip}")
    result, _, seen = run_plan_with_requests(root, [pay], draft(tool_step("a", "pay", amount=1)), "done", store=Slow())
    assert step_results(seen)["a"] == ("done", "paid 1")
    assert [event["status"] for event in seen if event["event"] == "tool_result"] == ["success"]
    assert [(call.status, call.result) for call in result.tool_calls] == [("success", "paid 1")]
    assert result.tool_stats["pay"].count == 1
    assert [entry.action.type for entry in result.trace] == ["tool", "final"]


def test_a_call_not_started_before_the_step_timeout_has_a_known_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[float] = []
    wait = RateLimiter.wait

    async def wait_long(self: RateLimiter, tool: str, rate: RateLimit) -> bool:
        if len(made) == 2:
            skip(25)
        return await wait(self, tool, rate)

    monkeypatch.setattr(RateLimiter, "wait", wait_long)

    @tool(risk="low", rate="2/h")
    async def pay(amount: float) -> str:
        """Pay."""
        made.append(amount)
        return "paid"

    root = plan_project(tmp_path, plan="{step_timeout: 20s, max_parallel: 1}")
    three = [
        tool_step("a", "pay", amount=1),
        tool_step("b", "pay", "a", amount=2),
        tool_step("c", "pay", "b", amount=3),
    ]
    again = draft(tool_step("c2", "pay", "b", amount=3))
    result, _, seen = run_plan_with_requests(root, [pay], draft(*three), again, draft(), "done")
    status, text = step_results(seen)["c"]
    assert status == "failed"
    assert "unknown" not in str(text)
    assert (result.status, result.finish_reason) == ("failed", "step_failed"), (
        "a call that never started needs no approval to be repeated"
    )
    assert made == [1, 2]


def test_an_empty_plan_is_valid_as_a_type_and_rejected_by_preflight() -> None:
    assert PlanDraft(goal="g", steps=()).steps == ()
    assert StepDraft(id="a", description="a").tools is None


@pytest.mark.parametrize(
    "written", ["functions.work", "Work", "work<|channel|>commentary", " work\n", "default_api.work:0"]
)
def test_a_misspelt_tool_of_a_step_is_repaired_as_in_calls(tmp_path: Path, written: str) -> None:
    """The policy sees the repaired name, and the repair is reported once."""
    workshop = Workshop()
    plan = draft(step("a", tool=written), model_step("b", "a", tools=(written,)))
    keys = {"skill_policy": '{deny: [{tool: work, when: {n: "b"}}], allow: [work]}'}

    result, seen = run_plan(plan_project(tmp_path, **keys), workshop, plan, "thought", "summary")

    assert result.plan is not None
    assert [(one.tool, one.tools) for one in result.plan.steps] == [("work", None), (None, ("work",))]
    assert workshop.log == ["+a", "-a"]
    notes = [event["message"] for event in seen if event["event"] == "warning"]
    assert notes == [f"the call of work was repaired: step a: name: {written!r} is work"]


def test_the_policy_decides_about_the_repaired_tool_of_a_step(tmp_path: Path) -> None:
    workshop = Workshop()
    keys = {"skill_policy": '{deny: [{tool: work, when: {n: "secret"}}], allow: [work]}', "plan": "{max_replans: 0}"}
    plan = draft(step("a", tool="functions.work", parameters={"n": "secret"}))

    run_plan(plan_project(tmp_path, **keys), workshop, plan, plan, plan, plan)

    assert workshop.log == []


def test_a_step_that_can_mean_no_tool_is_not_repaired(tmp_path: Path) -> None:
    workshop = Workshop()
    plan = draft(step("a", tool="functions.nothing"))

    result, seen = run_plan(plan_project(tmp_path), workshop, plan, draft(step("a")), "summary")

    assert result.output == "summary"
    assert not any("repaired" in event.get("message", "") for event in seen)
