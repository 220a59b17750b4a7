"""The embedded work source: a process looks for runs in its store, and takes no more than it can execute."""

from __future__ import annotations

import asyncio
from pathlib import Path

from framework import Approve
from framework.engine.work.embedded import EmbeddedSource
from framework.llm.client import ModelRequest
from framework.testing import ScriptedModel, Turn, calls
from tests.support.submitted_runs import Gate, opened, project, statuses


def hold(request: ModelRequest) -> Turn:
    """Call the tool that waits, then answer."""
    return calls(("hold", {})) if request.messages[-1].role == "user" else "done"


def test_interrupted_runs_count_towards_the_capacity(tmp_path: Path, store_url: str) -> None:
    async def main() -> None:
        root, gate = project(tmp_path), Gate()
        async with opened(root, store_url, ScriptedModel(script=hold), tools=gate.tools(), grace=0) as runtime:
            ids = [(await runtime.submit("m")).run_id for _ in range(5)]
            while await statuses(runtime) != ["running"] * 5:  # noqa: ASYNC110 - only the store shows it
                await asyncio.sleep(0.005)
        work, gate = EmbeddedSource(capacity=2), Gate()
        async with opened(root, store_url, ScriptedModel(script=hold), tools=gate.tools(), work=work) as runtime:
            assert await runtime.resume_orphans() == ids[:2]
            assert await runtime.resume_orphans() == []
            await runtime.submit("m")
            assert list(await runtime.start_queued()) == []
            while len(await runtime.orphans()) > 3:  # noqa: ASYNC110 - only the store shows it
                await asyncio.sleep(0.005)
            assert (runtime.places.taken, len(await runtime.orphans())) == (2, 3)
            gate.opened.set()
            while set(await statuses(runtime)) != {"completed"}:
                await runtime.resume_orphans()

    asyncio.run(main())


def test_a_decided_run_waits_for_a_free_place(tmp_path: Path, any_url: str | None) -> None:
    async def main() -> None:
        gate, work = Gate(), EmbeddedSource(capacity=1)

        def script(request: ModelRequest) -> Turn:
            text = next(message.content for message in request.messages if message.role == "user")
            return calls((text, {})) if request.messages[-1].role == "user" else f"{text} done"

        model = ScriptedModel(script=script)
        async with opened(project(tmp_path), any_url, model, tools=gate.tools(), work=work) as runtime:
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


def test_a_process_without_capacity_begins_nothing(tmp_path: Path, store_url: str) -> None:
    async def main() -> None:
        root, model = project(tmp_path), ScriptedModel(script=lambda _: "ok")
        async with opened(root, store_url, model, work=EmbeddedSource(capacity=0)) as accepting:
            submitted = await accepting.submit("m")
            assert list(await accepting.start_queued()) == []
            assert await accepting.resume_orphans() == []
            async with opened(root, store_url, model) as working:
                assert await working.start_queued() == [submitted.run_id]
                assert (await accepting.result(submitted.run_id)).output == "ok"

    asyncio.run(main())


def test_a_process_finds_what_another_one_submits(tmp_path: Path, store_url: str) -> None:
    async def main() -> None:
        root, model = project(tmp_path), ScriptedModel(script=lambda _: "ok")
        async with (
            opened(root, store_url, model, work=EmbeddedSource(capacity=0)) as accepting,
            opened(root, store_url, model) as working,
        ):
            await working.start_queued()
            submitted = await accepting.submit("m")
            assert (await accepting.result(submitted.run_id)).output == "ok"

    asyncio.run(main())
