"""`work.max_running`: submitted runs wait for a slot of their agent, model and tenant, and `run` does not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from framework import Approve, Runtime
from framework.config.settings import MaxRunning, Settings
from framework.engine.runtime.background import limits_of
from framework.testing import ScriptedModel, calls
from framework.types.errors import QueueFull, RequestError
from framework.types.state import RunState
from tests.support.projects import agent, write
from tests.support.submitted_runs import Gate, opened, project, within
from tests.support.waiting import until


def limited(root: Path, work: str) -> Path:
    return write(root, {"agentsd.yaml": f"work: {work}\n"})


async def waiting(runtime: Runtime) -> list[tuple[str, str | None]]:
    await asyncio.sleep(0)  # a store in memory answers without letting others work
    return [(info.status, info.waits_for) for info in await runtime.store.runs()]


def holding(times: int) -> ScriptedModel:
    """A model whose runs wait for the gate, and then answer."""
    return ScriptedModel(*(reply for n in range(times) for reply in (calls(("hold", {}), prefix=f"h{n}_"), "done")))


async def until_waiting(runtime: Runtime, *expected: tuple[str, str | None]) -> None:
    async def look() -> bool:
        return await waiting(runtime) == [*expected]

    await until(look, f"the runs are {expected}")


RUNNING, DONE, BLOCKED = ("running", None), ("completed", None), ("queued", "agent:a")


def test_a_submitted_run_waits_for_a_slot_and_one_that_is_awaited_does_not(
    tmp_path: Path, local_url: str | None
) -> None:
    root, gate = limited(project(tmp_path), "{max_running: {agents: {a: 1}}}"), Gate()

    async def body() -> None:
        model = ScriptedModel(calls(("hold", {})), "one", "two")
        async with opened(root, local_url, model, tools=gate.tools()) as runtime:
            first = await runtime.submit("1")
            await gate.began.wait()
            second = await runtime.submit("2")
            await until_waiting(runtime, RUNNING, BLOCKED)
            gate.opened.set()
            for submitted in (first, second):
                assert (await runtime.result(submitted.run_id)).status == "completed"

    within(body)


def test_runs_that_are_awaited_are_not_limited(tmp_path: Path) -> None:
    root, gate = limited(project(tmp_path), "{max_running: {agents: {a: 1}, tenant: 1}}"), Gate()

    async def body() -> None:
        async with opened(root, None, ScriptedModel(calls(("hold", {})), "one", "two"), tools=gate.tools()) as runtime:
            await runtime.submit("1")
            await gate.began.wait()
            gate.opened.set()
            assert (await runtime.run("2")).status == "completed"

    within(body)


def test_a_decided_run_waits_for_a_slot_and_continues_before_others(tmp_path: Path, file_url: str) -> None:
    root, gate = limited(project(tmp_path), "{max_running: {agents: {a: 1}}}"), Gate()

    async def body() -> None:
        model = ScriptedModel(calls(("pay", {})), calls(("hold", {}), prefix="h"), "held", "paid", "last")
        async with opened(root, file_url, model, tools=gate.tools()) as runtime:
            paused = await runtime.submit("1")
            assert (await runtime.result(paused.run_id)).status == "paused"
            await runtime.submit("2")
            await gate.began.wait()
            last = await runtime.submit("3")
            await until_waiting(runtime, ("paused", None), RUNNING, BLOCKED)
            await runtime.decide(paused.run_id, {(await runtime.pending(paused.run_id))[0].id: Approve()})
            assert await waiting(runtime) == [("running", "agent:a"), RUNNING, BLOCKED]
            assert await runtime.resume_orphans() == [], "it waits, and was not interrupted"
            gate.opened.set()
            await until_waiting(runtime, ("running", None), DONE, BLOCKED)
            assert await runtime.resume_orphans() == [paused.run_id]
            assert (await runtime.result(paused.run_id)).output == "paid"
            assert (await runtime.result(last.run_id)).output == "last"
            assert gate.paid == 1

    within(body)


def test_a_changed_limit_applies_to_the_next_run(tmp_path: Path) -> None:
    root, gate = limited(project(tmp_path), "{max_running: {agents: {a: 1}}}"), Gate()

    async def body() -> None:
        async with opened(root, None, holding(3), tools=gate.tools()) as runtime:
            await runtime.submit("1")
            await gate.began.wait()
            await runtime.submit("2")
            await until_waiting(runtime, RUNNING, BLOCKED)
            limited(root, "{max_running: {agents: {a: 3}}}")
            await runtime.reload()
            await runtime.submit("3")
            gate.opened.set()
            await until_waiting(runtime, DONE, DONE, DONE)

    within(body)


@pytest.mark.parametrize(
    ("name", "value"),
    [("priority", 101), ("priority", True), ("priority", "1"), ("queue_name", ""), ("queue_name", "a b")],
)
def test_an_invalid_place_in_the_queue_is_refused(tmp_path: Path, name: str, value: object) -> None:
    async def body() -> None:
        async with opened(project(tmp_path), None, ScriptedModel()) as runtime:
            options: Any = {name: value}
            with pytest.raises(RequestError, match=f"^{name}: expected ") as caught:
                await runtime.submit("1", **options)
            assert caught.value.param == name
            assert await runtime.store.runs() == []

    within(body)


def test_a_place_in_the_queue_is_stored(tmp_path: Path, local_url: str | None) -> None:
    async def body() -> None:
        async with opened(project(tmp_path), local_url, ScriptedModel("done")) as runtime:
            submitted = await runtime.submit("1", priority=-7, queue_name="gpu.1")
            (info,) = await runtime.store.runs()
            assert info.priority == -7
            assert (await runtime.result(submitted.run_id)).status == "completed"

    within(body)


def test_a_request_beyond_max_waiting_is_refused(tmp_path: Path, local_url: str | None) -> None:
    root, gate = limited(project(tmp_path), "{max_waiting: 2, max_running: {agents: {a: 1}}}"), Gate()

    async def body() -> None:
        async with opened(root, local_url, holding(3), tools=gate.tools()) as runtime:
            await runtime.submit("1")
            await gate.began.wait()
            await runtime.submit("2")
            await runtime.submit("3")
            with pytest.raises(QueueFull, match=r"2 runs wait, the maximum \(work.max_waiting\)"):
                await runtime.submit("4")
            assert len(await runtime.store.runs()) == 3
            gate.opened.set()
            await until_waiting(runtime, DONE, DONE, DONE)

    within(body)


def test_the_limits_of_a_run_are_those_of_its_agent_model_alias_and_tenant(tmp_path: Path) -> None:
    settings = Settings.model_validate(
        {
            "model": "fast",
            "models": {"fast": {"model": "openai/x"}},
            "work": {
                "max_running": {"agents": {"a": 5}, "models": {"openai/x": 20, "fast": 3, "slow": 1}, "tenant": 10}
            },
        }
    )
    write(tmp_path, {"agents.d/a.yaml": agent("a", model="null"), "agents.d/b.yaml": agent("b", model="slow")})

    async def body() -> None:
        models = {"slow": ScriptedModel(), "fast": ScriptedModel()}
        async with Runtime.open(tmp_path, settings=settings, models=models, watch=False) as runtime:
            live = runtime.catalog.current
            agents, state = live.agents, RunState(agent="a", tenant="t", messages=[])
            named = {"agent:a": 5, "model:fast": 3, "model:openai/x": 20, "tenant:t": 10}
            assert limits_of(state, agents["a"], live) == named
            assert limits_of(state, agents["b"], live) == {"model:slow": 1, "tenant:t": 10}
            state.model, state.tenant = "openai/x", None
            assert limits_of(state, agents["b"], live) == {"model:openai/x": 20, "tenant:": 10}
            assert limits_of(state, agents["a"], replace(live, settings=Settings())) == {}

    within(body)


def test_the_limit_of_each_key_is_found_again() -> None:
    limits = MaxRunning(agents={"a": 5}, models={"openai/x:free": 2}, tenant=10)
    for key, allowed in limits.limits("a", ["openai/x:free"], "t:1").items():
        assert limits.allowed(key) == allowed
    assert [limits.allowed(key) for key in ("agent:b", "model:y")] == [None, None]
    assert MaxRunning().allowed("tenant:t") is None
