"""An answer that hooks must check is not visible before they have finished."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from framework import Refused, RunResult, RunSuspended, Runtime, Tool, events, tool
from framework.engine.context.events import RunStream
from framework.store.store import Store
from framework.store.types import RunRecord
from framework.testing import JsonStore, ScriptedModel, Turn, calls
from framework.types.events import Event, ToolStarted, wire
from framework.types.messages import Message, Reasoning
from framework.types.state import RunState
from tests.support.plans import draft, tool_step
from tests.support.projects import agent, write

RAW = "darn it"
GUARD = """
from framework import hook

@hook
async def answer(context, output):
    await context.progress(0.5, "looking")
    return await context.deps.look(output)
"""
RESULT = """
@hook
async def result(context, call, result):
    context.deps.seen.set()
    await context.deps.results.wait()
"""
ON = {"hooks": "{after_run: [guard.answer]}"}


@dataclass
class Watch:
    """A guard that waits for the test."""

    looked_at: list[str] = field(default_factory=list)
    looking: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    seen: asyncio.Event = field(default_factory=asyncio.Event)
    results: asyncio.Event = field(default_factory=asyncio.Event)

    async def look(self, output: str) -> str:
        self.looked_at.append(output)
        self.looking.set()
        await self.go.wait()
        if "secret" in output:
            raise Refused("that stays here")
        return output.replace("darn", "****")


def project(root: Path, **keys: str) -> Path:
    return write(root, {"agents.d/a.yaml": agent("a", **{**ON, **keys}), "plugins/guard.py": GUARD})


Body = Callable[[Runtime, Watch], Awaitable[None]]


def life(
    root: Path, body: Body, *turns: Turn, store: Store | None = None, tools: Sequence[Tool] = (), grace: float = 0
) -> ScriptedModel:
    """Run `body` in a new runtime; return its model."""
    model = ScriptedModel(*turns)

    async def main() -> None:
        watch = Watch()
        options: dict[str, Any] = {"models": {"scripted": model}, "tools": tools, "deps": watch, "grace": grace}
        async with Runtime.open(root, store=store, watch=False, **options) as runtime:
            assert "a" in runtime.catalog.current.agents, runtime.catalog.problems
            await body(runtime, watch)

    asyncio.run(main())
    return model


# --- while the hooks run


@pytest.mark.parametrize("durable", [False, True])
def test_a_run_cancelled_while_hooks_check_its_answer_has_no_answer(tmp_path: Path, durable: bool) -> None:
    store = JsonStore() if durable else None

    async def body(runtime: Runtime, watch: Watch) -> None:
        seen: list[Event] = []
        async with runtime.stream("go") as stream:
            looking = asyncio.create_task(watch.looking.wait())
            async for event in stream:
                seen.append(event)
                if isinstance(event, events.Routed):
                    await looking
                    stream.cancel()
            result = await stream.result()
        assert (result.status, result.finish_reason, result.output) == ("cancelled", "cancelled", "")
        assert RAW not in result.model_dump_json()
        assert RAW not in str(seen)
        assert watch.looked_at == [RAW]
        kept = await runtime.store.load_run(result.run_id)
        assert RAW not in kept.model_dump_json()

    life(project(tmp_path), body, RAW, store=store)


class Watched(JsonStore):
    """A store that keeps the checkpoints of an unfinished run, and signals one that is written while the hooks run."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[RunState] = []
        self.looking = asyncio.Event()

    async def start(self, *arguments: Any) -> RunRecord:
        return WatchedRecord(await super().start(*arguments), self)


class WatchedRecord:
    cancel_requested = False

    def __init__(self, record: RunRecord, store: Watched) -> None:
        self._record, self._store = record, store

    async def write(
        self, state: RunState, events: Sequence[Event] = (), *arguments: Any, last: bool = False, **options: Any
    ) -> None:
        await self._record.write(state, events, *arguments, last=last, **options)
        if not last:
            self._store.kept.append(state.model_copy())
        if any(isinstance(event, ToolStarted) and event.message == "looking" for event in events):
            self._store.looking.set()

    async def release(self) -> None:
        await self._record.release()


@pytest.mark.parametrize("limits", [{}, {"max_steps": 1}], ids=["an answer", "what a limit leaves"])
def test_a_checkpoint_during_the_hooks_is_of_a_run_in_progress(tmp_path: Path, limits: dict[str, Any]) -> None:
    store = Watched()
    said = Message(
        role="assistant", content='{"n": "darn"}', tool_calls=calls(("echo", {"text": "x"})) if limits else ()
    )
    root = project(tmp_path, output_schema="{type: object, properties: {n: {type: string}}}")

    async def body(runtime: Runtime, watch: Watch) -> None:
        running = asyncio.create_task(runtime.run("go", limits=limits))
        await watch.looking.wait()
        await store.looking.wait()
        watch.go.set()
        result = await running
        assert (result.output, result.data) == ('{"n": "****"}', None)
        assert (result.stopped_by is None) == (not limits)

    life(root, body, said, store=store)
    ends = {(s.status, s.finish_reason, s.output, str(s.data), s.stopped_by) for s in store.kept}
    assert ends == {("running", "", "", "None", None)}


@pytest.mark.parametrize("executor", ["react", "plan"])
def test_a_run_suspended_while_hooks_check_its_answer_resumes_at_the_hooks(tmp_path: Path, executor: str) -> None:
    turns: list[Turn] = [RAW] if executor == "react" else [draft(tool_step("a", "echo", text="x")), RAW]
    store, root, running = JsonStore(), project(tmp_path, executor=executor), list[asyncio.Task[RunResult]]()

    async def closing(runtime: Runtime, watch: Watch) -> None:
        running.append(asyncio.create_task(runtime.run("go")))
        await watch.looking.wait()

    async def first() -> str:
        options: dict[str, Any] = {"models": {"scripted": ScriptedModel(*turns)}, "deps": (watch := Watch())}
        async with Runtime.open(root, store=store, watch=False, **options) as runtime:
            await closing(runtime, watch)
        with pytest.raises(RunSuspended):
            await running[0]
        (left,) = await store.runs()
        return left.run_id

    run_id = asyncio.run(first())

    async def second(runtime: Runtime, watch: Watch) -> None:
        watch.go.set()
        left = await runtime.store.load_run(run_id)
        assert (left.status, left.output) == ("running", "")
        assert RAW not in str(await runtime.store.events(run_id))
        result = await runtime.resume(run_id, {})
        assert (result.status, result.output) == ("completed", "**** it")
        assert watch.looked_at == [RAW]
        assert RAW not in result.model_dump_json()

    assert life(root, second, store=store).requests == [], "the answer was persisted"


def test_a_refused_answer_has_no_data(tmp_path: Path) -> None:
    root = project(tmp_path, output_schema="{type: object, properties: {n: {type: string}}}")

    async def body(runtime: Runtime, watch: Watch) -> None:
        watch.go.set()
        result = await runtime.run("go")
        assert (result.finish_reason, result.output, result.data) == ("refused", "that stays here", None)

    life(root, body, '{"n": "secret"}')


def test_a_run_cancelled_before_hooks_check_its_answer_has_no_answer(tmp_path: Path) -> None:
    """The answer exists, and is requested again as data."""
    asked = asyncio.Event()

    class Waiting(ScriptedModel):
        async def stream(self, request: Any) -> Any:
            if self.requests:
                asked.set()
                await asyncio.Event().wait()
            async for delta in super().stream(request):
                yield delta

    async def main() -> RunResult:
        root = project(tmp_path, output_schema="{type: object, properties: {n: {type: string}}}")
        options: dict[str, Any] = {"models": {"scripted": Waiting(RAW)}, "deps": Watch()}
        async with Runtime.open(root, watch=False, **options) as runtime, runtime.stream("go") as stream:
            await asked.wait()
            stream.cancel()
            return await stream.result()

    result = asyncio.run(main())
    assert (result.status, result.output) == ("cancelled", "")
    assert RAW not in result.model_dump_json()


def test_reasoning_of_a_guarded_answer_is_not_emitted(tmp_path: Path) -> None:
    said = Message(role="assistant", content=RAW, reasoning=Reasoning(text="say darn it"))

    async def body(runtime: Runtime, watch: Watch) -> None:
        watch.go.set()
        async with runtime.stream("go") as stream:
            seen = [wire(event) async for event in stream]
        assert RAW not in str(seen)
        assert "thinking" not in [event["event"] for event in seen]
        assert RAW not in (await stream.result()).model_dump_json()

    life(project(tmp_path), body, said)


# --- which hooks apply


@pytest.mark.parametrize("listening", [False, True])
def test_a_hook_added_by_an_edit_applies_to_runs_in_progress(tmp_path: Path, listening: bool) -> None:
    root = project(tmp_path, hooks="{}")
    held: list[Runtime] = []

    @tool(risk="low")
    async def edit() -> str:
        """Add a hook that checks the answers of the running agent."""
        project(root)
        await held[0].reload()
        return "edited"

    async def body(runtime: Runtime, watch: Watch) -> None:
        held.append(runtime)
        watch.go.set()
        async with runtime.stream("go") as stream:
            if not listening:
                result, seen = await stream.result(), []
            else:
                seen = [wire(event) async for event in stream]
                result = await stream.result()
        assert runtime.catalog.current.number == 2
        assert (result.output, watch.looked_at) == ("**** it", [RAW])
        assert "darn" not in str(seen)
        assert "darn" not in result.model_dump_json()
        assert [event["text"] for event in seen if event["event"] == "content"] == ["**** it"] * listening

    life(root, body, calls(("edit", {})), RAW, tools=[edit])


def test_a_hook_added_while_the_answer_streams_applies_to_the_rest(tmp_path: Path) -> None:
    root = project(tmp_path, hooks="{}")
    half, go = asyncio.Event(), asyncio.Event()

    class Slow(ScriptedModel):
        async def stream(self, request: Any) -> Any:
            async for delta in super().stream(request):
                yield delta
                if delta.text == "say":
                    half.set()
                    await go.wait()

    async def main() -> list[Event]:
        watch = Watch()
        watch.go.set()
        models: dict[str, Any] = {"scripted": Slow(f"say {RAW}")}
        options: dict[str, Any] = {"models": models, "deps": watch, "watch": False}
        async with Runtime.open(root, **options) as runtime, runtime.stream("go") as stream:
            reading = asyncio.create_task(_all(stream))
            await half.wait()
            project(root)
            await runtime.reload()
            go.set()
            return await reading

    seen = asyncio.run(main())
    assert [event.text for event in seen if isinstance(event, events.ContentReceived)] == ["say", " **** it"]


async def _all(stream: RunStream) -> list[Event]:
    return [event async for event in stream]


# --- persisted answers


@pytest.mark.parametrize(
    ("said", "expected"),
    [("fine", "fine"), ("darn", "****"), ("secret", "stopped by refused; partial output: that stays here")],
)
def test_a_sub_run_that_ended_is_not_executed_again(tmp_path: Path, said: str, expected: str) -> None:
    """The process ends while a hook checks the result of the sub-agent's call."""
    store = JsonStore()
    hooks = "{after_tool: [guard.result]}"
    root = project(tmp_path, hooks=hooks, sub_agents="[b]")
    write(root, {"agents.d/b.yaml": agent("b", **ON), "plugins/guard.py": GUARD + RESULT})

    async def first() -> str:
        watch, running = Watch(), list[asyncio.Task[RunResult]]()
        watch.go.set()
        model = ScriptedModel(calls(("agent.b", {"message": "think"})), said)
        options: dict[str, Any] = {"models": {"scripted": model}, "deps": watch, "grace": 0}
        async with Runtime.open(root, store=store, watch=False, **options) as runtime:
            running.append(asyncio.create_task(runtime.run("go", agent="a")))
            await watch.seen.wait()
        with pytest.raises(RunSuspended):
            await running[0]
        (left,) = await store.runs()
        return left.run_id

    run_id = asyncio.run(first())

    async def second(runtime: Runtime, watch: Watch) -> None:
        watch.go.set()
        watch.results.set()
        result = await runtime.resume(run_id, {})
        assert (result.status, result.output) == ("completed", "done")
        assert [call.result for call in result.tool_calls] == [expected]
        assert watch.looked_at == []

    assert len(life(root, second, "done", store=store).requests) == 1
