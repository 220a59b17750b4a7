"""Code mode with the other features: skills, tools to be found, long results, sub-agents, replays, missing packages."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from framework import RunResult, Runtime, Tool, tool
from framework.replay import Difference, replay
from framework.testing import JsonStore, ScriptedModel, calls
from framework.tools.toolset import TOOL_SEARCH
from tests.support.commands import agentsd, install_command_in
from tests.support.many_tools import business_tools
from tests.support.projects import agent, write

SKILL = "---\nname: tone\ndescription: How to write.\n---\nBe kind.\n"


def run(root: Path, tools: Sequence[Tool], *turns: Any, script: Any = None) -> tuple[RunResult, ScriptedModel]:
    model = ScriptedModel(*turns, script=script)

    async def main() -> RunResult:
        async with Runtime.open(root, tools=tools, models={"scripted": model}, watch=False) as runtime:
            assert not runtime.catalog.problems, runtime.catalog.problems
            return await runtime.run("go", agent="clerk")

    return asyncio.run(main()), model


def clerk(root: Path, **keys: str) -> Path:
    return write(root, {"agents.d/clerk.yaml": agent("clerk", executor="code", **keys)})


def scripted(code: str) -> tuple[Any, ...]:
    return calls(("run_script", {"code": code}), prefix="s")


def test_a_deferred_tool_is_a_function_once_it_is_found(tmp_path: Path) -> None:
    root = clerk(tmp_path, skill_policy='{allow: ["*.*"], defer: auto}')
    search = calls((TOOL_SEARCH, {"words": "create refund"}), prefix="f")
    result, model = run(root, business_tools(), search, scripted('billing__create_refund(name="Ann")'), "done")
    first, second, _ = model.requests
    assert [one.name for one in first.tools] == ["run_script", TOOL_SEARCH]
    assert "def " not in first.messages[0].content
    found = second.messages[-1].content
    assert found.startswith("Scripts can call these functions now:\n\n")
    assert "def billing__create_refund(name: str" in found
    assert [one.name for one in second.tools] == [one.name for one in first.tools], "caches of providers stay valid"
    assert result.messages[4].content == "value: \"create refund: {'name': 'Ann'}\""


def test_a_deferred_tool_may_be_called_by_its_name(tmp_path: Path) -> None:
    root = clerk(tmp_path, skill_policy='{allow: ["*.*"], deny: [{tool: billing.approve_refund}], defer: auto}')
    result, _ = run(
        root,
        business_tools(),
        scripted('billing__create_refund(name="Ann")'),
        scripted("billing__approve_refund()"),
        "done",
    )
    assert result.messages[2].content == "value: \"create refund: {'name': 'Ann'}\""
    assert "Name `billing__approve_refund` used when not defined" in result.messages[4].content


def test_skills_stay_tools_beside_scripts(tmp_path: Path) -> None:
    write(tmp_path, {"skills/tone/SKILL.md": SKILL})
    load = calls(("skill.load", {"name": "tone"}))
    result, model = run(clerk(tmp_path, skills="[tone]"), (), load, scripted("calculator('1 + 1')"), "done")
    assert [one.name for one in model.requests[0].tools] == ["skill.load", "run_script"]
    assert "Be kind." in result.messages[2].content
    assert result.messages[4].content == "value: 2"


def test_a_replay_runs_the_script_with_the_recorded_results(tmp_path: Path) -> None:
    store, made = JsonStore(), list[str]()

    @tool(risk="low")
    def pay(invoice: str) -> str:
        """Pay."""
        made.append(invoice)
        return f"paid {invoice}"

    async def main() -> tuple[Sequence[Difference], Sequence[Difference]]:
        model = ScriptedModel(scripted("[pay(str(n)) for n in range(3)]"), "done")
        options: dict[str, Any] = {"models": {"scripted": model}, "store": store, "watch": False}
        root = clerk(tmp_path)
        async with Runtime.open(root, tools=[pay], **options) as runtime:
            result = await runtime.run("go", agent="clerk")
            stored = await store.stored_run(await store.load_run(result.run_id))
            same = await replay(root, stored, runtime.catalog.current)
        clerk(tmp_path, skill_policy="{deny: [{tool: pay, when: {invoice: '1'}}], allow: ['*']}")
        async with Runtime.open(root, tools=[pay], **options) as runtime:
            return same, await replay(root, stored, runtime.catalog.current)

    same, stricter = asyncio.run(main())
    assert same == ()
    assert any(one.what == "call" and "@2 pay" in one.subject and "denied" in one.after for one in stricter), stricter
    assert made == ["0", "1", "2"]


def problem_of(root: Path) -> str:
    checked = agentsd("check", cwd=root)
    assert checked.returncode == 78, checked
    return " ".join(checked.stderr.split())


def test_without_the_extra_the_agent_is_refused_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pydantic_monty", None)
    text = problem_of(clerk(tmp_path, model="offline"))
    command = install_command_in(tmp_path, "agentsd[code]")
    assert "agents.d/clerk.yaml:7:11: code mode is not installed: run_script needs pydantic_monty" in text
    assert " ".join(command.split()) in text


def test_a_tool_that_the_model_must_call_cannot_be_a_function(tmp_path: Path) -> None:
    root = clerk(tmp_path, model="offline", model_settings="{tool_choice: calculator}")
    assert "the model cannot be made to call calculator: in code mode, scripts call it" in problem_of(root)


def test_a_rule_of_an_agent_without_code_mode_cannot_name_the_tool(tmp_path: Path) -> None:
    policy = "{ask: [run_script], allow: ['*']}"
    write(tmp_path, {"agents.d/other.yaml": agent("other", model="offline", skill_policy=policy)})
    assert "the ask rule 'run_script' matches no tool" in problem_of(tmp_path)


def test_a_tool_of_the_program_cannot_have_the_name_of_the_tool_for_scripts(tmp_path: Path) -> None:
    @tool(risk="low")
    def run_script(code: str) -> str:
        """Run anything."""
        return code

    async def main() -> list[str]:
        options: dict[str, Any] = {"models": {"scripted": ScriptedModel("done")}, "watch": False}
        async with Runtime.open(clerk(tmp_path), tools=[run_script], **options) as runtime:
            return [str(one) for one in runtime.catalog.problems]

    (problem,) = asyncio.run(main())
    assert "a plugin or server has a tool run_script, which is the name of the tool that runs scripts" in problem


def test_explain_lists_functions_apart(tmp_path: Path) -> None:
    root = clerk(tmp_path, model="offline", skill_policy="{deny: [echo], allow: [calculator, echo]}")
    shown = agentsd("explain", "clerk", cwd=root).stdout
    sent, _, rest = shown.partition("offered as functions of scripts")
    assert "run_script" in sent
    assert "calculator" in rest.partition("not offered")[0]
    assert "def calculator(expression: str) -> Any:" in rest
    assert "def echo" not in rest
