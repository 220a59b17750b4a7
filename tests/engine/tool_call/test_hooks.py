"""Exceptions and invalid results of plugins end their own call, and never the run or the process."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from framework import Respond, RunResult, Runtime, Tool, ToolContext, tool
from framework.testing import JsonStore, ScriptedModel, Turn, calls
from tests.support.projects import agent, write


async def let_a_cancellation_out() -> None:
    """Await a cancelled task, so that its CancelledError propagates."""
    own = asyncio.ensure_future(asyncio.Event().wait())
    own.cancel()
    await own


HOOKS = """
import sys
from framework import ToolResult, executor, hook
from tests.engine.tool_call.test_hooks import let_a_cancellation_out

@hook
async def cancelled(context, *arguments):
    await let_a_cancellation_out()

@hook
def leaves(context, *arguments):
    sys.exit(3)

@hook
async def asks(context, *arguments):
    await context.ask_human("May it?")

@hook
def text(context, call, result):
    return "[masked]"

@hook
def odd(context, call, result):
    data = {"when": object, "half": "\\ud800"}
    return ToolResult(status="success", output=data, metadata=data)

@hook
def half(context, output):
    return "half \\ud800"

@executor
async def silent(run):
    await run.ask_model()

@executor
async def leaving(run):
    sys.exit(3)

@executor
async def halved(run):
    return "half \\ud800"
"""


def project(root: Path, **keys: str) -> Path:
    return write(root, {"agents.d/a.yaml": agent("a", **keys), "plugins/stray.py": HOOKS})


def run(root: Path, *turns: Turn, tools: tuple[Tool, ...] = ()) -> RunResult:
    """Run the agent, and load the run from its record."""

    async def main() -> RunResult:
        store, models = JsonStore(), {"scripted": ScriptedModel(*turns)}
        async with Runtime.open(root, tools=tools, models=models, store=store, watch=False) as runtime:
            assert runtime.catalog.problems == (), runtime.catalog.problems
            result = await runtime.run("go")
            kept = await store.load_run(result.run_id)
            assert (kept.status, kept.output) == (result.status, result.output)
            return result

    return asyncio.run(main())


@tool(risk="low")
async def cancelled() -> str:
    """Raise a CancelledError that does not come from the run."""
    await let_a_cancellation_out()
    return ""


@tool(risk="low")
def leaves() -> str:
    """Ends the process."""
    sys.exit(3)


@tool(risk="low")
async def leaves_too() -> str:
    """Ends the process, from a coroutine."""
    sys.exit(3)


class Panic(BaseException):
    """A BaseException, as raised by bindings of other languages."""


@tool(risk="low")
def panics() -> str:
    """Panics."""
    raise Panic("no way out")


STRAY = [cancelled, leaves, leaves_too, panics]


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside others"])
@pytest.mark.parametrize("stray", STRAY, ids=[one.name for one in STRAY])
def test_any_exception_of_a_tool_fails_the_call_and_the_run_continues(
    tmp_path: Path, stray: Tool, beside: bool
) -> None:
    wanted: list[tuple[str, dict[str, Any]]] = [(stray.name, {}), *([("echo", {"text": "x"})] * beside)]
    result = run(project(tmp_path), calls(*wanted), "done", tools=(stray,))
    assert (result.status, result.output) == ("completed", "done")
    assert [call.status for call in result.tool_calls] == ["error", "success"][: len(wanted)]


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside others"])
def test_a_tool_may_ask_in_tasks_that_it_starts(tmp_path: Path, beside: bool) -> None:
    @tool(risk="low")
    async def book(context: ToolContext) -> str:
        """Book a trip."""

        async def ask(question: str) -> str:
            return await context.ask_human(question)

        async with asyncio.TaskGroup() as asking:
            tasks = [asking.create_task(ask(question)) for question in ("When?", "Where?")]
        return " ".join(task.result() for task in tasks)

    async def main() -> RunResult:
        wanted = [("book", {}), *([("echo", {"text": "x"})] * beside)]
        models = {"scripted": ScriptedModel(calls(*wanted), "done")}
        options: dict[str, Any] = {"tools": [book], "models": models, "store": JsonStore(), "watch": False}
        async with Runtime.open(project(tmp_path), **options) as runtime:
            result = await runtime.run("go")
            while result.status == "paused":
                assert [call.tool for call in result.tool_calls] == ["echo"] * beside, "its neighbours have finished"
                answers = {asked.id: Respond(text=asked.reason.lower()) for asked in result.pending}
                assert all(asked.kind == "question" for asked in result.pending)
                result = await runtime.resume(result.run_id, answers)
            return result

    assert [call.result for call in asyncio.run(main()).tool_calls] == ["when? where?", "x"][: 1 + beside]


@pytest.mark.parametrize("name", ["cancelled", "leaves", "asks"])
def test_any_exception_of_a_hook_is_a_refusal(tmp_path: Path, name: str) -> None:
    echo = calls(("echo", {"text": "x"}))
    denied = run(project(tmp_path, hooks=f"{{before_tool: [stray.{name}]}}"), echo, "done")
    assert (denied.status, [call.status for call in denied.tool_calls]) == ("completed", ["denied"])
    withheld = run(project(tmp_path, hooks=f"{{after_tool: [stray.{name}]}}"), echo, "done")
    assert (withheld.status, [call.status for call in withheld.tool_calls]) == ("completed", ["error"])
    for place in ("before_run", "after_run"):
        refused = run(project(tmp_path, hooks=f"{{{place}: [stray.{name}]}}"), "raw")
        assert refused.finish_reason == "refused"
        assert "raw" not in refused.model_dump_json()


def test_an_invalid_result_of_a_hook_withholds_the_tools_result(tmp_path: Path) -> None:
    result = run(project(tmp_path, hooks="{after_tool: [stray.text]}"), calls(("echo", {"text": "secret"})), "done")
    assert result.tool_calls[0].status == "error"
    assert "withheld" in str(result.tool_calls[0].result)
    assert "secret" not in str(result.messages[-2:])


def test_a_result_from_a_hook_is_storable_and_has_the_calls_duration(tmp_path: Path) -> None:
    result = run(project(tmp_path, hooks="{after_tool: [stray.odd]}"), calls(("echo", {"text": "x"})), "done")
    assert result.status == "completed"
    assert result.tool_calls[0].result == {"when": "<class 'object'>", "half": "?"}
    assert result.tool_calls[0].elapsed_ms > 0
    half = run(project(tmp_path, hooks="{after_run: [stray.half]}"), "done")
    assert (half.status, half.output) == ("completed", "half \ufffd")


def test_an_executor_that_returns_no_text_fails(tmp_path: Path) -> None:
    result = run(project(tmp_path, executor="stray.silent"), "said")
    assert (result.status, result.output) == ("failed", "said")
    assert result.error is not None
    assert "stray.silent" in result.error.message
    assert run(project(tmp_path, executor="stray.leaving")).status == "failed"
    assert run(project(tmp_path, executor="stray.halved")).output == "half \ufffd"
