"""The plugins of a generation are set up exactly while it is live or leased by a run."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import Approve, ConfigError, RunResult, Runtime
from framework.config.settings import ReloadSettings, Settings
from framework.llm.client import ModelRequest
from framework.testing import ScriptedModel, Turn, calls
from tests.support.cases import cases
from tests.support.commands import agentsd
from tests.support.projects import agent, write

PLUGIN = """
    import asyncio
    from framework import PluginContext, ToolContext, tool

    async def setup(context: PluginContext) -> None:
        await asyncio.sleep(0)
        context.deps.log.append("up VERSION")

    async def teardown(context: PluginContext) -> None:
        await asyncio.sleep(0)
        context.deps.log.append("down VERSION")

    @tool(risk="low", idempotent=True)
    async def f(context: ToolContext) -> str:
        "Wait."
        context.deps.log.append("use VERSION")
        context.deps.started.put_nowait(context.run_id)
        await context.deps.gate(context.run_id).wait()
        context.deps.log.append("use VERSION")
        return "VERSION"
"""
FAILING = "\n    async def setup(context):\n        raise ConnectionError('no database')\n"
CLERK = agent("clerk", model="offline", skill_policy='{allow: ["p.f"]}')
ASKER = agent("asker", model="offline", skill_policy="{ask: [{tool: p.f, optional: true}], allow: []}")


def plugin(version: str, more: str = "") -> str:
    return dedent(PLUGIN.replace("VERSION", version) + more)


@dataclass
class Deps:
    """Records what plugins do, and controls when their tools return."""

    log: list[str] = field(default_factory=list)
    started: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    """The runs whose tool has started."""
    gates: dict[str, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))
    holding: bool = False
    """Tools wait until their run's gate is opened."""

    def gate(self, run_id: str) -> asyncio.Event:
        if not self.holding:
            self.gates[run_id].set()
        return self.gates[run_id]

    def up(self) -> set[str]:
        """Return the versions that are set up. Each is set up, used and torn down in this order."""
        versions: set[str] = set()
        for entry in self.log:
            action, _, version = entry.partition(" ")
            assert (version in versions) is (action != "up"), self.log
            if action != "use":
                versions ^= {version}
        return versions


def answer(request: ModelRequest) -> Turn:
    """Call the tool, then end."""
    return "end" if request.messages[-1].role == "tool" else calls(("p.f", {}))


async def turns(number: int = 50) -> None:
    """Yield to background tasks `number` times."""
    for _ in range(number):
        await asyncio.sleep(0)


Body = Callable[[Runtime, Deps], Awaitable[None]]


def live(root: Path, body: Body, settings: Settings | None = None, *, holding: bool = False) -> Deps:
    """Open a project with a clerk, an asker and one plugin, and go through a case."""
    deps = Deps(holding=holding)

    async def main() -> None:
        models = {"offline": ScriptedModel(script=answer)}
        async with Runtime.open(root, settings=settings, models=models, deps=deps, watch=False) as runtime:
            await body(runtime, deps)

    asyncio.run(main())
    assert deps.up() == set()
    return deps


def project(root: Path, version: str = "1", more: str = "") -> Path:
    return write(root, {"agents.d/a.yaml": CLERK, "agents.d/b.yaml": ASKER, "plugins/p.py": plugin(version, more)})


async def reload(runtime: Runtime, version: str, more: str = "") -> None:
    write(runtime.root, {"plugins/p.py": plugin(version, more)})
    await runtime.reload()
    await turns()


def test_the_next_version_is_set_up_before_it_goes_live_and_the_last_torn_down_after(tmp_path: Path) -> None:
    async def body(runtime: Runtime, deps: Deps) -> None:
        runtime.catalog.subscribe(lambda event: deps.log.append(f"use {event.generation}"))
        assert deps.log == ["up 1"]
        await reload(runtime, "2")
        assert deps.log == ["up 1", "up 2", "use 2", "down 1"]
        write(tmp_path, {"agents.d/other.yaml": agent("other", model="offline")})
        await runtime.reload()
        assert runtime.catalog.current.number == 3
        del deps.log[4:]  # the third generation has the second version

    assert live(project(tmp_path), body).log[4:] == ["down 2"]


@pytest.mark.conformance(33)
def test_a_run_keeps_its_version_up_until_it_ends(tmp_path: Path) -> None:
    async def body(runtime: Runtime, deps: Deps) -> None:
        running = asyncio.create_task(runtime.run("go", agent="clerk"))
        run_id = await deps.started.get()
        await reload(runtime, "2")
        assert deps.log == ["up 1", "use 1", "up 2"]
        deps.gates[run_id].set()
        assert [call.result for call in (await running).tool_calls] == ["1"]
        await turns()
        assert deps.log[3:] == ["use 1", "down 1"]

    live(project(tmp_path), body, holding=True)


def test_a_paused_run_holds_no_plugins_and_they_are_set_up_again_on_resume(tmp_path: Path) -> None:
    async def body(runtime: Runtime, deps: Deps) -> None:
        paused = await runtime.run("go", agent="asker")
        cancelled = await runtime.run("go", agent="asker")
        await reload(runtime, "2")
        assert deps.log == ["up 1", "up 2", "down 1"]
        await runtime.cancel(cancelled.run_id)
        result = await runtime.resume(paused.run_id, {asked.id: Approve() for asked in paused.pending})
        assert (result.status, result.tool_calls[0].result) == ("completed", "1")
        await turns()
        assert deps.log[3:] == ["up 1", "use 1", "use 1", "down 1"]

    live(project(tmp_path), body)


def test_a_paused_run_whose_version_cannot_be_set_up_again_stays_paused(tmp_path: Path) -> None:
    once = """
    async def setup(context):
        if "up 1" in context.deps.log:
            raise ConnectionError("no database")
        context.deps.log.append("up 1")
    """

    async def body(runtime: Runtime, deps: Deps) -> None:
        paused = await runtime.run("go", agent="asker")
        write(tmp_path, {"plugins/q.py": plugin("r")})
        await reload(runtime, "2")
        for _ in range(2):
            with pytest.raises(ConfigError, match="cannot set up the plugins of generation 1 again") as refused:
                await runtime.resume(paused.run_id, {asked.id: Approve() for asked in paused.pending})
            assert [problem.message for problem in refused.value.problems] == [
                "ConnectionError in setup(): no database"
            ]
        write(tmp_path, {"agents.d/late.yaml": agent("late", model="offline")})
        with pytest.raises(ConfigError):
            await runtime.catalog.rollback(1)
        await turns()
        assert deps.up() == {"2", "r"}  # and no plugin of the first generation
        assert runtime.catalog.current.number == 2
        assert len(await runtime.pending(paused.run_id)) == 1
        assert "late" in (await runtime.reload()).agents, "a rollback that failed holds nothing back"

    write(tmp_path, {"plugins/q.py": plugin("q")})
    live(project(tmp_path, more=once), body)


@pytest.mark.conformance(34)
def test_a_failed_setup_keeps_the_last_good_version_and_affects_nothing_else(tmp_path: Path) -> None:
    async def body(runtime: Runtime, deps: Deps) -> None:
        before = runtime.catalog.current
        write(tmp_path, {"agents.d/c.yaml": agent("c", model="offline")})
        await reload(runtime, "2", FAILING)
        after = runtime.catalog.current
        (problem,) = after.errors
        assert (problem.path, problem.message) == ("plugins/p.py", "ConnectionError in setup(): no database")
        assert problem.line
        assert after.tools["p.f"] is before.tools["p.f"]
        assert after.agents["clerk"] is before.agents["clerk"]
        assert "c" in after.agents
        assert (await runtime.call_tool("clerk", "p.f", {})).output == "1"
        write(tmp_path, {"agents.d/c.yaml": agent("c", model="offline", description="Other.")})
        await runtime.reload()
        assert runtime.catalog.current.errors == (problem,)
        assert deps.log == ["up 1", "use 1", "use 1"]  # and it was not retried
        await reload(runtime, "3")
        assert not runtime.catalog.current.errors
        assert deps.log[3:] == ["up 3", "down 1"]

    live(project(tmp_path), body)


def test_a_failed_setup_of_one_plugin_leaves_the_others_set_up(tmp_path: Path) -> None:
    async def body(runtime: Runtime, deps: Deps) -> None:
        write(tmp_path, {"plugins/q.py": plugin("q")})
        await reload(runtime, "2", FAILING)
        assert deps.log == ["up 1", "up q"]
        write(tmp_path, {"plugins/q.py": plugin("r")})
        await runtime.reload()
        await turns()
        assert deps.log[2:] == ["up r", "down q"]  # the first attempt does not count

    assert live(project(tmp_path), body).log[4:] == ["down r", "down 1"]


def test_at_the_first_load_a_plugin_whose_setup_fails_provides_no_tools(tmp_path: Path) -> None:
    async def body(runtime: Runtime, deps: Deps) -> None:
        assert "p.f" not in runtime.catalog.current.tools
        assert any("no database" in error.message for error in runtime.catalog.current.errors)
        assert deps.log == []

    live(project(tmp_path, more=FAILING), body)


CASES = "cases:\n  - {name: it ends, agent: clerk, message: go, model: [{say: EXPECTED}], expect: {output: end}}\n"


@pytest.mark.parametrize("refused_by", ["gate", "strict"])
def test_a_rejected_version_is_torn_down_and_never_becomes_the_last_good_one(tmp_path: Path, refused_by: str) -> None:
    reloading = ReloadSettings(gate="tests") if refused_by == "gate" else ReloadSettings(mode="strict")
    good = {"agents.d/a.test.yaml": CASES.replace("EXPECTED", "end"), "agents.d/c.yaml": agent("c", model="offline")}
    bad = {"agents.d/a.test.yaml": CASES.replace("EXPECTED", "no"), "agents.d/c.yaml": "version: ["}

    async def body(runtime: Runtime, deps: Deps) -> None:
        write(tmp_path, bad)
        await reload(runtime, "2")
        assert runtime.catalog.current.number == 1
        assert deps.log == ["up 1", "up 2", "down 2"]
        write(tmp_path, good)
        if refused_by == "gate":
            (tmp_path / "plugins/p.py").write_text("def f(:\n", "utf-8")
            await runtime.reload()
            assert runtime.catalog.current.number == 2
            assert [error.path for error in runtime.catalog.current.errors] == ["plugins/p.py"]
            assert (await runtime.call_tool("clerk", "p.f", {})).output == "1"
        await reload(runtime, "2")
        assert (await runtime.call_tool("clerk", "p.f", {})).output == "2"

    live(write(project(tmp_path), good), body, Settings(reload=reloading))


def test_a_rejected_start_tears_down_its_plugins(tmp_path: Path) -> None:
    async def body(runtime: Runtime, deps: Deps) -> None:
        raise AssertionError("it was opened")

    deps = Deps()
    root = write(project(tmp_path), {"agents.d/c.yaml": "version: ["})

    async def main() -> None:
        settings = Settings(reload=ReloadSettings(mode="strict"))
        async with Runtime.open(root, settings=settings, deps=deps, watch=False):
            raise AssertionError("it was opened")

    with pytest.raises(ConfigError):
        asyncio.run(main())
    assert deps.log == ["up 1", "down 1"]


def test_a_rollback_sets_up_the_plugins_of_the_earlier_generation(tmp_path: Path) -> None:
    async def body(runtime: Runtime, deps: Deps) -> None:
        await reload(runtime, "2")
        await runtime.catalog.rollback(1)
        await turns()
        assert deps.log[3:] == ["up 1", "down 2"]
        assert (await runtime.call_tool("clerk", "p.f", {})).output == "1"
        await runtime.reload()
        (tmp_path / "plugins/p.py").write_text("def f(:\n", "utf-8")
        await runtime.reload()
        assert (await runtime.call_tool("clerk", "p.f", {})).output == "1"  # not the 2 that was read since

    live(project(tmp_path), body)


def test_an_earlier_version_stays_up_while_a_stale_agent_has_its_tools(tmp_path: Path) -> None:
    async def body(runtime: Runtime, deps: Deps) -> None:
        without = plugin("2").replace("async def f(", "async def g(")
        write(tmp_path, {"plugins/p.py": without, "agents.d/a.yaml": CLERK + "executor: none\n"})
        await runtime.reload()
        await turns()
        assert runtime.catalog.current.agents["clerk"].stale
        assert deps.log == ["up 1", "up 2"]
        assert (await runtime.call_tool("clerk", "p.f", {})).output == "1"
        write(tmp_path, {"agents.d/a.yaml": CLERK.replace("p.f", "p.*")})
        await runtime.reload()
        await turns()
        assert deps.log[-1] == "down 1"

    live(project(tmp_path), body)


def test_closing_ends_the_runs_first_and_then_tears_down_the_last_that_was_set_up_first(tmp_path: Path) -> None:
    async def body(runtime: Runtime, deps: Deps) -> None:
        running.append(asyncio.create_task(runtime.run("go", agent="clerk")))
        await deps.started.get()
        await reload(runtime, "2")

    running: list[asyncio.Task[RunResult]] = []
    write(tmp_path, {"plugins/q.py": plugin("q")})
    log = live(project(tmp_path), body, holding=True).log
    assert log == ["up 1", "up q", "use 1", "up 2", "down 2", "down q", "down 1"]


@pytest.mark.parametrize("command", ["check", "schema", "config diff ."])
def test_commands_without_runs_set_up_no_plugins(tmp_path: Path, command: str) -> None:
    effect = "\n    def setup(context):\n        open('side-effect', 'w').close()\n"
    project(tmp_path, more=effect)
    assert agentsd(*command.split(), cwd=tmp_path).returncode == 0
    assert not (tmp_path / "side-effect").exists()
    assert agentsd("run", "hello", "-a", "clerk", cwd=tmp_path).returncode == 0
    assert (tmp_path / "side-effect").exists()


# --- arbitrary sequences of events

Step = Literal["edit", "fails", "broken", "run", "pause", "resume", "end", "cancel", "rollback"]
STEPS: Sequence[Step] = ("edit", "fails", "broken", "run", "pause", "resume", "end", "cancel", "rollback")


class World:
    """A runtime, its active and paused runs, and the versions that must be set up."""

    def __init__(self, runtime: Runtime, deps: Deps) -> None:
        self.runtime, self.deps = runtime, deps
        self.edits, self.live = 1, "1"
        self.versions: dict[int, str] = {1: "1"}
        """By the number of the generation."""
        self.running: list[tuple[str, str, asyncio.Task[RunResult]]] = []
        """Each with its run's id and its version."""
        self.paused: list[tuple[RunResult, str]] = []

    async def step(self, step: Step) -> None:
        match step:
            case "edit" | "fails":
                self.edits += 1
                await reload(self.runtime, str(self.edits), FAILING if step == "fails" else "")
                self.live = str(self.edits) if step == "edit" else self.live
            case "broken":
                self.edits += 1
                write(self.runtime.root, {"plugins/p.py": f"def f(: {self.edits}\n"})
                await self.runtime.reload()
            case "run":
                task = asyncio.create_task(self.runtime.run("go", agent="clerk"))
                self.running.append((await self.deps.started.get(), self.live, task))
            case "pause":
                self.paused.append((await self.runtime.run("go", agent="asker"), self.live))
            case "resume" if self.paused:
                result, version = self.paused.pop(0)
                decisions = {asked.id: Approve() for asked in result.pending}
                task = asyncio.create_task(self.runtime.resume(result.run_id, decisions))
                self.running.append((await self.deps.started.get(), version, task))
            case "end" | "cancel" if self.running:
                run_id, version, task = self.running.pop(0)
                if step == "cancel":
                    await self.runtime.cancel(run_id)
                self.deps.gates[run_id].set()
                result = await task
                assert result.status == ("cancelled" if step == "cancel" else "completed")
                assert [call.result for call in result.tool_calls if call.status == "success"] in ([], [version])
            case "rollback":
                number = min(self.versions)
                await self.runtime.catalog.rollback(number)
                self.live = self.versions[number]
        self.versions[self.runtime.catalog.current.number] = self.live
        await turns()
        assert self.deps.up() == {self.live, *(version for _, version, _ in self.running)}


@cases(4)
@given(steps=st.lists(st.sampled_from(STEPS), max_size=14))
def test_exactly_the_live_and_leased_versions_are_set_up(steps: list[Step]) -> None:
    async def body(runtime: Runtime, deps: Deps) -> None:
        world = World(runtime, deps)
        for step in steps:
            await world.step(step)

    with TemporaryDirectory() as folder:
        live(project(Path(folder)), body, holding=True)
