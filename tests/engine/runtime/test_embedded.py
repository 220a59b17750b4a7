"""The embedded work source: a process looks for runs in its store, and takes no more than it can execute."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from framework import Approve, RequestError, Runtime, Tool, events, tool
from framework.engine.runtime.background import EmbeddedSource
from framework.llm.client import ModelRequest
from framework.testing import ScriptedModel, Turn, calls
from tests.support.submitted_runs import Gate, opened, project, statuses, until_statuses
from tests.support.waiting import until


def hold(request: ModelRequest) -> Turn:
    """Call the tool that waits, then answer."""
    return calls(("hold", {})) if request.messages[-1].role == "user" else "done"


def test_interrupted_runs_count_towards_the_capacity(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        root, gate = project(tmp_path), Gate()
        async with opened(root, file_url, ScriptedModel(script=hold), tools=gate.tools(), grace=0) as runtime:
            ids = [(await runtime.submit("m")).run_id for _ in range(5)]
            await until_statuses(runtime, *["running"] * 5)
        work, gate = EmbeddedSource(capacity=2), Gate()
        async with opened(root, file_url, ScriptedModel(script=hold), tools=gate.tools(), work=work) as runtime:
            assert await runtime.resume_orphans() == ids[:2]
            assert await runtime.resume_orphans() == []
            await runtime.submit("m")
            assert list(await runtime.start_queued()) == []

            async def taken() -> bool:
                return len(await runtime.orphans()) <= 3

            await until(taken, "two of the interrupted runs are resumed")
            assert (runtime.slots.taken, len(await runtime.orphans())) == (2, 3)
            gate.opened.set()
            while set(await statuses(runtime)) != {"completed"}:
                await runtime.resume_orphans()

    asyncio.run(main())


def test_a_decided_run_waits_for_a_free_place(tmp_path: Path, local_url: str | None) -> None:
    async def main() -> None:
        gate, work = Gate(), EmbeddedSource(capacity=1)

        def script(request: ModelRequest) -> Turn:
            text = next(message.content for message in request.messages if message.role == "user")
            return calls((text, {})) if request.messages[-1].role == "user" else f"{text} done"

        model = ScriptedModel(script=script)
        async with opened(project(tmp_path), local_url, model, tools=gate.tools(), work=work) as runtime:
            paused = await runtime.submit("pay")
            (pending,) = (await runtime.result(paused.run_id)).pending
            holding = await runtime.submit("hold")
            await gate.began.wait()
            await runtime.decide(paused.run_id, {pending.id: Approve()})
            assert (gate.paid, await statuses(runtime)) == (0, ["running", "running"])
            gate.opened.set()
            assert (await runtime.result(paused.run_id)).output == "pay done"
            assert (await runtime.result(holding.run_id)).output == "hold done"

    asyncio.run(main())


def test_a_process_without_capacity_begins_nothing(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        root, model = project(tmp_path), ScriptedModel(script=lambda _: "ok")
        async with opened(root, file_url, model, work=EmbeddedSource(capacity=0)) as accepting:
            submitted = await accepting.submit("m")
            assert list(await accepting.start_queued()) == []
            assert await accepting.resume_orphans() == []
            async with opened(root, file_url, model) as working:
                assert await working.start_queued() == [submitted.run_id]
                assert (await accepting.result(submitted.run_id)).output == "ok"

    asyncio.run(main())


def test_a_process_finds_what_another_one_submits(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        root, model = project(tmp_path), ScriptedModel(script=lambda _: "ok")
        async with (
            opened(root, file_url, model, work=EmbeddedSource(capacity=0)) as accepting,
            opened(root, file_url, model) as working,
        ):
            await working.start_queued()
            submitted = await accepting.submit("m")
            assert (await accepting.result(submitted.run_id)).output == "ok"

    asyncio.run(main())


def charging(name: str, charged: list[str]) -> list[Tool]:
    """Return a tool that needs approval, and notes which process executes it."""

    @tool(risk="low")
    async def pay() -> str:
        """Pay."""
        charged.append(name)
        return f"paid by {name}"

    return [pay]


def after_the_tool(request: ModelRequest) -> Turn:
    """Call the tool, then answer with its result."""
    last = request.messages[-1]
    return calls(("pay", {})) if last.role == "user" else last.content


def test_a_decision_of_another_process_is_executed_by_the_process_that_works(tmp_path: Path, file_url: str) -> None:
    """The process that decides lacks the model, and closes at once: it only saves the decision."""

    async def main() -> None:
        root, charged = project(tmp_path), list[str]()
        model = ScriptedModel(script=after_the_tool)
        async with opened(root, file_url, model, tools=charging("bot", charged)) as bot:
            submitted = await bot.submit("pay")
            following = asyncio.create_task(_collect(bot.follow(submitted.run_id, through_pauses=True)))
            assert (await bot.result(submitted.run_id)).status == "paused"
            async with opened(root, file_url, ScriptedModel(), tools=charging("approver", charged)) as approver:
                (question,) = await approver.pending(submitted.run_id)
                await approver.decide(submitted.run_id, {question.id: Approve()}, by="ann")
            (*_, ended) = await following
            assert isinstance(ended, events.RunFinished)
            assert (ended.status, ended.output, charged) == ("completed", "paid by bot", ["bot"])

    asyncio.run(main())


def test_a_process_says_where_a_decided_run_is_executed(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        root, charged = project(tmp_path), list[str]()
        model = ScriptedModel(script=after_the_tool)
        async with opened(root, file_url, model, tools=charging("first", charged)) as first:
            paused = [await first.run("pay") for _ in range(3)]
        approve = {paused[0].pending[0].id: Approve()}
        async with opened(root, file_url, model, tools=charging("here", charged)) as runtime:
            await runtime.decide(paused[0].run_id, approve, execute=True)
            assert (await runtime.result(paused[0].run_id)).output == "paid by here"
            await runtime.decide(paused[1].run_id, approve, execute=False)  # although it has executed a run
            assert [one.run_id for one in await runtime.orphans()] == [paused[1].run_id]
            await runtime.decide(paused[2].run_id, approve)
            assert (await runtime.result(paused[2].run_id)).output == "paid by here"
            await runtime.start_queued()  # from now on, it looks for runs
            assert (await runtime.result(paused[1].run_id)).output == "paid by here"
        assert charged == ["here"] * 3

    asyncio.run(main())


def test_a_process_that_works_takes_over_what_another_one_leaves(tmp_path: Path, store_url: str) -> None:
    """A short-lived process begins a run in the background, and closes before it has ended."""

    async def main() -> None:
        root, gate, short = project(tmp_path), Gate(), Gate()
        model = ScriptedModel(script=hold)
        async with opened(root, store_url, model, tools=gate.tools()) as working:
            async with opened(root, store_url, model, tools=short.tools(), grace=0) as leaving:
                submitted = await leaving.submit("m")
                await short.began.wait()
                assert list(await working.start_queued()) == []
            gate.opened.set()
            assert (await working.result(submitted.run_id)).output == "done"

    asyncio.run(main())


def test_a_runtime_that_executes_nothing_saves_requests_and_decisions(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        root, charged = project(tmp_path), list[str]()
        model = ScriptedModel(script=after_the_tool)
        async with (
            opened(root, file_url, ScriptedModel(), tools=charging("front", charged), execute=False) as front,
            opened(root, file_url, model, tools=charging("bot", charged)) as bot,
        ):
            submitted = await front.submit("pay")
            await bot.start_queued()
            (question,) = (await front.result(submitted.run_id)).pending
            await front.decide(submitted.run_id, {question.id: Approve()})
            assert (await front.result(submitted.run_id)).output == "paid by bot"

    asyncio.run(main())


def test_a_runtime_that_executes_nothing_needs_a_store_of_others(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(RequestError, match=r"execute: .*store in memory"):
            async with opened(project(tmp_path), None, ScriptedModel(), execute=False):
                pass
        with pytest.raises(RequestError, match=r"execute: .*work"):
            async with Runtime.open(tmp_path, store="sqlite:///s.db", execute=False, work=EmbeddedSource(1)):
                pass

    asyncio.run(main())


async def _collect(following: AsyncIterator[events.Event]) -> list[events.Event]:
    return [event async for event in following]
