"""Cases: the file format, how a case runs, and that each expectation can pass and fail."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from framework import Runtime, Tool, tool
from framework.config.yaml.parse import ParseError, parse
from framework.evals.runner import Attempt, CaseRunner, rates
from framework.evals.suite import Suite, default_agent, read_suite
from framework.types.case import CaseFile
from tests.support.cases import each
from tests.support.media import png
from tests.support.projects import agent, write

SHOP = """
from framework import tool


@tool(risk="low", idempotent=True)
def lookup(order: str) -> str:
    "Look an order up."
    return f"order {order} costs 80"


@tool(risk="low")
def note(text: str) -> str:
    "Write something down."
    raise AssertionError("carried out")


@tool
def refund(order: str, amount: float) -> str:
    "Pay an order back."
    raise AssertionError("carried out")


@tool
def delete(order: str) -> str:
    "Delete an order."
    raise AssertionError("carried out")
"""
POLICY = """
  deny: [{tool: shop.delete, when: {order: "1*"}}]
  ask: [{tool: shop.refund, when: {amount: "> 50"}}]
  allow: ["shop.*", echo]
"""
REFUND = "{call: shop.refund, arguments: {order: '12', amount: 80}}"
LOOKUP = "{call: shop.lookup, arguments: {order: '12'}}"


def shop(root: Path, **keys: str) -> Path:
    """Create a project with one agent, `clerk`, and tools that must not be executed in a test."""
    clerk = agent("clerk", **{"model": "offline", "skill_policy": POLICY, **keys})
    return write(root, {"plugins/shop.py": SHOP, "agents.d/clerk.yaml": clerk})


def case(expect: str = "{}", model: str | None = None, **keys: str) -> str:
    """Return a file with one case; keys are YAML text."""
    lines = {"name": "it", "message": "Go on.", "expect": expect} | ({} if model is None else {"model": model}) | keys
    body = "\n    ".join(f"{key}: {value}" for key, value in lines.items() if value)
    return f"cases:\n  - {body}\n"


def attempts(root: Path, *, live: str | None = None, tools: tuple[Tool, ...] = ()) -> tuple[Suite, list[Attempt]]:
    """Run all cases of a project."""

    async def main() -> tuple[Suite, list[Attempt]]:
        async with Runtime.open(root, tools=tools, watch=False) as runtime:
            generation = runtime.catalog.current
            assert not generation.errors
            bench = CaseRunner(partial(Runtime.over, root, None), live)
            suite = read_suite(generation)
            return suite, [await bench.attempt(placed, generation) for placed in suite.cases]

    return asyncio.run(main())


def failures(root: Path, text: str, *, tools: tuple[Tool, ...] = ()) -> list[str]:
    """Return the failures of a file's only case."""
    write(root, {"agents.d/clerk.test.yaml": text})
    _, [attempt] = attempts(root, tools=tools)
    return list(attempt.failures)


# --- each expectation


@pytest.mark.parametrize(
    ("holds", "fails", "why"),
    [
        ("{offered: [echo, 'shop.l*']}", "{offered: [calculator]}", "offered [calculator], got [echo, shop.lookup"),
        ("{not_offered: [calculator]}", "{not_offered: ['shop.*']}", "not_offered [shop.*], got [echo, shop.lookup"),
        ("{called: [shop.lookup]}", "{called: [shop.refund]}", "called [shop.refund], got [shop.lookup, echo]"),
        ("{called: ['shop.*', echo]}", "{called: [echo, 'shop.*']}", "called [echo, shop.*], got [shop.lookup, echo]"),
        ("{called: echo}", "{called: []}", "called [], got [shop.lookup, echo]"),
        (
            "{called_exactly: [shop.lookup, echo]}",
            "{called_exactly: [echo]}",
            "called_exactly [echo], got [shop.lookup",
        ),
        (
            "{not_called: [shop.refund]}",
            "{not_called: [shop.look*]}",
            "not_called [shop.look*], got [shop.lookup, echo]",
        ),
        ("{arguments: {shop.lookup: {order: '12'}}}", "{arguments: {shop.lookup: {order: 12}}}", 'got {"order": "12"}'),
        ("{arguments: {'*': {order: '1*'}}}", "{arguments: {'*': {order: '2*'}}}", 'arguments of * {"order": "2*"}'),
        ("{arguments: {echo: {}}}", "{arguments: {shop.note: {}}}", "of shop.note {}, got no such call"),
        ("{denied: [shop.delete]}", "{denied: [echo]}", "denied [echo], got [shop.delete]"),
        ("{denied: [shop.delete]}", "{denied: []}", "denied [], got [shop.delete]"),
        ("{asked: [shop.refund]}", "{asked: []}", "asked [], got [shop.refund]"),
        ("{asked: [shop.refund]}", "{asked: [shop.refund, echo]}", "asked [shop.refund, echo], got [shop.refund]"),
        ("{plan: []}", "{plan: [echo]}", "plan [echo], got []"),
        ("{output: two lines}", "{output: [two, three]}", 'output with "three", got "There are two lines."'),
        ("{output_matches: 'are \\w+ lines'}", "{output_matches: ^two}", 'output_matches "^two", got "There are'),
        ("{status: completed}", "{status: paused}", "status paused, got completed"),
        ("{finish_reason: final}", "{finish_reason: max_steps}", "finish_reason max_steps, got final"),
        ("{max_steps_used: 4}", "{max_steps_used: 3}", "max_steps_used 3, got 4"),
    ],
)
def test_every_expectation_can_pass_and_fail(tmp_path: Path, holds: str, fails: str, why: str) -> None:
    delete = "{call: shop.delete, arguments: {order: '12'}}"
    answers = f"[{{calls: [{LOOKUP}, {delete}]}}, {REFUND}, {{call: echo, arguments: {{text: x}}}}, "
    model = answers + "{say: There are two lines.}]"
    root = shop(tmp_path)
    decided = {"decisions": "{shop.refund: {respond: later}}"}
    assert failures(root, case(holds, model, **decided)) == []
    [failure] = failures(root, case(fails, model, **decided))
    assert failure.startswith("expected ")
    assert why in failure


def test_each_failed_expectation_has_its_own_line(tmp_path: Path) -> None:
    failed = failures(shop(tmp_path), case("{called: [echo], output: [a, b], status: paused}", "[{say: none}]"))
    assert len(failed) == 4


@pytest.mark.parametrize(("wanted", "given"), [("1", "true"), ("true", "1"), ("[1]", "[2]"), ("null", "0")])
def test_arguments_are_compared_as_json_values(tmp_path: Path, wanted: str, given: str) -> None:
    model = f"[{{call: echo, arguments: {{text: {given}}}}}, {{say: x}}]"
    root = shop(tmp_path)
    assert failures(root, case(f"{{arguments: {{echo: {{text: {given}}}}}}}", model)) == []
    assert failures(root, case(f"{{arguments: {{echo: {{text: {wanted}}}}}}}", model))


# --- running a case


def test_without_a_script_a_case_runs_on_the_offline_model(tmp_path: Path) -> None:
    root = shop(tmp_path, model="openai/gpt-5.4-mini")
    text = case("{called_exactly: [shop.lookup], output: order 12 costs 80}", message="look up the order 12")
    assert failures(root, text) == []


def test_only_safe_tools_are_executed(tmp_path: Path) -> None:
    note = "{call: shop.note, arguments: {text: x}}"
    refund = "{call: shop.refund, arguments: {order: '12', amount: 8}}"
    text = case("{called_exactly: [shop.note, shop.refund]}", f"[{{calls: [{note}, {refund}]}}, {{say: x}}]")
    assert failures(shop(tmp_path), text) == []
    _, [attempt] = attempts(tmp_path)
    assert attempt.failed_calls == 0, "a tool that is carried out fails here"


def test_results_of_a_stub_are_returned_in_order(tmp_path: Path) -> None:
    seen: list[str] = []

    @tool(risk="low", idempotent=True)
    def look(n: int) -> str:
        """Look."""
        seen.append("carried out")
        return "real"

    root = write(tmp_path, {"agents.d/clerk.yaml": agent("clerk", model="offline")})
    model = "[" + ", ".join(f"{{call: look, arguments: {{n: {n}}}}}" for n in range(3)) + ", {say: done}]"
    text = case("{called: [look, look, look]}", model, results="{look: [first, {fail: broken}, last]}")
    assert failures(root, text, tools=(look,)) == []
    assert seen == []
    _, [attempt] = attempts(root, tools=(look,))
    assert attempt.failed_calls == 1


def test_a_run_pauses_and_resumes_with_the_cases_decisions(tmp_path: Path) -> None:
    root = shop(tmp_path)
    model = f"[{REFUND}, {{say: Done.}}]"
    waits = "{asked: [shop.refund], not_called: [shop.refund], arguments: {shop.refund: {amount: 80}}, status: paused}"
    assert failures(root, case(waits, model)) == []
    done = "{asked: [shop.refund], called: [shop.refund], output: Done., status: completed}"
    assert failures(root, case(done, model, decisions="{shop.refund: approve}")) == []
    assert failures(root, case(done, model, decisions="{c1: approve}")) == []
    refused = "{asked: [shop.refund], denied: [shop.refund], called: []}"
    for decision in ("reject", "{reject: no money}"):
        assert failures(root, case(refused, model, decisions=f"{{shop.refund: {decision}}}")) == []
    edited = "{called: [shop.refund], arguments: {shop.refund: {amount: 5}}}"
    edit = "{edit: {order: '12', amount: 5}}"
    assert failures(root, case(edited, model, decisions=f"{{shop.refund: {edit}}}")) == []


def test_an_approved_call_that_was_asked_about_in_a_sub_agent_counts_once(tmp_path: Path) -> None:
    root = shop(tmp_path)
    write(
        root, {"agents.d/boss.yaml": agent("boss", model="offline", sub_agents="[clerk]", skill_policy="{allow: []}")}
    )
    model = f"[{{call: agent.clerk, arguments: {{message: pay}}}}, {REFUND}, {{say: paid}}, {{say: all done}}]"
    expect = "{called_exactly: [agent.clerk, shop.refund], asked: [shop.refund], output: all done}"
    write(root, {"agents.d/boss.test.yaml": case(expect, model, decisions="{shop.refund: approve}")})
    _, [attempt] = attempts(root)
    assert attempt.failures == ()


def test_a_scripted_plan_is_proposed_checked_approved_and_executed(tmp_path: Path) -> None:
    root = shop(tmp_path, executor="plan", plan="{approval: always}")
    look = "{id: look, description: look it up, tool: shop.lookup, parameters: {order: '12'}}"
    steps = f"[{look}, {{id: think, description: think, depends_on: [look]}}]"
    model = f"[{{plan: {{goal: do it, steps: {steps}}}}}, {{say: thought}}, {{say: The end.}}]"
    asked = "{asked: [plan], called: [], plan: [look, think], status: paused}"
    assert failures(root, case(asked, model)) == []
    done = "{asked: [plan], called_exactly: [shop.lookup], plan: [shop.lookup, think], output: The end.}"
    assert failures(root, case(done, model, decisions="{plan: approve}")) == []
    [failure] = failures(root, case("{plan: [think, look]}", model, decisions="{plan: approve}"))
    assert failure == "expected plan [think, look], got [shop.lookup, think]"


def test_a_plan_that_is_always_sent_back_ends_with_its_script(tmp_path: Path) -> None:
    root = shop(tmp_path, executor="plan", plan="{approval: always}")
    plan = "{plan: {goal: g, steps: [{id: a, description: a}]}}"
    failed = failures(root, case("{}", f"[{plan}, {plan}]", decisions="{plan: {respond: shorter}}"))
    assert failed[0] == "the script has only 2 answers, but the model is called again"


def test_files_of_a_case_are_sent_with_its_first_message(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    shop(tmp_path)
    sent = case("{output: 'files received'}", files="[a.png]", message="hello")
    assert failures(tmp_path, sent) == []
    unread = "{output: 'files received', status: completed}"
    lost = case(unread, files="[gone.png]", message="hello")
    assert failures(tmp_path, lost)[0].startswith(f"cannot read {tmp_path / 'gone.png'}: No such file")
    for outside in ("../a.png", "/etc/a.png", "~/a.png"):
        with pytest.raises(ParseError, match="write a path below the project's folder, relative to it"):
            parse("x.test.yaml", case(files=f"[{outside}]").encode(), CaseFile)


def test_turns_are_one_conversation(tmp_path: Path) -> None:
    root = shop(tmp_path)
    model = f"[{LOOKUP}, {{say: It costs 80.}}, {{call: echo, arguments: {{text: x}}}}, {{say: Bye.}}]"
    text = case("{called_exactly: [shop.lookup, echo], output: Bye., max_steps_used: 4}", model, message="")
    assert failures(root, text.replace("name: it", "name: it\n    turns: [what does it cost?, bye]")) == []


def test_no_turn_starts_while_one_waits(tmp_path: Path) -> None:
    text = case("{}", f"[{REFUND}, {{say: x}}]", message="").replace("name: it", "name: it\n    turns: [a, b]")
    [failure] = failures(shop(tmp_path), text)
    assert failure == "turn 1 is waiting for a decision about shop.refund, so turn 2 cannot start"


def test_the_limits_are_those_of_the_agent(tmp_path: Path) -> None:
    root = shop(tmp_path, runtime_policy="{max_steps: 1}")
    model = f"[{LOOKUP}, {{say: x}}]"
    assert failures(root, case("{status: stopped, finish_reason: max_steps}", model)) == []


def test_a_stub_has_no_rate_limit(tmp_path: Path) -> None:
    """A rate limit protects the service behind a tool, which a stub does not call."""

    @tool(rate="1/h")
    def rare(n: int) -> str:
        """Seldom."""
        raise AssertionError("carried out")

    twice = "{call: rare, arguments: {n: 1}}, {call: rare, arguments: {n: 2}}"
    root = shop(tmp_path, skill_policy="{allow: [rare]}", runtime_policy="{timeout: 2s}")
    assert failures(root, case("{called_exactly: [rare, rare]}", f"[{twice}, {{say: ok}}]"), tools=(rare,)) == []


def test_a_failing_provider_is_a_failed_run(tmp_path: Path) -> None:
    root = shop(tmp_path)
    assert failures(root, case("{finish_reason: model_error}", "[{fail: too busy}]")) == []
    assert failures(root, case("{called: []}", "[{fail: too busy}]")) == ["the run failed: model_error (too busy)"]


def test_an_invalid_call_is_answered_and_not_counted_as_called(tmp_path: Path) -> None:
    wrong = "{call: shop.lookup, arguments: {order: 12}}"
    text = case("{called_exactly: [shop.lookup], output: ok}", f"[{wrong}, {LOOKUP}, {{say: ok}}]")
    assert failures(shop(tmp_path), text) == []


def test_inputs_reach_the_agent_and_invalid_ones_fail_the_case(tmp_path: Path) -> None:
    root = shop(tmp_path, inputs="{customer: {type: string, required: true}}")
    assert failures(root, case("{output: x}", "[{say: x}]", inputs="{customer: c1}")) == []
    assert "input 'customer' of agent 'clerk' is missing" in failures(root, case("{}", "[{say: x}]"))[0]


@pytest.mark.parametrize(
    ("executor", "model", "why"),
    [
        ("react", f"[{LOOKUP}]", "the script has only 1 answers, but the model is called again"),
        (
            "react",
            "[{plan: {goal: g, steps: [{id: a, description: a}]}}]",
            "is a plan, but the agent does not request one",
        ),
        ("plan", "[{say: hello}]", "answer 1 of the script must be a plan: the agent requests one"),
    ],
)
def test_a_script_that_does_not_match_always_fails_the_case(
    tmp_path: Path, executor: str, model: str, why: str
) -> None:
    failed = failures(shop(tmp_path, executor=executor), case("{status: failed}", model))
    assert len(failed) == 1
    assert why in failed[0]


def test_a_case_does_not_change_the_generation_it_runs_on(tmp_path: Path) -> None:
    async def main() -> None:
        root = write(shop(tmp_path), {"agents.d/clerk.test.yaml": case("{}", f"[{LOOKUP}, {{say: x}}]")})
        async with Runtime.open(root, watch=False) as runtime:
            generation = runtime.catalog.current
            clerk = generation.agents["clerk"]
            before = (clerk.spec, dict(clerk.toolset.tools), dict(generation.tools))
            [placed] = read_suite(generation).cases
            bench = CaseRunner(partial(Runtime.over, root, None))
            assert (await bench.attempt(placed, generation)).passed
            assert (clerk.spec, dict(clerk.toolset.tools), dict(generation.tools)) == before
            assert not await runtime.store.runs()

    asyncio.run(main())


# --- rates


def test_rates_count_the_attempts_that_exercise_an_ability(tmp_path: Path) -> None:
    root = shop(tmp_path)
    good = case("{called: [shop.lookup], arguments: {shop.lookup: {order: '12'}}}", f"[{LOOKUP}, {{say: x}}]")
    wrong = case("{called: [echo], output: x}", f"[{LOOKUP}, {{say: x}}]", results="{shop.lookup: {fail: broken}}")
    talk = case("{output: y}", "[{say: x}, {say: y}]", message="").replace("name: it", "name: it\n    turns: [a, b]")
    write(root, {f"agents.d/{n}.test.yaml": f"{t}    agent: clerk\n" for n, t in enumerate((good, wrong, talk))})
    suite, tried = attempts(root)
    found = rates(zip([placed.case for placed in suite.cases], tried, strict=True))
    assert {name: (rate.passed, rate.tried) for name, rate in found.items()} == {
        "right tool": (1, 2),
        "right arguments": (1, 1),
        "multi-turn": (1, 1),
        "recovery": (0, 1),
        "answer": (2, 2),
    }
    assert str(found["right tool"]) == "1/2  50%"


# --- the file format


@each(
    ("line", "message"),
    [
        ("@mesage: x", "unknown key 'mesage' (did you mean 'message'?)"),
        ("message: @[x]", "must be text"),
        ("message: @''", "string should have at least 1 character"),
        ("model: [{@cal: x}]", "unknown key 'cal' (did you mean 'call'?)"),
        ("model: [@{call: x, say: y}]", "write exactly one of call, calls, say, plan, fail; found call and say"),
        ("model: [@{}]", "write exactly one of call, calls, say, plan, fail"),
        ("model: [@{say: x, arguments: {a: 1}}]", "`arguments` requires `call`"),
        ("model: [{calls: @[]}]", "at least one value is required"),
        ("model: [{@plan: {goal: x}}]", "the key 'steps' is missing"),
        ("expect: {@caled: [a]}", "unknown key 'caled' (did you mean 'called'?)"),
        ("expect: {status: @pausd}", "must be 'completed', 'stopped', 'paused', 'cancelled' or 'failed' (did you mean"),
        ("expect: {output_matches: @'('}", "not a linear-time regular expression"),
        ("expect: {max_steps_used: @true}", "must be a whole number"),
        ("decisions: {x: @aprove}", "must be 'approve' or 'reject' (did you mean 'approve'?)"),
        ("decisions: {x: {@rejct: z}}", "unknown key 'rejct' (did you mean 'reject'?)"),
        ("decisions: {x: @{reject: a, respond: b}}", "write exactly one of reject, respond, edit"),
        ("results: {x: {@fial: y}}", "unknown key 'fial' (did you mean 'fail'?)"),
        ("results: {x: @[]}", "at least one value is required"),
        ("turns: @[]", "at least one value is required"),
    ],
)
def test_a_mistake_is_reported_with_its_place_and_a_suggestion(line: str, message: str) -> None:
    text = f"cases: [{{\n{line.replace('@', '')},\nname: it\n}}]\n"
    with pytest.raises(ParseError) as caught:
        parse("x.test.yaml", text.encode(), CaseFile)
    here = [p for p in caught.value.problems if (p.line, p.column) == (2, line.index("@") + 1)]
    messages = [f"{p.message} ({p.hint})" if p.hint else p.message for p in here]
    assert any(found.startswith(message) for found in messages), caught.value


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("name: it, message: a, turns: [b]", "write exactly one of message, turns; found message and turns"),
        ("name: it", "write exactly one of message, turns"),
        ("message: it", "the key 'name' is missing"),
        ("name: it, message: a, results: {agent.x: y}", "agent.x is a sub-agent and runs as part of the case"),
    ],
)
def test_a_case_with_conflicting_or_missing_keys_is_refused(keys: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse("x.test.yaml", f"cases: [{{{keys}}}]".encode(), CaseFile)
    [problem] = caught.value.problems
    assert problem.message.startswith(message)
    assert problem.line == 1


def test_unknown_names_are_problems_of_the_suite(tmp_path: Path) -> None:
    root = shop(tmp_path)
    twice = case("{not_called: [shop.delte], asked: [plan]}", results="{shop.look: x}") + case()[7:]
    write(root, {"agents.d/clerk.test.yaml": twice, "agents.d/clark.test.yaml": case()})
    suite, [lonely, *_] = attempts(root)
    assert [f"{p.place}: {p.message}" for p in suite.errors] == [
        "agents.d/clark.test.yaml:2:5: there is no usable agent 'clark'; did you mean clerk?",
        "agents.d/clerk.test.yaml:6:5: duplicate case name: 'it'",
    ]
    warnings = [problem.message for problem in suite.problems if problem.severity == "warning"]
    assert [text.partition(";")[0] for text in warnings] == [
        "there is no tool 'shop.delte'",
        "there is no tool 'shop.look'",
    ]
    assert lonely.failures == ("there is no usable agent 'clark'",)


def test_a_misspelled_key_of_a_case_does_not_hide_its_other_mistakes(tmp_path: Path) -> None:
    root = shop(tmp_path)
    wrong = case("{caled: [x], called: [shop.delte]}") + case("{called: [shop.lok]}", mesage="x")[7:]
    write(root, {"agents.d/clerk.test.yaml": wrong})
    suite, _ = attempts(root)
    assert [problem.message.partition(";")[0] for problem in suite.problems] == [
        "unknown key 'caled'",
        "there is no tool 'shop.delte'",
        "duplicate case name: 'it'",
        "there is no tool 'shop.lok'",
        "unknown key 'mesage'",
    ]


def test_a_missing_agent_is_reported_once_and_an_invalid_one_in_its_own_file(tmp_path: Path) -> None:
    root = shop(tmp_path)
    many = case() + case()[7:].replace("name: it", "name: again")
    write(
        root, {"agents.d/clark.test.yaml": many, "agents.d/broken.test.yaml": many, "agents.d/broken.yaml": "name: x"}
    )

    async def errors() -> list[str]:
        async with Runtime.open(root, watch=False) as runtime:
            return [problem.place for problem in read_suite(runtime.catalog.current).errors]

    assert asyncio.run(errors()) == ["agents.d/clark.test.yaml:2:5"]


def test_a_case_file_tests_the_agent_in_its_name(tmp_path: Path) -> None:
    assert default_agent("agents.d/sub/clerk.test.yml") == "clerk"
    root = write(shop(tmp_path), {"agents.d/other.test.yaml": case("{}", "[{say: x}]", agent="clerk")})
    _, [attempt] = attempts(root)
    assert attempt.passed


def test_an_invalid_case_file_does_not_affect_other_files_and_agents(tmp_path: Path) -> None:
    root = write(shop(tmp_path), {"agents.d/a.test.yaml": "cases: [", "agents.d/clerk.test.yaml": case()})
    suite, tried = attempts(root)
    assert [problem.path for problem in suite.errors] == ["agents.d/a.test.yaml"]
    assert len(tried) == 1
