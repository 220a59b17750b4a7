"""A run keeps its generation: an edit that tightens applies to it immediately, one that widens never does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import RunResult, Runtime, tool
from framework.engine.context.policy import with_lowered_limits
from framework.store.store import Store
from framework.store.types import RunRecord
from framework.testing import ScriptedModel, Turn, calls
from framework.tools.threads import THREADS_PER_RUN
from framework.types.events import Event, ToolStarted
from framework.types.spec import Limits
from framework.types.state import RunState
from tests.support.cases import cases
from tests.support.projects import agent, write


async def run_with_an_edit(root: Path, edited: dict[str, str], *turns: Turn, **limits: Any) -> RunResult:
    """A run whose first tool call changes the agent's file, and waits until the edit is live."""
    async with Runtime.open(root, tools=[], watch=False) as probe:
        assert not probe.catalog.current.problems

    @tool(risk="low")
    async def edit() -> str:
        """Change the agent's file."""
        write(root, {"agents.d/one.yaml": agent("one", **({"model": "offline"} | edited))})
        await opened[0].reload()
        return "edited"

    opened: list[Runtime] = []
    model = ScriptedModel(calls(("edit", {}), prefix="e"), *turns)
    async with Runtime.open(root, tools=[edit], models={"offline": model}, watch=False) as runtime:
        opened.append(runtime)
        result = await runtime.run("go", agent="one", limits=limits)
        assert runtime.catalog.current.number == 2
    return result


def project(root: Path, **keys: str) -> Path:
    return write(root, {"agents.d/one.yaml": agent("one", model="offline", **keys)})


ECHO = calls(("echo", {"text": "x"}))


def test_a_run_stays_on_the_generation_it_began_with(tmp_path: Path) -> None:
    result = asyncio.run(run_with_an_edit(project(tmp_path), {"instructions": "New."}, "done"))
    assert (result.generation, result.output) == (1, "done")


def test_a_deny_rule_added_during_a_run_denies_the_next_call(tmp_path: Path) -> None:
    edited = {"skill_policy": '{deny: [{tool: echo, reason: not any more}], allow: ["*"]}'}
    result = asyncio.run(run_with_an_edit(project(tmp_path), edited, ECHO, "done"))
    assert [(call.tool, call.status) for call in result.tool_calls] == [("edit", "success"), ("echo", "denied")]
    assert "not any more" in str(result.tool_calls[1].result)


@pytest.mark.parametrize(
    ("rules", "status"), [('{deny: [pay], allow: ["*"]}', "denied"), ('{ask: [pay], allow: ["*"]}', "waits")]
)
def test_a_call_that_waited_for_its_rate_limit_is_evaluated_again(tmp_path: Path, rules: str, status: str) -> None:
    root, made = project(tmp_path), list[int]()

    async def main() -> RunResult:
        @tool(risk="low", rate="1/s")
        async def pay(amount: int) -> str:
            """Pay, and deny this tool to the agent."""
            made.append(amount)
            write(root, {"agents.d/one.yaml": agent("one", model="offline", skill_policy=rules)})
            await runtime.reload()
            return "paid"

        model = ScriptedModel(calls(("pay", {"amount": 1}), ("pay", {"amount": 2})), "done")
        async with Runtime.open(root, tools=[pay], models={"offline": model}, watch=False) as runtime:
            return await runtime.run("go")

    result = asyncio.run(main())
    assert made == [1]
    if status == "waits":
        assert [(confirmation.tool, confirmation.arguments) for confirmation in result.pending] == [
            ("pay", {"amount": 2})
        ]
    else:
        assert [call.status for call in result.tool_calls] == ["success", "denied"]


EDIT: ContextVar[Callable[[], Awaitable[None]]] = ContextVar("edit")
"""What the hook of a test does while a call waits for it."""
HOOK = """
from framework import hook
from tests.engine.context.test_pinning import EDIT

@hook
async def slow(context, call):
    await EDIT.get()()
"""


@pytest.mark.parametrize(
    ("rules", "status"), [('{deny: [pay], allow: ["*"]}', "denied"), ('{ask: [pay], allow: ["*"]}', "waits")]
)
def test_a_call_that_waited_for_a_hook_is_evaluated_again(tmp_path: Path, rules: str, status: str) -> None:
    hooks = "{before_tool: [guard.slow]}"
    root, made = write(project(tmp_path, hooks=hooks), {"plugins/guard.py": HOOK}), list[int]()

    @tool(risk="low")
    async def pay(amount: int) -> str:
        """Pay."""
        made.append(amount)
        return "paid"

    async def main() -> RunResult:
        async def edit() -> None:
            write(root, {"agents.d/one.yaml": agent("one", model="offline", hooks=hooks, skill_policy=rules)})
            await runtime.reload()

        EDIT.set(edit)
        model = ScriptedModel(calls(("pay", {"amount": 1})), "done")
        async with Runtime.open(root, tools=[pay], models={"offline": model}, watch=False) as runtime:
            return await runtime.run("go")

    result = asyncio.run(main())
    assert made == []
    assert [one.tool for one in result.pending] == (["pay"] if status == "waits" else [])
    assert status == "waits" or [call.status for call in result.tool_calls] == ["denied"]


def test_a_call_denied_while_it_waits_for_a_thread_is_not_executed(tmp_path: Path) -> None:
    limits = f"{{max_parallel_tools: {THREADS_PER_RUN + 1}, max_tool_calls: {THREADS_PER_RUN + 1}}}"
    root, made, denied = project(tmp_path, runtime_policy=limits), list[int](), threading.Event()

    async def main() -> RunResult:
        loop, full = asyncio.get_running_loop(), asyncio.Event()

        @tool(risk="low")
        def pay(amount: int) -> str:
            """Pay, once this tool is denied."""
            made.append(amount)
            if len(made) == THREADS_PER_RUN:
                loop.call_soon_threadsafe(full.set)
            denied.wait()
            return "paid"

        model = ScriptedModel(calls(*(("pay", {"amount": n}) for n in range(THREADS_PER_RUN + 1))), "done")
        async with Runtime.open(root, tools=[pay], models={"offline": model}, watch=False) as runtime:
            running = asyncio.create_task(runtime.run("go"))
            await full.wait()
            rules = '{deny: [pay], allow: ["*"]}'
            edited = agent("one", model="offline", runtime_policy=limits, skill_policy=rules)
            write(root, {"agents.d/one.yaml": edited})
            await runtime.reload()
            denied.set()
            return await running

    result = asyncio.run(main())
    assert len(made) == THREADS_PER_RUN
    assert sorted(call.status for call in result.tool_calls) == ["denied", *["success"] * THREADS_PER_RUN]


class SlowRecord:
    """A record whose write of a call's start takes as long as an edit."""

    def __init__(self, record: RunRecord, edit: Callable[[], Awaitable[None]]) -> None:
        self._record, self._edit = record, edit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)

    async def write(self, state: RunState, events: Sequence[Event] = (), *rest: Any, **options: Any) -> None:
        if any(isinstance(event, ToolStarted) for event in events):
            await self._edit()
        await self._record.write(state, events, *rest, **options)


@pytest.mark.parametrize("name", ["pay", "agent.helper"])
def test_a_call_denied_while_its_start_is_stored_is_not_executed(tmp_path: Path, name: str) -> None:
    root, made = project(tmp_path, sub_agents="[helper]"), list[int]()
    write(root, {"agents.d/helper.yaml": agent("helper", model="offline")})
    arguments: dict[str, Any] = {"amount": 1} if name == "pay" else {"message": "go"}

    class SlowStore(Store):
        async def start(self, *arguments: Any) -> RunRecord:
            return SlowRecord(await super().start(*arguments), edit)

    async def edit() -> None:
        rules = f'{{deny: [{name}], allow: ["*"]}}'
        edited = agent("one", model="offline", sub_agents="[helper]", skill_policy=rules)
        write(root, {"agents.d/one.yaml": edited})
        await opened[0].reload()

    @tool(risk="low")
    async def pay(amount: int) -> str:
        """Pay."""
        made.append(amount)
        return "paid"

    async def main() -> RunResult:
        model, store = (
            ScriptedModel(calls((name, arguments)), "done"),
            await SlowStore.open("sqlite:///s.db", root),
        )
        async with Runtime.open(root, tools=[pay], models={"offline": model}, store=store, watch=False) as runtime:
            opened.append(runtime)
            return await runtime.run("go", agent="one")

    opened: list[Runtime] = []
    result = asyncio.run(main())
    assert (made, result.output) == ([], "done")
    assert [call.status for call in result.tool_calls] == ["denied"]


def test_a_call_denied_between_two_attempts_is_not_retried(tmp_path: Path) -> None:
    root, made = project(tmp_path), list[int]()

    async def main() -> RunResult:
        @tool(risk="low", idempotent=True, retries=2)
        async def fetch() -> str:
            """Fetch something, and deny this tool to the agent."""
            made.append(1)
            rules = '{deny: [fetch], allow: ["*"]}'
            write(root, {"agents.d/one.yaml": agent("one", model="offline", skill_policy=rules)})
            await runtime.reload()
            raise ConnectionError("lost")

        model = ScriptedModel(calls(("fetch", {})), "done")
        async with Runtime.open(root, tools=[fetch], models={"offline": model}, watch=False) as runtime:
            return await runtime.run("go")

    result = asyncio.run(main())
    assert made == [1]
    assert [(call.status, call.result) for call in result.tool_calls] == [("error", "ConnectionError: lost")]


def test_a_deny_rule_removed_during_a_run_still_denies(tmp_path: Path) -> None:
    root = project(tmp_path, skill_policy='{deny: [echo], allow: ["*"]}')
    result = asyncio.run(run_with_an_edit(root, {"skill_policy": '{allow: ["*"]}'}, ECHO, "done"))
    assert result.tool_calls[1].status == "denied"


def test_an_ask_rule_added_during_a_run_applies(tmp_path: Path) -> None:
    result = asyncio.run(run_with_an_edit(project(tmp_path), {"skill_policy": '{ask: [echo], allow: ["*"]}'}, ECHO))
    assert result.status == "paused"
    assert [confirmation.tool for confirmation in result.pending] == ["echo"]


@pytest.mark.parametrize(
    ("limit", "value", "turns"),
    [("max_steps", "2", [ECHO]), ("max_tool_calls", "1", [ECHO]), ("max_total_tokens", "20", [ECHO])],
)
def test_a_limit_lowered_during_a_run_stops_it_and_names_its_place(
    tmp_path: Path, limit: str, value: str, turns: list[Turn]
) -> None:
    edited = {"runtime_policy": f"{{{limit}: {value}}}"}
    result = asyncio.run(run_with_an_edit(project(tmp_path), edited, *turns))
    assert (result.status, result.finish_reason) == ("stopped", limit)
    assert result.stopped_by is not None
    assert result.stopped_by.place == "agents.d/one.yaml:7"


@tool(risk="low")
async def never() -> str:
    """Wait forever."""
    await asyncio.Event().wait()
    return ""


def test_a_timeout_lowered_during_a_run_stops_it(tmp_path: Path) -> None:
    async def main() -> RunResult:
        root = project(tmp_path)
        began = asyncio.Event()

        @tool(risk="low")
        async def edit() -> str:
            """Change the agent's file."""
            edited = agent("one", model="offline", runtime_policy="{timeout: 50ms}")
            write(root, {"agents.d/one.yaml": edited})
            await runtime.reload()
            began.set()
            return "edited"

        model = ScriptedModel(calls(("edit", {}), prefix="e"), calls(("never", {})))
        async with Runtime.open(root, tools=[edit, never], models={"offline": model}, watch=False) as runtime:
            result = await runtime.run("go")
        assert began.is_set()
        return result

    result = asyncio.run(main())
    assert (result.status, result.finish_reason) == ("stopped", "timeout")


def test_a_timeout_lowered_while_a_sub_agent_works_stops_the_run(tmp_path: Path) -> None:
    async def main() -> RunResult:
        root = project(tmp_path, sub_agents="[two]")
        write(root, {"agents.d/two.yaml": agent("two", model="offline")})

        @tool(risk="low")
        async def edit() -> str:
            """Change the calling agent's file."""
            edited = agent("one", model="offline", sub_agents="[two]", runtime_policy="{timeout: 50ms}")
            write(root, {"agents.d/one.yaml": edited})
            await runtime.reload()
            return "edited"

        turns = calls(("agent.two", {"message": "go"})), calls(("edit", {})), calls(("never", {}))
        options: dict[str, Any] = {"tools": [edit, never], "models": {"offline": ScriptedModel(*turns)}}
        async with Runtime.open(root, watch=False, **options) as runtime, asyncio.timeout(20):
            return await runtime.run("go", agent="one")

    result = asyncio.run(main())
    assert (result.status, result.finish_reason) == ("stopped", "timeout")


def test_a_limit_raised_during_a_run_applies_to_the_next_run(tmp_path: Path) -> None:
    root = project(tmp_path, runtime_policy="{max_steps: 2}")
    result = asyncio.run(run_with_an_edit(root, {"runtime_policy": "{max_steps: 5}"}, ECHO))
    assert result.finish_reason == "max_steps"


def test_an_edit_of_something_else_leaves_the_callers_own_limit(tmp_path: Path) -> None:
    root = project(tmp_path, runtime_policy="{max_steps: 2}")
    turns = [calls(("echo", {"text": str(n)}), prefix=f"t{n}") for n in range(3)]
    edited = {"runtime_policy": "{max_steps: 2, max_tool_calls: 9}"}
    result = asyncio.run(run_with_an_edit(root, edited, *turns, "done", max_steps=8))
    assert (result.status, result.steps) == ("completed", 5)


@pytest.mark.parametrize("comes_back", [False, True], ids=["removed", "back, but invalid"])
def test_a_removed_agent_is_denied_its_next_call_and_the_run_ends_normally(tmp_path: Path, comes_back: bool) -> None:
    """A file that came back invalid may forbid what the version before it permitted."""
    root = write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline")})

    async def main() -> RunResult:
        @tool(risk="low")
        async def remove() -> str:
            """Remove the agent's file."""
            await asyncio.to_thread((root / "agents.d/one.yaml").unlink)
            await runtime.reload()
            if comes_back:
                keys = {"max_stepz": "1", "skill_policy": "{deny: [echo]}"}
                await asyncio.to_thread(write, root, {"agents.d/one.yaml": agent("one", model="offline", **keys)})
                await runtime.reload()
            assert "one" not in runtime.catalog.current.agents
            return "removed"

        model = ScriptedModel(calls(("remove", {}), prefix="r"), ECHO, "done")
        async with Runtime.open(root, tools=[remove], models={"offline": model}, watch=False) as runtime:
            return await runtime.run("go")

    result = asyncio.run(main())
    assert result.output == "done"
    assert result.tool_calls[1].status == "denied"
    assert "agents.d/one.yaml no longer defines the agent 'one'" in str(result.tool_calls[1].result)


def test_a_broken_file_denies_nothing(tmp_path: Path) -> None:
    result = asyncio.run(run_with_an_edit(project(tmp_path), {"max_stepz": "1"}, ECHO, "done"))
    assert [call.status for call in result.tool_calls] == ["success", "success"]


LIMITS = st.builds(
    Limits,
    max_steps=st.none() | st.integers(1, 5),
    max_total_tokens=st.none() | st.integers(1, 5),
    timeout=st.none() | st.floats(1, 5),
)


@cases(100)
@given(own=LIMITS, pinned=LIMITS, live=LIMITS)
def test_limits_are_only_lowered_and_only_where_an_edit_lowered_them(own: Limits, pinned: Limits, live: Limits) -> None:
    result = with_lowered_limits(own, pinned, live)
    for name in ("max_steps", "max_total_tokens", "timeout"):
        mine, before, now, then = (getattr(x, name) for x in (own, pinned, live, result))
        big = float("inf")
        mine, before, now, then = (big if x is None else x for x in (mine, before, now, then))
        assert then == (min(mine, now) if now < before else mine)
