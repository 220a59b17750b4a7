"""Fixed plans are checked when their file is loaded; each problem names its line."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import TypedDict

from framework import tool
from framework.config.generations.catalog import Catalog
from tests.support.projects import agent, write


class Found(TypedDict):
    total: int
    names: list[str]
    place: dict[str, Any]


@tool(risk="low")
def find(text: str) -> Found:
    """Finds."""
    return {"total": 1, "names": [text], "place": {}}


@tool(risk="low")
def send(to: str, count: int = 1, flags: list[str] | None = None) -> str:
    """Sends."""
    return f"{to} {count} {flags}"


@tool(risk="critical")
def erase() -> str:
    """Erases."""
    return ""


@tool(risk="low")
def peek() -> str:
    """Peeks."""
    return ""


TOOLS = [find, send, erase, peek]
KEYS = {"executor": "plan", "inputs": "{order: string!, maybe: string}"}
POLICY = '{allow: [find, send, erase], deny: [{tool: send, when: {to: "root*"}}]}'


def problems(root: Path, steps: str, plan: str = "approval: never", **keys: str) -> list[str]:
    """Return the problems of a file with these steps, as `line: message (hint)`, lines counted from the first step."""
    listed = [step.strip() for step in steps.strip().splitlines()]
    body = f"\n  {plan}\n  steps:{'' if listed else ' []'}\n" + "".join(f"    - {step}\n" for step in listed)
    text = agent("p", **(KEYS | {"skill_policy": POLICY} | keys | {"plan": body}))
    write(root, {"agents.d/p.yaml": text})
    start = next(number for number, line in enumerate(text.splitlines(), 1) if line.startswith("  steps:"))
    catalog = Catalog(root, tools=TOOLS, executors=["react", "plan", "auto"], models=["scripted"])
    asyncio.run(catalog.reload())
    found = catalog.current.errors
    return [f"{(one.line or 0) - start}: {one.message}{f' ({one.hint})' if one.hint else ''}" for one in found]


FIND = "{id: a, tool: find, parameters: {text: x}}"


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ("{id: b, tool: sned}", "there is no tool 'sned'; did you mean send?"),
        ("{id: b, tool: erase}", "this agent may not call erase: its risk is critical, and max_risk is medium"),
        ("{id: b, tool: peek}", "this agent may not call peek: `tools` does not allow it (add it: `tools: [peek]`)"),
        ("{id: b, tool: send, parameters: {to: rooty}}", "the policy forbids it: deny send (agents.d/p.yaml:"),
        ("{id: b, agent: helper, message: hi}", "'helper' is not one of this agent's `agents`"),
        ("{id: b, tool: send}", "send: to: it is missing; add it: string"),
        ("{id: b, tool: send, parameters: {to: x, cuont: 2}}", "cuont"),
        ("{id: b, tool: send, parameters: {to: x, count: many}}", "count"),
        ("{id: b, tool: send, parameters: {to: '{{ steps.c.output }}'}}", "there is no step 'c'"),
        ("{id: b, tool: send, parameters: {to: '{{ steps.a }}'}}", "is not a valid reference"),
        ("{id: b, tool: send, parameters: {to: '{{ steps.a.output.name }}'}}", "the result has no name"),
        (
            "{id: b, tool: send, parameters: {to: x, count: '{{ steps.a.output.names }}'}}",
            "is array, and send takes int",
        ),
        ("{id: b, tool: send, parameters: {to: x, flags: '{{ steps.a.output.total }}'}}", "is integer, and send takes"),
        (
            "{id: b, tool: send, parameters: {to: '{{ inputs.ordr }}'}}",
            "there is no input 'ordr'; did you mean order?",
        ),
        ("{id: b, tool: send, parameters: {to: '{{ inputs.maybe }}'}}", "the input 'maybe' may be missing (require it"),
        ("{id: b, tool: send, parameters: {to: '{{ item }}'}}", "there is no for_each here"),
        ("{id: b, tool: send, parameters: {to: '{{ steps.b.output }}'}}", "step b refers to its own result"),
        ("{id: b, tool: send, parameters: {to: x}, depends_on: [z]}", "step b depends on 'z', which does not exist"),
        ("{id: b, tool: send, parameters: {to: x}, depends_on: [b]}", "step b depends on itself"),
        ("{id: a, tool: send, parameters: {to: x}}", "two steps have the id 'a'"),
        ("{id: b, tool: send, parameters: {to: x}, when: {total: 3}}", "a condition is about steps.ID.output"),
        ("{id: b, tool: send, parameters: {to: x}, when: {steps.a.output.total: '=> 3'}}", "did you mean '>= 3'?"),
        ("{id: b, tool: send, parameters: {to: x}, when: {steps.a.output.total: many}}", "can never be met"),
        ("{id: b, tool: send, parameters: {to: x}, when: {steps.a.output.sum: 3}}", "the result has no sum"),
        ("{id: b, tool: send, for_each: steps.a.output.total, parameters: {to: '{{ item }}'}}", "is no list"),
        ("{id: b, tool: send, for_each: '[1, 2]', parameters: {to: '{{ item }}'}}", "for_each is a list of an earlier"),
        ("{id: b, tool: send, for_each: steps.a.output.names, max_items: 101, parameters: {to: x}}", "100"),
        ("{id: b, tool: send, max_items: 3, parameters: {to: x}}", "max_items is for a step with for_each"),
        ("{id: b, tool: send, goal: x}", "exactly one of tool, agent and goal; this one has tool and goal"),
        ("{id: b}", "exactly one of tool, agent and goal; this one has none of them"),
        ("{id: b, goal: x, message: y}", "message is for a step with agent; this one has goal"),
        ("{id: b, goal: 'use {{ steps.a.output }}'}", "text in it would be an instruction (pass it in `parameters`"),
        ("{id: b, goal: x, tools: [nope]}", "there is no tool 'nope'"),
        ("{id: b, tool: send, parameters: {to: x}, if: 3}", "unknown key 'if'"),
        ("{id: b, tool: send, parameters: {to: x}, for_eachh: steps.a.output.names}", "did you mean 'for_each'?"),
    ],
)
def test_each_mistake_in_a_step_is_a_problem_of_its_line(tmp_path: Path, step: str, problem: str) -> None:
    found = problems(tmp_path, f"{FIND}\n{step}")
    assert len(found) == 1, found
    assert found[0].startswith("2: ")
    assert problem in found[0]


def test_a_cycle_and_an_item_with_the_id_of_a_step_are_problems(tmp_path: Path) -> None:
    steps = """
{id: a, tool: find, parameters: {text: x}, depends_on: [c]}
{id: b, tool: find, parameters: {text: x}}
{id: c, tool: find, parameters: {text: x}}
"""
    (found,) = problems(tmp_path, steps)
    assert found == "1: steps depend on each other in a cycle: a -> c -> b -> a"
    steps = """
{id: a-1, tool: find, parameters: {text: x}}
{id: a, tool: send, for_each: steps.a-1.output.names, parameters: {to: "{{ item }}"}}
"""
    (found,) = problems(tmp_path, steps)
    assert found == "2: step a-1 has the id that an item of the loop a gets: use another id"


def test_a_result_that_may_be_missing_needs_the_same_condition(tmp_path: Path) -> None:
    when = 'when: {inputs.order: "a*"}'
    steps = f"""
{{id: a, tool: find, parameters: {{text: x}}, {when}}}
{{id: b, tool: send, parameters: {{to: "{{{{ steps.a.output.total }}}}"}}}}
"""
    (found,) = problems(tmp_path, steps)
    assert found == (
        "2: step a may be skipped, and then it has no result (add its condition here: `when: {inputs.order: 'a*'}`)"
    )
    (found,) = problems(tmp_path, steps.splitlines()[1], plan='answer: "{{ steps.a.output.total }}"')
    assert "step a may be skipped" in found
    assert problems(tmp_path, steps.replace('output.total }}"}}', f'output.total }}}}"}}, {when}}}')) == []
    assert problems(tmp_path, steps.replace("{{ steps.a.output.total }}", "x")) == []


def test_keys_of_the_plan_that_do_not_fit_a_fixed_plan_are_problems(tmp_path: Path) -> None:
    for plan, keys, problem in (
        ("on_failure: replan", {}, "a fixed plan is never replanned: use fail, skip or ask"),
        ("approval: never", {"executor": "react"}, "`plan.steps` needs `mode: plan`; this agent has the mode react"),
        ("approval: never", {"executor": "auto"}, "`plan.steps` needs `mode: plan`; this agent has the mode auto"),
        ("approval: never", {"runtime_policy": "{max_tool_calls: 1}"}, "the steps call 2 tools; max_tool_calls is 1"),
        ('answer: "{{ steps.x.output }}"', {}, "there is no step 'x'"),
        ('answer: "{{ item }}"', {}, "`item` is the item of a loop"),
    ):
        (found,) = problems(tmp_path, f"{FIND}\n{{id: b, tool: send, parameters: {{to: x}}}}", plan=plan, **keys)
        assert problem in found
    (found,) = problems(tmp_path, "", plan="answer: done")
    assert "`answer` belongs to `plan.steps`" in found
    (found,) = problems(tmp_path, "{id: a, tool: find, arguments: {text: x}}", plan="answer: done")
    assert found == "1: unknown key 'arguments' (did you mean 'parameters'?)"


def test_a_file_with_other_errors_also_reports_those_of_its_plan(tmp_path: Path) -> None:
    found = problems(tmp_path, "{id: b, tool: sned}", routing="{priority: high}")
    assert any("there is no tool 'sned'" in one for one in found)
    assert len(found) == 2


def test_a_step_with_an_unknown_key_hides_no_mistake_of_other_steps(tmp_path: Path) -> None:
    steps = """
      {id: a, tool: find, paramters: {text: x}, note: y}
      {id: b, tool: nothing, parameters: {x: "{{ steps.a.output.totl }}"}}
    """
    assert sorted(problems(tmp_path, steps)) == [
        "1: unknown key 'note' (valid keys: id, description, tool, agent, message, goal, parameters, tools, expected, "
        "when, for_each, max_items, depends_on)",
        "1: unknown key 'paramters' (did you mean 'parameters'?)",
        "2: there is no steps.a.output.totl: the result has no totl",
        "2: there is no tool 'nothing'; there are: find, send",
    ]


def test_inputs_of_a_fixed_plan_are_used_though_the_instructions_are_text(tmp_path: Path) -> None:
    step = "{id: a, tool: find, parameters: {text: '{{ inputs.order }}'}, when: {inputs.kind: a}}"
    inputs = "{order: string!, kind: string!, other: string!}"
    keys = KEYS | {"inputs": inputs, "skill_policy": "{allow: [find]}", "plan": f"{{steps: [{step}]}}"}
    write(tmp_path, {"agents.d/p.yaml": agent("p", **keys)})
    catalog = Catalog(tmp_path, tools=TOOLS, executors=["plan"], models=["scripted"])
    asyncio.run(catalog.reload())
    assert [problem.message for problem in catalog.current.problems] == [
        "the model never sees the input 'other': the instructions are plain text"
    ]
