"""The reload gate: an edit with failing cases does not take effect, and the previous generation stays active."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from framework import ConfigError, Runtime, tool
from framework.config.settings import ComparisonGate, ReloadSettings, Settings
from framework.evals import comparison, runner
from framework.evals.suite import Judgement
from framework.store.memory import MemoryStore
from framework.store.run_links import StoredCaseResults
from framework.testing import ScriptedModel, calls
from framework.types.errors import GenerationNotFound
from framework.types.events import ConfigRejected, ConfigReloaded
from tests.support.commands import agentsd
from tests.support.projects import agent, write

GATED = Settings(reload=ReloadSettings(gate="tests", quiet=0.01))
FILE, CASES = "agents.d/one.yaml", "agents.d/one.test.yaml"
CALLS_ECHO = """
cases:
  - name: it says hello
    message: echo hello
    expect: {called: [echo], output: hello}
"""
Body = Callable[[Runtime, "list[ConfigReloaded | ConfigRejected]"], Awaitable[None]]


def one(allow: str = "[echo]", **keys: str) -> str:
    return agent("one", **{"model": "offline", "skill_policy": f"{{allow: {allow}}}", **keys})


def live(root: Path, body: Body, settings: Settings = GATED, *, watch: bool = False) -> None:
    """Open a project with these files and run `body`, which receives the reload events."""

    async def main() -> None:
        reloads: list[ConfigReloaded | ConfigRejected] = []
        async with Runtime.open(root, settings=settings, watch=watch) as runtime:
            runtime.catalog.subscribe(reloads.append)
            await body(runtime, reloads)

    asyncio.run(main())


def project(root: Path, cases: str = CALLS_ECHO) -> Path:
    return write(root, {FILE: one(), CASES: cases})


def test_an_edit_with_a_failing_case_is_rejected_and_the_old_generation_stays_active(tmp_path: Path) -> None:
    async def body(runtime: Runtime, reloads: list[ConfigReloaded | ConfigRejected]) -> None:
        before = runtime.catalog.current
        write(tmp_path, {FILE: one("[calculator]")})
        assert await runtime.reload() is before
        assert runtime.catalog.current is before
        [rejected] = reloads
        assert isinstance(rejected, ConfigRejected)
        assert rejected.generation == before.number == 1
        problem, warning = rejected.problems
        assert "the restrictions of this edit are NOT in effect for one" in warning.message
        assert problem.place == f"{CASES}:2:5"
        assert problem.message.startswith(
            "case 'it says hello' failed: expected called [echo], got []; expected output"
        )
        assert runtime.catalog.problems == rejected.problems
        assert (await runtime.run("echo again")).output == "again"

    live(project(tmp_path), body)


def test_a_rejected_edit_is_not_retried_until_a_file_changes(tmp_path: Path) -> None:
    ran: list[str] = []

    @tool(risk="low", idempotent=True)
    def look() -> str:
        """Look around."""
        ran.append("looked")
        return "nothing"

    cases = CALLS_ECHO + "    model: [{call: look}, {say: hello}]\n"

    async def main() -> None:
        root = write(tmp_path, {FILE: one("[echo, look]"), CASES: CALLS_ECHO})
        async with Runtime.open(root, settings=GATED, tools=[look], watch=False) as runtime:
            before = runtime.catalog.current
            write(root, {CASES: cases})
            for _ in range(3):
                assert await runtime.reload() is before
            assert ran == ["looked"]
            write(root, {FILE: one("[echo, look]", instructions="Other.")})
            assert await runtime.reload() is before
            assert ran == ["looked", "looked"]

    asyncio.run(main())


@pytest.mark.parametrize(
    "fix",
    [{FILE: one("[calculator, echo]")}, {CASES: CALLS_ECHO.replace("called: [echo], output: hello", "called: []")}],
    ids=["the agent", "the case"],
)
def test_fixing_agent_or_case_lets_the_edit_take_effect(tmp_path: Path, fix: dict[str, str]) -> None:
    async def body(runtime: Runtime, reloads: list[ConfigReloaded | ConfigRejected]) -> None:
        write(tmp_path, {FILE: one("[calculator]")})
        await runtime.reload()
        write(tmp_path, fix)
        generation = await runtime.reload()
        assert generation.number == 2
        assert "calculator" in generation.agents["one"].toolset.offered
        assert isinstance(reloads[-1], ConfigReloaded)
        assert reloads[-1].changed == ("one",)
        assert runtime.catalog.problems == ()

    live(project(tmp_path), body)


def test_the_watcher_reports_a_rejected_edit_and_publishes_its_fix(tmp_path: Path) -> None:
    async def body(runtime: Runtime, reloads: list[ConfigReloaded | ConfigRejected]) -> None:
        heard = asyncio.Event()
        runtime.catalog.subscribe(lambda event: heard.set())
        write(tmp_path, {FILE: one("[calculator]")})
        await asyncio.wait_for(heard.wait(), 20)
        assert isinstance(reloads[0], ConfigRejected)
        assert runtime.catalog.current.number == 1
        write(tmp_path, {FILE: one("[calculator, echo]")})
        assert (await asyncio.wait_for(runtime.wait_generation(2), 20)).number == 2

    live(project(tmp_path), body, watch=True)


def test_an_invalid_case_file_closes_the_gate(tmp_path: Path) -> None:
    async def body(runtime: Runtime, reloads: list[ConfigReloaded | ConfigRejected]) -> None:
        before = runtime.catalog.current
        write(tmp_path, {CASES: CALLS_ECHO.replace("expect", "expct")})
        assert await runtime.reload() is before
        assert [problem.place for problem in reloads[0].problems] == [f"{CASES}:4:5"]
        write(tmp_path, {CASES: CALLS_ECHO, "agents.d/two.test.yaml": CALLS_ECHO})
        assert await runtime.reload() is before
        assert reloads[1].problems[0].message.startswith("there is no usable agent 'two'")
        (tmp_path / "agents.d/two.test.yaml").unlink()
        (tmp_path / "agents.d/two.test.yaml").symlink_to("nowhere")
        assert await runtime.reload() is before
        assert reloads[2].problems[0].message == "cannot be read: No such file or directory"

    live(project(tmp_path), body)


def test_a_first_start_whose_cases_fail_serves_nothing(tmp_path: Path) -> None:
    root = write(tmp_path, {FILE: one("[calculator]"), CASES: CALLS_ECHO})

    async def body(runtime: Runtime, reloads: list[ConfigReloaded | ConfigRejected]) -> None:
        raise AssertionError("it was opened")

    with pytest.raises(ConfigError, match="nothing is served until every case passes") as refused:
        live(root, body)
    assert "case 'it says hello' failed" in refused.value.problems[0].message


def test_without_the_gate_case_files_are_not_read(tmp_path: Path) -> None:
    async def body(runtime: Runtime, reloads: list[ConfigReloaded | ConfigRejected]) -> None:
        write(tmp_path, {FILE: one("[calculator]")})
        generation = await runtime.reload()
        assert generation.number == 2
        for text in (CALLS_ECHO + "# another\n", "cases: ["):
            write(tmp_path, {CASES: text})
            assert await runtime.reload() is generation
        assert not generation.problems

    live(project(tmp_path), body, Settings())


def test_a_changed_case_counts_as_an_edit_only_with_the_gate(tmp_path: Path) -> None:
    async def body(runtime: Runtime, reloads: list[ConfigReloaded | ConfigRejected]) -> None:
        first = runtime.catalog.current
        write(tmp_path, {CASES: CALLS_ECHO + "# another\n"})
        second = await runtime.reload()
        assert second.number == 2
        assert second.agents["one"] is first.agents["one"]

    live(project(tmp_path), body)


def test_the_gate_does_not_affect_a_run_in_progress(tmp_path: Path) -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    @tool(risk="low")
    async def wait() -> str:
        """Wait."""
        entered.set()
        await leave.wait()
        return "waited"

    async def main() -> None:
        root = write(tmp_path, {FILE: one("[echo, wait]"), CASES: CALLS_ECHO})
        models = {"offline": ScriptedModel(calls(("wait", {})), "the end")}
        async with Runtime.open(root, settings=GATED, tools=[wait], models=models, watch=False) as runtime:
            running = asyncio.create_task(runtime.run("go", conversation="case"))
            await entered.wait()
            write(root, {FILE: one("[calculator]")})
            assert (await runtime.reload()).number == 1
            write(root, {FILE: one("[echo, calculator]")})
            assert (await runtime.reload()).number == 2
            leave.set()
            result = await running
            assert (result.output, result.generation) == ("the end", 1)
            assert [state.run_id for state in await runtime.store.runs()] == [result.run_id]

    asyncio.run(main())


def test_the_gate_executes_no_tool_with_side_effects(tmp_path: Path) -> None:
    paid: list[str] = []

    @tool(risk="medium", idempotent=True)
    def pay() -> str:
        """Pay."""
        paid.append("paid")
        return "paid"

    cases = CALLS_ECHO.replace("[echo]", "[pay, echo]")
    cases += "    model: [{call: pay}, {call: echo, arguments: {text: x}}, {say: hello}]\n"

    async def main() -> None:
        root = write(tmp_path, {FILE: one("[echo, pay]"), CASES: cases})
        async with Runtime.open(root, settings=GATED, tools=[pay], watch=False) as runtime:
            assert runtime.catalog.current.number == 1
            assert paid == []

    asyncio.run(main())


class Slow:
    """A tool that a case calls, which ends when the test lets it."""

    def __init__(self) -> None:
        self.started, self.leave = asyncio.Event(), asyncio.Event()

    async def look(self) -> str:
        """Look around."""
        self.started.set()
        await self.leave.wait()
        return "nothing"


SLOW_CASES = CALLS_ECHO + "    model: [{call: look}, {call: echo, arguments: {text: x}}, {say: hello}]\n"


def test_a_rollback_does_not_wait_for_the_cases_of_an_edit(tmp_path: Path) -> None:
    async def main() -> None:
        slow = Slow()
        root = write(tmp_path, {FILE: one("[echo, look]"), CASES: CALLS_ECHO})
        look = tool(risk="low", idempotent=True)(slow.look)
        async with Runtime.open(root, settings=GATED, tools=[look], watch=False) as runtime:
            write(root, {FILE: one("[echo, look]", description="Second.")})
            await runtime.reload()
            write(root, {FILE: one("[echo, look]", description="Third."), CASES: SLOW_CASES})
            edit = asyncio.create_task(runtime.reload())
            await slow.started.wait()
            rolled_back = await asyncio.wait_for(runtime.catalog.rollback(1), 20)
            assert rolled_back.agents["one"].spec.description != "Second."
            assert await edit is rolled_back
            assert (runtime.catalog.held, slow.leave.is_set()) == (True, False)
            assert [entry.trigger for entry in runtime.catalog.history] == ["startup", "api", "rollback"]

    asyncio.run(main())


def test_a_rollback_to_an_unknown_generation_does_not_end_the_cases(tmp_path: Path) -> None:
    async def main() -> None:
        slow = Slow()
        root = write(tmp_path, {FILE: one("[echo, look]"), CASES: CALLS_ECHO})
        look = tool(risk="low", idempotent=True)(slow.look)
        async with Runtime.open(root, settings=GATED, tools=[look], watch=False) as runtime:
            write(root, {CASES: SLOW_CASES.replace("called: [echo]", "called: [look, echo]")})
            edit = asyncio.create_task(runtime.reload())
            await slow.started.wait()
            with pytest.raises(GenerationNotFound):
                await asyncio.wait_for(runtime.catalog.rollback(7), 20)
            slow.leave.set()
            assert (await edit).number == 2

    asyncio.run(main())


def test_a_held_generation_goes_live_at_a_restart_without_its_cases(tmp_path: Path) -> None:
    async def main() -> None:
        (root := project(tmp_path)).joinpath("agentsd.yaml").write_text("reload: {gate: tests}\n")
        async with Runtime.open(root) as runtime:
            write(root, {FILE: one(description="Second."), CASES: CALLS_ECHO.replace("echo hello", "echo hello ")})
            await runtime.reload()
            await runtime.catalog.rollback(1)
        # the cases on the disk fail for both versions
        async with Runtime.open(root) as runtime:
            assert runtime.catalog.held
            assert runtime.catalog.current.agents["one"].spec.description != "Second."

    asyncio.run(main())


# --- beside the gate

ASKS = """
cases:
  - name: it refuses to write
    message: write a file
    model: [{call: write_file, arguments: {path: a.txt, content: x}}, {say: done}]
    expect: {denied: [write_file]}
"""


def closed(root: Path) -> Path:
    writes = one("[write_file, echo]", runtime_policy="{risk_level: high}")
    settings = "reload: {gate: tests}\nstore: {url: 'sqlite:///runs.db'}\n"
    return write(root, {FILE: writes, CASES: ASKS, "agentsd.yaml": settings})


@pytest.mark.parametrize("arguments", [["run", "echo hi"], ["chat"]], ids=["run", "chat"])
def test_a_person_can_use_an_agent_whose_cases_fail(tmp_path: Path, arguments: list[str]) -> None:
    done = agentsd(*arguments, cwd=closed(tmp_path), stdin="echo hi\n")

    assert done.returncode == 0, done.stderr
    assert "hi" in done.stdout


def test_a_run_can_be_decided_while_cases_fail(tmp_path: Path) -> None:
    root = closed(tmp_path)
    asked = agentsd("run", "write x to a.txt", cwd=root)
    assert asked.returncode == 3, asked.stderr

    done = agentsd("runs", "decide", "last", "--approve-all", cwd=root)

    assert (done.returncode, (root / "a.txt").exists()) == (0, True), done.stderr


def test_a_server_names_the_commands_that_show_and_use_the_agent(tmp_path: Path) -> None:
    done = agentsd("serve", "--port", "0", cwd=closed(tmp_path))

    assert done.returncode == 78
    assert "`agentsd test` shows why they fail, and `agentsd run` and `agentsd chat` use the agents" in done.stderr
    assert "agentsd test -a one shows what happened instead" in done.stderr


def test_an_edit_in_a_chat_with_failing_cases_is_checked_by_the_gate(tmp_path: Path) -> None:
    async def main() -> list[int]:
        root = closed(tmp_path)
        async with Runtime.open(root, watch=False, gate_start=False) as runtime:
            numbers = [runtime.catalog.current.number]
            write(root, {FILE: one("[echo, write_file]", description="other", runtime_policy="{risk_level: high}")})
            numbers.append((await runtime.reload()).number)
            write(root, {FILE: one("[echo, write_file]", skill_policy="{deny: [write_file], allow: [write_file]}")})
            return [*numbers, (await runtime.reload()).number]

    assert asyncio.run(main()) == [1, 1, 2]


def test_a_failed_case_shows_what_became_of_its_calls_with_a_transcript(tmp_path: Path) -> None:
    done = agentsd("test", cwd=closed(tmp_path))

    assert done.returncode == 1
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert lines[1:] == [
        f"expected denied [write_file], got []; write_file was asked  ({CASES}:2)",
        "user: write a file",
        'asked write_file {"path": "a.txt", "content": "x"}: its risk is high',
        "paused (confirmation, waits for a decision on write_file)",
        "0 passed, 1 failed",
    ]


# --- a gate that fails


def fails_with(error: BaseException) -> Callable[..., object]:
    def fail(*_: object, **__: object) -> object:
        raise error

    return fail


@pytest.mark.parametrize("gate", ["tests", ComparisonGate()], ids=["tests", "comparison"])
@pytest.mark.parametrize("where", ["read_suite", "sandboxed", "judge_answer"])
@pytest.mark.parametrize(
    "error", [KeyError("clerk"), OSError("no git"), asyncio.CancelledError()], ids=["key", "os", "cancelled"]
)
def test_an_error_in_the_gate_holds_the_edit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gate: Any, where: str, error: BaseException
) -> None:
    critic = ScriptedModel(script=lambda _: Judgement(reason="r", verdict="pass"))
    judged = CALLS_ECHO.replace("output: hello", "judge: {rubric: r, model: critic}")
    if where == "judge_answer":
        gate = ComparisonGate(model="offline", cannot_tell="apply")
    root = write(tmp_path, {FILE: one(), CASES: judged if where == "judge_answer" else CALLS_ECHO})

    async def main() -> None:
        reloads: list[ConfigReloaded | ConfigRejected] = []
        settings = Settings(reload=ReloadSettings(gate=gate, quiet=0.01))
        async with Runtime.open(root, settings=settings, watch=False, models={"critic": critic}) as runtime:
            runtime.catalog.subscribe(reloads.append)
            before = runtime.catalog.current
            with monkeypatch.context() as patch:
                for module in (runner, comparison):
                    if hasattr(module, where):
                        patch.setattr(module, where, fails_with(error))
                write(root, {FILE: one(description="Second.")})
                assert await runtime.reload() is before
                assert await runtime.reload() is before, "nor the second time"
            [rejected] = reloads
            assert isinstance(rejected, ConfigRejected)
            assert rejected.problems[0].message.startswith("the gate failed, so the edit is held: ")
            assert type(error).__name__ in rejected.problems[0].message
            assert runtime.catalog.problems == rejected.problems
            write(root, {FILE: one(description="Third.")})
            assert (await runtime.reload()).number == 2

    asyncio.run(main())


def test_a_gate_that_fails_at_the_start_serves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def body(runtime: Runtime, reloads: list[ConfigReloaded | ConfigRejected]) -> None:
        raise AssertionError("it was opened")

    monkeypatch.setattr(runner, "sandboxed", fails_with(KeyError("clerk")))
    with pytest.raises(ConfigError, match="nothing is served") as refused:
        live(project(tmp_path), body)
    assert refused.value.problems[0].message == "the gate failed, so the edit is held: KeyError: 'clerk'"


def test_cases_in_a_folder_that_cannot_be_read_close_the_gate(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "agents.d/team", tmp_path / "elsewhere"
    two = agent("two", model="offline", skill_policy="{allow: [echo]}")
    cases = CALLS_ECHO.replace("- name", "- agent: two\n    name")
    root = write(tmp_path, {FILE: one(), "agents.d/team/two.yaml": two, "agents.d/team/two.test.yaml": cases})

    async def body(runtime: Runtime, reloads: list[ConfigReloaded | ConfigRejected]) -> None:
        before = runtime.catalog.current
        folder.rename(elsewhere)
        folder.symlink_to(elsewhere)
        write(root, {FILE: one(description="Second.")})
        assert await runtime.reload() is before
        assert [problem.path for problem in reloads[0].problems] == ["agents.d/team"]
        folder.unlink()
        elsewhere.rename(folder)
        assert (await runtime.reload()).number == 2

    live(root, body)


def test_the_results_of_the_gate_are_saved_also_those_of_the_start(tmp_path: Path) -> None:
    async def body(runtime: Runtime, _: object) -> None:
        before = runtime.catalog.current.digest
        write(tmp_path, {FILE: one("[calculator]")})
        await runtime.reload()
        failed, passed = await runtime.store.case_results.latest("one")
        assert (passed.name, passed.source, passed.attempts, passed.passed) == ("it says hello", "gate", 1, 1)
        assert (passed.digest, failed.digest == before, failed.passed) == (before, False, 0)
        assert failed.failure.startswith("expected called [echo], got []")
        assert failed.at
        assert passed.at
        assert failed.at >= passed.at

    live(project(tmp_path), body)


def test_a_start_that_is_cancelled_while_the_results_are_saved_closes_what_it_has_opened(tmp_path: Path) -> None:
    plugin = """
        async def setup(context):
            context.deps.append("up")

        async def teardown(context):
            context.deps.append("down")
    """
    write(project(tmp_path), {"plugins/p.py": dedent(plugin)})

    async def main() -> None:
        reached, log, store = asyncio.Event(), list[str](), MemoryStore()

        class Stalled(StoredCaseResults):
            async def add(self, _: object) -> None:
                reached.set()
                await asyncio.Event().wait()

        store.case_results = Stalled(store._database)
        starting = asyncio.create_task(
            Runtime.open(tmp_path, settings=GATED, store=store, deps=log, watch=False).__aenter__()
        )
        await reached.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert log == ["up", "down"]

    asyncio.run(main())
