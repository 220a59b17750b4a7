"""Safe reloading, case by case: requirements on generations, the catalog and runs in progress."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from framework import AgentNotFound, Approve, ConfigError, RequestError, Runtime, tool
from framework.config.settings import ReloadSettings, Settings
from framework.testing import ScriptedModel, calls
from framework.types.events import ConfigRejected, ConfigReloaded
from tests.support.projects import agent, write

ONE, TWO = "agents.d/one.yaml", "agents.d/two.yaml"
Body = Callable[[Runtime], Awaitable[None]]


def live(root: Path, body: Body, **options: Any) -> None:
    """Open a project and run `body`."""

    async def main() -> None:
        async with Runtime.open(root, watch=False, **options) as runtime:
            await body(runtime)

    asyncio.run(main())


def one(**keys: str) -> str:
    return agent("one", **({"model": "offline"} | keys))


def two(**keys: str) -> str:
    return agent("two", **({"model": "offline"} | keys))


def text_of(runtime: Runtime, name: str) -> str:
    return runtime.catalog.current.agents[name].instructions("en", {}, None)


@pytest.mark.conformance(14)
def test_touch_chmod_identical_rewrites_and_reverted_edits_make_no_generation(tmp_path: Path) -> None:
    root = write(tmp_path, {ONE: one()})

    async def body(runtime: Runtime) -> None:
        first = runtime.catalog.current
        (root / ONE).touch()
        (root / ONE).chmod(0o600)
        assert await runtime.reload() is first
        write(root, {ONE: one()})
        assert await runtime.reload() is first
        write(root, {ONE: one(instructions="other")})
        write(root, {ONE: one()})
        assert await runtime.reload() is first

    live(root, body)


@pytest.mark.conformance(15)
def test_an_edit_with_the_same_size_and_mtime_is_detected(tmp_path: Path) -> None:
    root = write(tmp_path, {ONE: one(instructions="aaaa")})

    async def body(runtime: Runtime) -> None:
        before = (root / ONE).stat()
        write(root, {ONE: one(instructions="bbbb")})
        os.utime(root / ONE, ns=(before.st_atime_ns, before.st_mtime_ns))
        await runtime.reload()
        assert text_of(runtime, "one") == "bbbb"

    live(root, body)


@pytest.mark.conformance(16)
@pytest.mark.conformance(17)
def test_a_broken_file_keeps_its_last_good_agent_while_others_update_until_it_is_fixed(tmp_path: Path) -> None:
    root = write(tmp_path, {ONE: one(instructions="old"), TWO: two(instructions="old")})

    async def body(runtime: Runtime) -> None:
        write(root, {ONE: one(instructions="{template: [}"), TWO: two(instructions="new")})
        generation = await runtime.reload()
        assert (text_of(runtime, "one"), text_of(runtime, "two")) == ("old", "new")
        assert generation.agents["one"].stale
        assert generation.errors[0].place.startswith("agents.d/one.yaml:5:")
        write(root, {ONE: one(instructions="old")})
        generation = await runtime.reload()
        assert not generation.errors
        assert not generation.agents["one"].stale

    live(root, body)


@pytest.mark.conformance(18)
def test_a_start_with_a_broken_file_serves_the_rest_and_strict_mode_refuses_to(tmp_path: Path) -> None:
    root = write(tmp_path, {ONE: one(), TWO: "name: two\n"})

    async def body(runtime: Runtime) -> None:
        assert set(runtime.catalog.current.agents) == {"one"}
        assert runtime.catalog.problems

    live(root, body)
    with pytest.raises(ConfigError, match="strict mode") as refused:
        live(root, body, settings=strict())
    assert {problem.path for problem in refused.value.problems} == {TWO}


def strict() -> Settings:
    return Settings(reload=ReloadSettings(mode="strict"))


@pytest.mark.conformance(20)
def test_in_strict_mode_one_bad_file_blocks_every_change(tmp_path: Path) -> None:
    root = write(tmp_path, {ONE: one(instructions="old"), TWO: two()})

    async def body(runtime: Runtime) -> None:
        reloads: list[ConfigReloaded | ConfigRejected] = []
        runtime.catalog.subscribe(reloads.append)
        first = runtime.catalog.current
        write(root, {ONE: one(instructions="new"), TWO: two(executr="x")})
        assert await runtime.reload() is first
        assert await runtime.reload() is first
        assert len(reloads) == 1, "refused once, not at every scan"
        assert isinstance(reloads[0], ConfigRejected)
        assert runtime.catalog.problems[0].path == TWO
        write(root, {TWO: two()})
        await runtime.reload()
        assert text_of(runtime, "one") == "new"
        assert runtime.catalog.problems == ()

    live(root, body, settings=strict())


@pytest.mark.conformance(21)
def test_with_two_files_of_one_name_the_owner_stays_active_and_both_are_reported(tmp_path: Path) -> None:
    root = write(tmp_path, {ONE: one(instructions="first")})

    async def body(runtime: Runtime) -> None:
        write(root, {TWO: one(instructions="second")})
        generation = await runtime.reload()
        assert text_of(runtime, "one") == "first"
        assert {problem.path for problem in generation.errors} == {ONE, TWO}
        (root / ONE).unlink()
        generation = await runtime.reload()
        assert text_of(runtime, "one") == "second"
        assert not generation.errors

    live(root, body)


@pytest.mark.conformance(22)
def test_renaming_a_file_does_not_affect_conversations(tmp_path: Path) -> None:
    root = write(tmp_path, {ONE: one()})

    async def body(runtime: Runtime) -> None:
        await runtime.run("echo a", conversation="c")
        (root / ONE).rename(root / "agents.d/moved.yaml")
        await runtime.reload()
        assert runtime.catalog.current.agents["one"].path == "agents.d/moved.yaml"
        again = await runtime.run("echo b", conversation="c")
        assert [m.content for m in again.messages if m.role == "user"] == ["echo a", "echo b"]

    live(root, body)


@pytest.mark.conformance(23)
def test_a_changed_name_removes_one_agent_and_adds_one_in_one_generation(tmp_path: Path) -> None:
    root = write(tmp_path, {ONE: one()})

    async def body(runtime: Runtime) -> None:
        reloads: list[Any] = []
        runtime.catalog.subscribe(reloads.append)
        write(root, {ONE: two()})
        await runtime.reload()
        (event,) = reloads
        assert (event.added, event.removed) == (("two",), ("one",))

    live(root, body)


@pytest.mark.conformance(24)
def test_a_removed_agent_finishes_its_runs_and_pending_approvals_are_evaluated_again(tmp_path: Path) -> None:
    root = write(tmp_path, {ONE: one(skill_policy='{ask: [echo], allow: ["*"]}'), TWO: two()})
    model = ScriptedModel(calls(("echo", {"text": "x"})), "done")

    async def body(runtime: Runtime) -> None:
        waiting = await runtime.run("go", agent="one")
        assert waiting.status == "paused"
        (root / ONE).unlink()
        await runtime.reload()
        with pytest.raises(AgentNotFound):
            await runtime.run("go", agent="one")
        ended = await runtime.resume(waiting.run_id, {waiting.pending[0].id: Approve()})
        assert (ended.output, ended.generation) == ("done", 1)

    live(root, body, models={"offline": model})


@pytest.mark.conformance(25)
@pytest.mark.conformance(26)
def test_a_denial_applies_to_the_next_call_and_a_raised_limit_to_new_runs(
    tmp_path: Path,
) -> None:
    root = write(tmp_path, {ONE: one(runtime_policy="{max_steps: 3}")})
    runtimes: list[Runtime] = []

    @tool(risk="low")
    async def edit() -> str:
        """Edit the file in mid-run."""
        policy = '{deny: [{tool: echo, reason: tightened}], allow: ["*"]}'
        write(root, {ONE: one(skill_policy=policy, runtime_policy="{max_steps: 9}")})
        await runtimes[0].reload()
        return "edited"

    echo = calls(("echo", {"text": "x"}))
    model = ScriptedModel(calls(("edit", {}), prefix="e"), echo, calls(("echo", {"text": "y"}), prefix="f"))

    async def body(runtime: Runtime) -> None:
        runtimes.append(runtime)
        reloads: list[Any] = []
        runtime.catalog.subscribe(reloads.append)
        result = await runtime.run("go")
        assert [call.status for call in result.tool_calls] == ["success", "denied", "denied"]
        assert result.finish_reason == "max_steps", "the run keeps the limit with which it started"
        effects = {change.key: change.effect for change in reloads[0].changes}
        assert effects == {"skill_policy.deny": "tightens", "runtime_policy.max_steps": "widens"}

    live(root, body, models={"offline": model}, tools=[edit])


@pytest.mark.conformance(36)
def test_a_plugin_without_a_former_tool_keeps_its_agents_on_their_last_good_version(tmp_path: Path) -> None:
    plugin = (
        'from framework import tool\n\n@tool(risk="low")\ndef {name}() -> str:\n    """Says it."""\n    return "x"\n'
    )
    root = write(
        tmp_path,
        {ONE: one(skill_policy="{allow: [say.hello]}"), TWO: two(), "plugins/say.py": plugin.format(name="hello")},
    )

    async def body(runtime: Runtime) -> None:
        write(root, {"plugins/say.py": plugin.format(name="goodbye")})
        generation = await runtime.reload()
        assert "say.hello" in generation.agents["one"].toolset.offered
        assert generation.agents["one"].stale
        assert not generation.agents["two"].stale
        assert (await runtime.call_tool("one", "say.hello", {})).output == "x"

    live(root, body)


@pytest.mark.conformance(43)
def test_a_rollback_stays_active_until_an_edit(tmp_path: Path) -> None:
    root = write(tmp_path, {ONE: one(instructions="v1")})

    async def body(runtime: Runtime) -> None:
        for version in ("v2", "v3", "v4"):
            write(root, {ONE: one(instructions=version)})
            await runtime.reload()
        rolled = await runtime.catalog.rollback(1)
        assert (rolled.number, text_of(runtime, "one")) == (5, "v1")
        assert await runtime.reload() is rolled
        assert [entry.trigger for entry in runtime.catalog.history][-1] == "rollback"
        write(root, {ONE: one(instructions="v5")})
        await runtime.reload()
        assert text_of(runtime, "one") == "v5"
        with pytest.raises(RequestError, match="generation 99 is not in the history; available: 1, 2, 3, 4, 5, 6"):
            await runtime.catalog.rollback(99)

    live(root, body)


@pytest.mark.conformance(43)
def test_after_a_rollback_to_the_files_on_disk_an_edit_and_its_undo_take_effect(tmp_path: Path) -> None:
    root = write(tmp_path, {ONE: one(instructions="v1")})

    async def body(runtime: Runtime) -> None:
        write(root, {ONE: one(instructions="v2")})
        await runtime.reload()
        await runtime.catalog.rollback(1)
        write(root, {ONE: one(instructions="v1")})
        await runtime.reload()
        assert text_of(runtime, "one") == "v1"
        write(root, {ONE: one(instructions="v2")})
        await runtime.reload()
        assert text_of(runtime, "one") == "v2"

    live(root, body)


@pytest.mark.conformance(45)
def test_an_unknown_version_names_the_supported_ones_and_an_unknown_field_a_suggestion(tmp_path: Path) -> None:
    root = write(tmp_path, {ONE: one(version="2"), TWO: two(executr="plan")})

    async def body(runtime: Runtime) -> None:
        problems = {problem.path: problem for problem in runtime.catalog.problems}
        assert "1" in problems[ONE].message
        assert problems[TWO].hint == "did you mean 'executor'?"

    live(root, body)


def test_the_history_contains_time_reason_and_changes_of_the_last_twenty(tmp_path: Path) -> None:
    root = write(tmp_path, {ONE: one()})

    async def body(runtime: Runtime) -> None:
        for steps in range(1, 26):
            write(root, {ONE: one(runtime_policy=f"{{max_steps: {steps}}}")})
            await runtime.reload()
        entries = list(runtime.catalog.history)
        assert len(entries) == 20
        assert (entries[-1].trigger, entries[-1].number) == ("api", 26)
        assert [str(change) for change in entries[-1].changes] == ["one: limits.steps: 24 -> 25 (widens)"]

    live(root, body)


def test_undoing_a_rejected_edit_clears_its_problems_without_a_new_generation(tmp_path: Path) -> None:
    root = write(tmp_path, {ONE: one()})

    async def body(runtime: Runtime) -> None:
        first = runtime.catalog.current
        write(root, {ONE: one(executr="x")})
        await runtime.reload()
        assert runtime.catalog.problems
        write(root, {ONE: one()})
        assert await runtime.reload() is first
        assert runtime.catalog.problems == ()

    live(root, body, settings=strict())


def test_a_dashboard_can_read_the_last_reload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InMemoryMetricReader()
    monkeypatch.setattr(metrics, "get_meter", MeterProvider([reader]).get_meter)
    root = write(tmp_path, {ONE: one(), TWO: two()})

    def seen() -> dict[str, Any]:
        data = reader.get_metrics_data()
        assert data is not None
        found = [m for resource in data.resource_metrics for scope in resource.scope_metrics for m in scope.metrics]
        return {metric.name.removeprefix("agentsd.config."): list(metric.data.data_points) for metric in found}

    async def body(runtime: Runtime) -> None:
        before = seen()
        assert (before["generation"][0].value, before["reload.last_success"][0].value) == (1, 1)
        write(root, {ONE: one(executr="x")})
        await runtime.reload()
        after = seen()
        assert (after["generation"][0].value, after["reload.last_success"][0].value) == (2, 0)
        assert {point.attributes["state"]: point.value for point in after["objects"]} == {"active": 1, "failed": 1}
        assert {point.attributes["outcome"] for point in after["reload.duration"]} == {"applied", "partial"}

    live(root, body)
