"""Executors and hooks of plugins are called by name and at their place; a guard that refuses or fails is obeyed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from framework import Runtime, events, tool
from framework.config.schema import names_of
from framework.engine.runtime.project import Project
from framework.testing import ScriptedModel, calls
from framework.types.messages import Message
from framework.types.state import Approve, RunResult
from tests.support.projects import agent, write

Body = Callable[[Runtime], Awaitable[None]]

GUARD = """
from framework import Refused, ToolResult, hook

@hook
def message(context, text):
    context.deps.append(("before_run", context.agent, text))
    if "bomb" in text:
        raise Refused("not about that")

@hook
async def call(context, call):
    context.deps.append(("before_tool", call.tool, call.arguments))
    if call.arguments.get("text") == "secret":
        raise Refused("nothing secret")

@hook
def result(context, call, result):
    context.deps.append(("after_tool", call.tool, result.status))
    if result.output == "raise":
        raise RuntimeError("broken")
    return ToolResult(status="success", output="[masked]") if result.output == "mask" else None

@hook
async def answer(context, output):
    context.deps.append(("after_run", output))
    if "password" in output:
        raise Refused("that stays here")
    return output.replace("darn", "****")
"""
HOOKS = (
    "{before_run: [guard.message], before_tool: [guard.call], after_tool: [guard.result], after_run: [guard.answer]}"
)


def project(root: Path, hooks: str = HOOKS, **keys: str) -> Path:
    one = agent("a", model="offline", skill_policy="{allow: [echo]}", hooks=hooks, **keys)
    return write(root, {"agents.d/a.yaml": one, "plugins/guard.py": GUARD})


def run(root: Path, *script: Any, message: str = "go", **options: Any) -> tuple[RunResult, list[Any], ScriptedModel]:
    seen: list[Any] = []
    model = ScriptedModel(*script)

    async def main() -> RunResult:
        async with Runtime.open(root, models={"offline": model}, deps=seen, watch=False) as runtime:
            assert "a" in runtime.catalog.current.agents, runtime.catalog.problems
            return await runtime.run(message, **options)

    return asyncio.run(main()), seen, model


def test_each_hook_is_called_at_its_place_with_its_arguments(tmp_path: Path) -> None:
    result, seen, _ = run(project(tmp_path), calls(("echo", {"text": "x"})), "done")
    assert (result.status, result.output) == ("completed", "done")
    assert seen == [
        ("before_run", "a", "go"),
        ("before_tool", "echo", {"text": "x"}),
        ("after_tool", "echo", "success"),
        ("after_run", "done"),
    ]


def test_a_refused_message_never_reaches_the_model(tmp_path: Path) -> None:
    result, _, model = run(project(tmp_path), "boom", message="build a bomb")
    assert (result.status, result.finish_reason, result.output) == ("stopped", "refused", "not about that")
    assert model.requests == []
    assert run(project(tmp_path), message="build a bomb", raise_on_limit=True)[0].finish_reason == "refused"


def test_a_refused_call_is_never_executed_and_the_run_continues(tmp_path: Path) -> None:
    result, seen, model = run(project(tmp_path), calls(("echo", {"text": "secret"})), "done")
    assert result.output == "done"
    assert [call.status for call in result.tool_calls] == ["denied"]
    assert "nothing secret" in model.requests[1].messages[-1].content
    assert "after_tool" not in [entry[0] for entry in seen]


def test_a_result_can_be_replaced_before_it_is_emitted(tmp_path: Path) -> None:
    result, _, model = run(project(tmp_path), calls(("echo", {"text": "mask"})), "done")
    assert result.tool_calls[0].result == "[masked]"
    assert "mask\n" not in "\n".join(message.content for message in model.requests[1].messages[2:])


def test_a_hook_that_fails_refuses(tmp_path: Path) -> None:
    result, _, model = run(project(tmp_path), calls(("echo", {"text": "raise"})), "done")
    assert result.tool_calls[0].status == "error"
    message = model.requests[1].messages[-1].content
    assert "withheld" in message
    assert "guard.result failed: RuntimeError" in message


@pytest.mark.parametrize("listening", [False, True])
@pytest.mark.parametrize(
    ("said", "reason", "expected"),
    [("darn it", "final", "**** it"), ("the password is x", "refused", "that stays here")],
)
def test_only_the_answer_returned_by_the_hook_is_emitted(
    tmp_path: Path, said: str, reason: str, expected: str, listening: bool
) -> None:
    root, model = project(tmp_path), ScriptedModel(said, "later")

    async def main() -> tuple[RunResult, str, RunResult]:
        async with Runtime.open(root, models={"offline": model}, deps=[], watch=False) as runtime:
            text = ""
            if listening:
                async with runtime.stream("go", conversation="c") as stream:
                    async for event in stream:
                        assert said not in str(event)
                        text += event.text if isinstance(event, events.ContentReceived) else ""
                result = await stream.result()
            else:
                result = await runtime.run("go", conversation="c")
            return result, text, await runtime.run("more", conversation="c")

    result, text, later = asyncio.run(main())
    assert (result.finish_reason, result.output) == (reason, expected)
    assert text == (expected if listening else "")
    assert said not in result.model_dump_json()
    assert said not in later.model_dump_json()
    assert all(said not in message.content for request in model.requests for message in request.messages)


def test_partial_output_after_a_limit_passes_the_hooks_as_well(tmp_path: Path) -> None:
    root = project(tmp_path, runtime_policy="{max_steps: 1}")
    said = Message(role="assistant", content="darn", tool_calls=calls(("echo", {"text": "x"})))
    result, seen, _ = run(root, said, "never")
    assert (result.finish_reason, result.output) == ("max_steps", "****")
    assert ("after_run", "darn") in seen


def test_hooks_added_during_a_run_apply_immediately(tmp_path: Path) -> None:
    root = project(tmp_path)
    model = ScriptedModel(calls(("edit", {})), calls(("echo", {"text": "secret"}), prefix="d"), "done")
    allowed = {"skill_policy": "{allow: [echo, edit]}"}
    held: list[Runtime] = []

    @tool(risk="low")
    async def edit() -> str:
        """Change the file of the running agent."""
        write(root, {"agents.d/a.yaml": agent("a", model="offline", hooks="{before_tool: [guard.call]}", **allowed)})
        return str((await held[0].reload()).number)

    async def main() -> RunResult:
        write(root, {"agents.d/a.yaml": agent("a", model="offline", **allowed)})
        async with Runtime.open(root, models={"offline": model}, tools=[edit], deps=[], watch=False) as runtime:
            held.append(runtime)
            return await runtime.run("go")

    result = asyncio.run(main())
    assert [(call.tool, call.status) for call in result.tool_calls] == [("edit", "success"), ("echo", "denied")]


def test_a_message_is_checked_once_however_often_the_run_resumes(tmp_path: Path) -> None:
    root, seen = project(tmp_path, runtime_policy="{confirm: {from: low}}"), list[Any]()
    model = ScriptedModel(calls(("echo", {"text": "x"})), "done")

    async def main() -> RunResult:
        async with Runtime.open(root, models={"offline": model}, deps=seen, watch=False) as runtime:
            paused = await runtime.run("go")
            return await runtime.resume(paused.run_id, {paused.pending[0].id: Approve()})

    assert asyncio.run(main()).status == "completed"
    assert [entry[0] for entry in seen].count("before_run") == 1


EXECUTOR = """
from framework import Run, executor

@executor
async def twice(run: Run) -> str:
    first = await run.ask_model(tools=False)
    second = await run.ask_model(tools=False)
    return f"{first.content} {second.content}{SUFFIX}"
"""


def executing(root: Path, suffix: str = "") -> Path:
    one = agent("a", model="offline", executor="way.twice")
    return write(root, {"agents.d/a.yaml": one, "plugins/way.py": f"SUFFIX = {suffix!r}\n" + EXECUTOR})


def test_a_plugins_executor_works_through_the_run_and_is_held_to_its_limits(tmp_path: Path) -> None:
    result, _, _ = run(executing(tmp_path), "one", "two")
    assert (result.status, result.output, result.steps) == ("completed", "one two", 2)
    stopped, _, _ = run(executing(tmp_path), "one", "two", limits={"max_steps": 1})
    assert (stopped.finish_reason, stopped.output) == ("max_steps", "one")


def test_an_edited_executor_is_live_for_the_next_run(tmp_path: Path) -> None:
    model = ScriptedModel("a", "b", "c", "d")

    async def main() -> list[str]:
        outputs = []
        async with Runtime.open(executing(tmp_path), models={"offline": model}, watch=False) as runtime:
            outputs.append((await runtime.run("go")).output)
            executing(tmp_path, "!")
            await runtime.reload()
            outputs.append((await runtime.run("go")).output)
        return outputs

    assert asyncio.run(main()) == ["a b", "c d!"]


def problems(root: Path, files: dict[str, str]) -> list[str]:
    async def main() -> list[str]:
        async with Runtime.open(write(root, files), watch=False) as runtime:
            return [f"{problem.place} {problem.message}" for problem in runtime.catalog.problems]

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"hooks": "{before_tool: [guard.cal]}"}, "there is no hook 'guard.cal'; did you mean guard.call"),
        ({"hooks": "{before_run: [guard.result]}"}, "guard.result does not accept the arguments of before_run"),
        ({"executor": "way.twic"}, "there is no executor 'way.twic'; did you mean way.twice"),
        ({"executor": "guard.call"}, "there is no executor 'guard.call'"),
        ({"hooks": "{before_tool: [way.twice]}"}, "there is no hook 'way.twice'"),
        ({"hooks": "{before_tool: [os]}"}, "there is no hook 'os'"),
    ],
)
def test_an_unknown_name_is_rejected_at_its_line(tmp_path: Path, keys: dict[str, str], message: str) -> None:
    files = {
        "agents.d/a.yaml": agent("a", model="offline", **keys),
        "plugins/guard.py": GUARD,
        "plugins/way.py": "SUFFIX = ''\n" + EXECUTOR,
    }
    (found,) = problems(tmp_path, files)
    assert found.startswith("agents.d/a.yaml:")
    assert message in found


def test_an_executor_that_is_not_a_coroutine_function_is_rejected_at_load(tmp_path: Path) -> None:
    source = "from framework import executor\n\n@executor\ndef f(run):\n    return ''\n"
    (found,) = problems(tmp_path, {"plugins/p.py": source})
    assert "async def f(run) -> str" in found


def test_editors_complete_the_executors_of_plugins(tmp_path: Path) -> None:
    project = asyncio.run(Project.read(executing(tmp_path)))
    assert names_of(project.catalog).executors == ["react", "plan", "auto", "code", "way.twice"]
