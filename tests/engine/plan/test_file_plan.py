"""Plans whose steps come from the agent's file: order, conditions, loops, data, kills, and answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import TypedDict

from framework import Approve, Edit, Reject, Respond, RunResult, Runtime, tool
from framework.testing import Crash, JsonStore, ScriptedModel, Turn, calls
from framework.tools.tool import Tool
from framework.types.events import wire
from tests.support.cases import cases
from tests.support.plans import step_statuses
from tests.support.projects import agent, write


class Order(TypedDict):
    id: str
    amount: int
    contacts: list[dict[str, Any]]


class Office:
    """Tools of an order desk that record their calls."""

    def __init__(self, amount: int = 120, names: tuple[str, ...] = ("ann", "bob"), failing: str = "") -> None:
        self.log: list[str] = []
        self.amount, self.names, self.failing = amount, names, failing

    def tools(self) -> list[Tool]:
        @tool(risk="low")
        async def lookup(order: str) -> Order:
            """Looks up an order."""
            self.log.append(f"lookup {order}")
            contacts = [{"name": name, "vip": name == "ann"} for name in self.names]
            return {"id": order, "amount": self.amount, "contacts": contacts}

        @tool(risk="low")
        async def mail(to: str, text: str = "") -> str:
            """Sends a mail."""
            self.log.append(f"mail {to}{' ' + text if text else ''}")
            await asyncio.sleep(0)
            if to == self.failing:
                raise ValueError("the server is down")
            return f"sent to {to}"

        @tool(risk="high")
        async def refund(order: str, amount: float) -> dict[str, Any]:
            """Refunds an order."""
            self.log.append(f"refund {order} {amount:g}")
            return {"receipt": f"r-{order}"}

        return [lookup, mail, refund]


STEPS = """
  - {id: order, tool: lookup, parameters: {order: "{{ inputs.order }}"}}
  - {id: check, tool: mail, parameters: {to: fraud, text: "{{ steps.order.output.amount }}"},
     when: {steps.order.output.amount: "> 100"}}
  - {id: mails, tool: mail, for_each: steps.order.output.contacts, parameters: {to: "{{ item.name }}"}}
  - {id: refund, tool: refund, parameters: {order: "{{ inputs.order }}", amount: "{{ steps.order.output.amount }}"}}
"""
FREE = "{risk_level: high, confirm: {from: never}}"
KEYS = {"executor": "plan", "runtime_policy": FREE, "inputs": "{order: string!}", "skill_policy": '{allow: ["*"]}'}


def project(root: Path, steps: str = STEPS, plan: str = "approval: never", **keys: str) -> Path:
    """Create a project whose agent `p` follows these steps."""
    body = (
        f"\n  {plan}\n  steps:{steps.replace(chr(10), chr(10) + '  ')}"
        if "\n" in steps
        else f"{{{plan}, steps: {steps}}}"
    )
    return write(root, {"agents.d/p.yaml": agent("p", **(KEYS | {"plan": body} | keys))})


def follow(
    root: Path, office: Office, *turns: Turn, decide: dict[str, Any] | None = None, order: str = "o1"
) -> tuple[RunResult, list[dict[str, Any]], ScriptedModel]:
    """Run the plan to its end, in another runtime after each pause; return the result, the events and the model."""

    async def main() -> tuple[RunResult, list[dict[str, Any]], ScriptedModel]:
        model, store = ScriptedModel(*turns), JsonStore()
        options: dict[str, Any] = {"tools": office.tools(), "models": {"scripted": model}, "watch": False}
        async with Runtime.open(root, store=store, **options) as runtime:
            async with runtime.stream("do it", agent="p", inputs={"order": order}) as stream:
                seen = [wire(event) async for event in stream]
            result = await stream.result()
        while result.status == "paused" and decide is not None:
            async with Runtime.open(root, store=store, **options) as runtime:
                answers = {asked.id: decide[asked.tool or asked.kind] for asked in result.pending}
                async with runtime.resume_stream(result.run_id, answers) as stream:
                    seen += [wire(event) async for event in stream]
                result = await stream.result()
        return result, seen, model

    return asyncio.run(main())


def test_the_steps_of_the_file_run_in_their_order_without_a_model(tmp_path: Path) -> None:
    office = Office()
    result, seen, model = follow(project(tmp_path), office)
    assert result.status == "completed", result.error
    assert office.log == ["lookup o1", "mail fraud 120", "mail ann", "mail bob", "refund o1 120"]
    assert json.loads(result.output) == {"receipt": "r-o1"}
    assert model.requests == []
    assert step_statuses(result) == dict.fromkeys(("order", "check", "mails-1", "mails-2", "mails", "refund"), "done")
    plans = [event for event in seen if event["event"] == "plan"]
    assert [(one["revision"], len(one["steps"])) for one in plans] == [(1, 4), (1, 6)]
    assert [change["id"] for change in plans[1]["changes"] if change["kind"] == "added"] == ["mails-1", "mails-2"]
    assert result.plan is not None
    assert result.plan.source.startswith("agents.d/p.yaml:")
    assert result.incomplete == ()
    assert result.tool_calls[0].arguments == {"order": "o1"}
    assert result.plan.steps[0].parameters == {"order": "o1"}
    assert result.messages[-1].content == result.output


def test_a_step_whose_condition_is_not_met_is_skipped_and_the_rest_runs(tmp_path: Path) -> None:
    office = Office(amount=100)
    result, seen, _ = follow(project(tmp_path), office)
    assert (result.status, office.log) == ("completed", ["lookup o1", "mail ann", "mail bob", "refund o1 100"])
    (skipped,) = [event for event in seen if event["event"] == "plan_step" and event["id"] == "check"]
    assert skipped["status"] == "skipped"
    assert skipped["result"] == "its condition is not met: steps.order.output.amount is 100, not > 100"
    assert result.incomplete == ()
    assert not [event for event in seen if event["event"] == "warning"]


def test_a_condition_on_the_item_skips_the_items_that_do_not_meet_it(tmp_path: Path) -> None:
    steps = """
  - {id: order, tool: lookup, parameters: {order: o}}
  - {id: mails, tool: mail, for_each: steps.order.output.contacts, when: {item.vip: true},
     parameters: {to: "{{ item.name }}"}}
"""
    office = Office(names=("ann", "bob", "ann"))
    result, _, _ = follow(project(tmp_path, steps), office)
    assert office.log == ["lookup o", "mail ann", "mail ann"]
    assert json.loads(result.output) == ["sent to ann", "sent to ann"]
    assert step_statuses(result)["mails-2"] == "skipped"


@pytest.mark.parametrize(
    ("when", "why"),
    [
        ('steps.order.output: "> 3"', "cannot be evaluated: steps.order.output is text"),
        ("steps.order.output.amount: 3", "the result of step order has no amount: it is text"),
    ],
)
def test_a_condition_that_cannot_be_evaluated_fails_the_step(tmp_path: Path, when: str, why: str) -> None:
    steps = f"""
  - {{id: order, tool: mail, parameters: {{to: desk}}}}
  - {{id: next, tool: mail, parameters: {{to: never}}, when: {{{when}}}}}
"""
    office = Office()
    result, _, _ = follow(project(tmp_path, steps), office)
    assert (result.status, result.finish_reason) == ("failed", "step_failed")
    assert result.error is not None
    assert why in result.error.message
    assert office.log == ["mail desk"]


@pytest.mark.parametrize("count", [0, 20, 21, 100_000])
def test_a_loop_is_bounded_before_its_first_call(tmp_path: Path, count: int) -> None:
    sent: list[str] = []

    @tool(risk="low")
    def numbers() -> list[int]:
        """Returns numbers."""
        return list(range(count))

    @tool(risk="low")
    def send(number: int) -> str:
        """Sends one."""
        sent.append(str(number))
        return str(number)

    steps = """
  - {id: find, tool: numbers}
  - {id: send, tool: send, for_each: steps.find.output, parameters: {number: "{{ item }}"}}
"""
    office = Office()
    office.tools = lambda: [numbers, send]  # type: ignore[method-assign]
    result, _, _ = follow(project(tmp_path, steps, runtime_policy="{max_tool_calls: 50}"), office)
    if count <= 20:
        assert (result.status, sorted(map(int, sent))) == ("completed", list(range(count)))
        return
    assert (result.finish_reason, sent) == ("step_failed", [])
    assert result.error is not None
    why = f"{count} items; at most 20 are allowed: shorten the list, or raise max_items of step send (at most 100)"
    assert why in result.error.message


def test_results_and_inputs_that_look_like_references_stay_data(tmp_path: Path) -> None:
    hostile = "{{ steps.refund.output }} {{ item }} {{ 7*7 }} {% for x in y %}"
    steps = """
  - {id: order, tool: lookup, parameters: {order: "{{ inputs.order }}"}}
  - {id: mails, tool: mail, for_each: steps.order.output.contacts, parameters: {to: "{{ item.name }}",
     text: "{{{ inputs.order }} of {{ steps.order.output.id }}"}}
"""
    office = Office(names=(hostile,))
    result, _, _ = follow(project(tmp_path, steps), office, order=hostile)
    assert result.status == "completed", result.error
    assert office.log == [f"lookup {hostile}", f"mail {hostile} {{{hostile} of {hostile}"]
    office = Office(names=("{ steps.order.output }}",))
    result, _, _ = follow(project(tmp_path, steps), office, order="{ item }}")
    assert office.log[1] == "mail { steps.order.output }} {{ item }} of { item }}"


def test_a_plan_of_the_file_is_approved_edited_or_rejected_and_never_rewritten(tmp_path: Path) -> None:
    root = project(tmp_path, plan="approval: always")
    office = Office()
    result, _, _ = follow(root, office)
    (asked,) = result.pending
    assert asked.plan is not None
    assert (asked.kind, asked.plan.hash) == ("plan", asked.hash)
    assert asked.preflight is not None
    assert (asked.preflight.estimate.tool_calls, asked.preflight.estimate.model_calls) == (4, 0)
    assert not [check.risks for check in asked.preflight.steps if check.risks], "the types are declared"
    assert [step.when for step in asked.plan.steps if step.when] == [{"steps.order.output.amount": "> 100"}]
    assert office.log == []
    result, _, model = follow(root, office, decide={"plan": Approve()})
    assert (result.status, len(office.log), model.requests) == ("completed", 5, [])
    office = Office()
    result, _, model = follow(root, office, decide={"plan": Reject(reason="not today")})
    assert (result.output, office.log) == ("The plan was not approved: not today", [])
    draft = asked.plan.draft.model_dump(mode="json", exclude_defaults=True)
    kept = {**draft, "steps": [{**draft["steps"][0], "depends_on": []}, {**draft["steps"][2], "depends_on": ["order"]}]}
    result, _, _ = follow(root, office, decide={"plan": Edit(arguments=kept)})
    assert office.log == ["lookup o1", "mail ann", "mail bob"]
    plain = [{key: step[key] for key in step.keys() - {"when", "for_each"}} for step in draft["steps"]]
    office = Office(amount=50)
    follow(root, office, decide={"plan": Edit(arguments={**draft, "steps": plain})})
    assert office.log == ["lookup o1", "mail ann", "mail bob", "refund o1 50"], "an older client keeps the conditions"

    async def respond() -> RunResult:
        options: dict[str, Any] = {"tools": office.tools(), "models": {"scripted": ScriptedModel()}, "watch": False}
        async with Runtime.open(root, **options) as runtime:
            result = await runtime.run("do it", inputs={"order": "o1"})
            return await runtime.resume(result.run_id, {result.pending[0].id: Respond(text="do more")})

    result = asyncio.run(respond())
    (again,) = result.pending
    assert again.reason.startswith("the model cannot change a plan of the agent's file: approve, edit or reject it (ag")


def test_calls_that_rules_ask_about_pause_the_run_and_other_steps_go_on(tmp_path: Path) -> None:
    policy = '{ask: [{tool: refund, when: {amount: "> 50"}}], allow: ["*"]}'
    root = project(tmp_path, skill_policy=policy)
    office = Office()
    result, _, _ = follow(root, office)
    assert [(asked.kind, asked.tool, asked.arguments["amount"]) for asked in result.pending] == [
        ("tool", "refund", 120)
    ]
    result, _, _ = follow(root, Office(), decide={"refund": Reject()})
    assert (result.finish_reason, step_statuses(result)["refund"]) == ("step_failed", "failed")
    result, _, _ = follow(root, Office(), decide={"refund": Approve()})
    assert result.status == "completed"


@pytest.mark.parametrize(("action", "status"), [("fail", "failed"), ("skip", "completed")])
def test_a_failed_item_fails_the_run_or_skips_what_depends_on_the_loop(
    tmp_path: Path, action: str, status: str
) -> None:
    office = Office(failing="ann")
    plan = f"approval: never\n  step_retries: 0\n  on_failure: {action}"
    result, _, model = follow(project(tmp_path, plan=plan), office)
    assert (result.status, model.requests) == (status, [])
    found = step_statuses(result)
    assert (found["mails-1"], found["mails"], found["refund"]) == ("failed", "skipped", "skipped")
    assert found["mails-2"] == "done"
    assert not [line for line in office.log if line.startswith("refund")]


GOALS = """
  - {id: order, tool: lookup, parameters: {order: "{{ inputs.order }}"}}
  - {id: draft, goal: "Write a note about {{ inputs.order }}", tools: [mail], depends_on: [order]}
  - {id: each, goal: Greet the contact, for_each: steps.order.output.contacts, tools: []}
"""


def test_goals_get_results_and_items_as_tool_messages(tmp_path: Path) -> None:
    root = project(tmp_path, GOALS, plan="approval: never\n  max_parallel: 1\n  answer: {goal: Say it in one line}")
    turns: tuple[Turn, ...] = (calls(("mail", {"to": "me"})), "a note", "hi ann", "hi bob", "all done")
    office = Office()
    result, _, model = follow(root, office, *turns)
    assert (result.output, office.log) == ("all done", ["lookup o1", "mail me"])
    first, greeting, last = model.requests[0], model.requests[2], model.requests[-1]
    assert [m.content for m in first.messages if m.role == "user"] == ["Write a note about o1"]
    assert [definition.name for definition in first.tools] == ["mail"]
    assert '"amount": 120' in next(m.content for m in first.messages if m.role == "tool")
    assert next(m.content for m in greeting.messages if m.role == "user").startswith("Greet the contact (1 of 2)")
    assert json.loads([m.content for m in greeting.messages if m.role == "tool"][-1])["item"]["name"] == "ann"
    assert last.messages[-1].content.endswith("Say it in one line")


def test_an_agent_is_a_step_with_a_message_and_inputs(tmp_path: Path) -> None:
    steps = """
  - {id: order, tool: lookup, parameters: {order: o}}
  - {id: fraud, agent: fraud, message: "Check {{ steps.order.output.amount }}", parameters: {level: high}}
"""
    root = project(
        tmp_path, steps, plan='approval: never\n  answer: "Verdict: {{ steps.fraud.output }}"', sub_agents="[fraud]"
    )
    write(root, {"agents.d/fraud.yaml": agent("fraud", inputs="{level: string!}")})
    result, _, model = follow(root, Office(), "looks fine")
    assert result.output == "Verdict: looks fine"
    assert model.requests[0].messages[-1].content == "Check 120"
    assert result.plan is not None
    assert result.plan.steps[1].tool == "agent.fraud"


def test_a_paused_run_continues_with_the_plan_it_began_with_after_an_edit_of_the_file(tmp_path: Path) -> None:
    root, office, store = project(tmp_path, plan="approval: always"), Office(), JsonStore()
    options: dict[str, Any] = {"tools": office.tools(), "models": {"scripted": ScriptedModel()}, "watch": False}

    async def main() -> tuple[RunResult, RunResult]:
        async with Runtime.open(root, store=store, **options) as runtime:
            result = await runtime.run("do it", inputs={"order": "o1"})
            other = "\n  - {id: only, tool: mail, parameters: {to: new}}\n"
            project(root, other, plan='approval: always\n  answer: "the new one"')
            await runtime.reload()
            new = await runtime.run("do it", inputs={"order": "o2"})
            assert [step.id for step in new.pending[0].plan.steps] == ["only"]  # type: ignore[union-attr]
        async with Runtime.open(root, store=store, **options) as runtime:
            old = await runtime.resume(result.run_id, {result.pending[0].id: Approve()})
            return old, await runtime.resume(new.run_id, {new.pending[0].id: Approve()})

    old, new = asyncio.run(main())
    assert json.loads(old.output) == {"receipt": "r-o1"}
    assert (new.output, office.log[-1]) == ("the new one", "mail new")


def test_structured_output_is_the_data_of_the_last_step(tmp_path: Path) -> None:
    schema = "{type: object, properties: {receipt: {type: string}}, required: [receipt]}"
    result, _, model = follow(project(tmp_path, output_schema=schema), Office())
    assert (result.data, model.requests) == ({"receipt": "r-o1"}, [])


@cases(10)
@given(data=st.data())
def test_a_kill_anywhere_repeats_no_step_and_every_step_runs_once(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    root = project(tmp_path_factory.mktemp("plan"), plan="approval: never\n  max_parallel: 3")
    names = tuple(f"n{number}" for number in range(data.draw(st.integers(0, 4))))
    office, store = Office(data.draw(st.sampled_from((50, 120))), names), JsonStore()
    options: dict[str, Any] = {"tools": office.tools(), "models": {"scripted": ScriptedModel()}, "watch": False}

    async def main() -> RunResult | None:
        store.crash_after(data.draw(st.integers(0, 30)))
        try:
            async with Runtime.open(root, store=store, **options) as runtime:
                return await runtime.run("do it", inputs={"order": "o1"})
        except Crash:
            store.crash_after(10**9)
        left = await store.runs()
        if not left:
            return None
        kept = await store.load_run(left[0].run_id)
        finished = {call_id for call_id, record in kept.calls.items() if record.result is not None}
        before = list(office.log)
        async with Runtime.open(root, store=store, **options) as runtime:
            result = await runtime.resume(left[0].run_id, {})
            while result.status == "paused":  # calls in flight, whose effect is unknown
                result = await runtime.resume(result.run_id, {asked.id: Approve() for asked in result.pending})
        again = set(office.log[len(before) :])
        done = {_line(record.call.arguments) for call_id, record in kept.calls.items() if call_id in finished}
        assert not again & done
        return result

    result = asyncio.run(main())
    if result is not None:
        assert result.status == "completed", result.error
        expected = {"lookup o1", f"refund o1 {office.amount}", *(f"mail {name}" for name in names)}
        assert set(office.log) == expected | ({"mail fraud 120"} if office.amount > 100 else set())
        assert set(step_statuses(result).values()) <= {"done", "skipped"}


def _line(arguments: dict[str, Any]) -> str:
    """Return what a tool logs for these arguments."""
    if "amount" in arguments:
        return f"refund {arguments['order']} {arguments['amount']:g}"
    if "order" in arguments:
        return f"lookup {arguments['order']}"
    return " ".join(filter(None, ("mail", arguments["to"], arguments.get("text"))))


def test_an_approved_plan_covers_the_items_of_its_loops_when_a_step_is_retried(tmp_path: Path) -> None:
    office = Office(names=("ann", "bob", "eve"), failing="bob")
    plan = "approval: always\n  step_retries: 0\n  on_failure: ask"
    result, _, _ = follow(
        project(tmp_path, plan=plan), office, decide={"plan": Approve(), "mail": Respond(text="skip")}
    )
    assert step_statuses(result)["mails"] == "skipped"
    office = Office(names=("ann", "bob", "eve"), failing="bob")
    asked: list[str] = []

    async def main() -> RunResult:
        options: dict[str, Any] = {"tools": office.tools(), "models": {"scripted": ScriptedModel()}, "watch": False}
        async with Runtime.open(project(tmp_path, plan=plan), **options) as runtime:
            result = await runtime.run("do it", inputs={"order": "o1"})
            while result.status == "paused":
                asked.append(result.pending[0].kind)
                is_plan = asked[-1] == "plan"
                office.failing = office.failing if is_plan else ""
                decision = Approve() if is_plan else Respond(text="retry")
                result = await runtime.resume(result.run_id, {result.pending[0].id: decision})
            return result

    result = asyncio.run(main())
    assert (result.status, asked) == ("completed", ["plan", "step"])
    assert office.log.count("mail ann") == office.log.count("mail eve") == 1


def test_limits_are_checked_before_the_first_step_and_before_the_first_item(tmp_path: Path) -> None:
    goal = "\n  - {id: only, goal: think}\n  - {id: more, goal: think}\n"
    result, _, model = follow(project(tmp_path, goal, runtime_policy="{max_steps: 1}"), Office())
    assert result.error is not None
    assert "it has 2 steps without a tool; max_steps allows 1 more model calls" in result.error.message
    assert (result.finish_reason, model.requests) == ("step_failed", [])
    free = "{risk_level: high, confirm: {from: never}, max_tool_calls: 6}"
    assert follow(project(tmp_path, runtime_policy=free), Office(names=("a", "b", "c")))[0].status == "completed"
    office, free = Office(names=("a", "b", "c")), free.replace("6", "5")
    result, _, _ = follow(project(tmp_path, runtime_policy=free), office)
    assert result.error is not None
    assert "max_tool_calls allows 3 more" in result.error.message
    assert office.log == ["lookup o1", "mail fraud 120"]


@pytest.mark.parametrize("lenient", [False, True])
def test_a_sub_agent_follows_its_plan_within_the_rules_of_its_caller(tmp_path: Path, lenient: bool) -> None:
    root = project(tmp_path, plan="approval: always")
    write(
        root, {"agents.d/boss.yaml": agent("boss", sub_agents="[p]", **({"runtime_policy": FREE} if lenient else {}))}
    )
    office, store = Office(), JsonStore()

    async def main() -> RunResult:
        model = ScriptedModel(calls(("agent.p", {"message": "refund", "order": "o1"})), "done")
        options: dict[str, Any] = {"tools": office.tools(), "models": {"scripted": model}, "watch": False}
        async with Runtime.open(root, store=store, **options) as runtime:
            result = await runtime.run("do it", agent="boss")
        if not lenient:
            return result
        (asked,) = result.pending
        assert (asked.kind, asked.agent, office.log) == ("plan", "p", [])
        async with Runtime.open(root, store=store, **options) as runtime:
            return await runtime.resume(result.run_id, {asked.id: Approve()})

    result = asyncio.run(main())
    answer = next(m.content for m in result.messages if m.role == "tool")
    if lenient:
        assert (answer.strip(), len(office.log)) == ('{"receipt": "r-o1"}', 5)
    else:
        assert "cannot be executed: step refund: the policy forbids it: max_risk medium" in answer
        assert office.log == []
