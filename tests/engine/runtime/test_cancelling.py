"""A cancel request ends a run at any moment, and its tools may clean up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from framework import DecisionRefused, Respond, RunResult, Runtime, Tool, tool
from framework.engine.runtime import launcher
from framework.engine.runtime.resume import MAX_RESUME_ATTEMPTS
from framework.store.store import Store
from framework.store.types import RunQuery, RunRecord
from framework.testing import ScriptedModel, calls
from framework.types.budget import BudgetUse
from framework.types.events import Event
from framework.types.messages import Message
from framework.types.report import SpanRecord
from framework.types.state import RunState
from tests.support.projects import agent, write
from tests.support.waiting import until_status

PATIENCE = 20
"""Timeout in seconds, for waits that should be short."""
ASK, HANG = calls(("pay", {})), calls(("hang", {}))


@dataclass
class Shop:
    """Tools that block until the test releases them."""

    began: asyncio.Event = field(default_factory=asyncio.Event)
    may_clean: asyncio.Event = field(default_factory=asyncio.Event)
    cleaned: bool = False

    def tools(self) -> list[Tool]:
        @tool(risk="low")
        async def pay() -> str:
            """Pay."""
            raise AssertionError("the call was not approved")

        @tool(risk="low", idempotent=True)
        async def hang() -> str:
            """Wait until it is cancelled, then clean up."""
            self.began.set()
            try:
                await asyncio.Event().wait()
            finally:
                await self.may_clean.wait()
                self.cleaned = True
            return ""

        return [pay, hang]


@dataclass
class Late:
    """A record whose last write waits for the test."""

    record: RunRecord
    reached: asyncio.Event
    go: asyncio.Event

    @property
    def cancel_requested(self) -> bool:
        return self.record.cancel_requested

    async def write(
        self,
        state: RunState,
        events: Sequence[Event] = (),
        spans: Sequence[SpanRecord] = (),
        *,
        last: bool = False,
        uses: Sequence[BudgetUse] = (),
    ) -> None:
        if last:
            self.reached.set()
            await self.go.wait()
        await self.record.write(state, events, spans, last=last, uses=uses)

    async def release(self) -> None:
        await self.record.release()


class Slow(Store):
    """A store in which the last write of a run waits for the test."""

    def slow_down(self) -> None:
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    async def start(self, *begun: Any) -> RunRecord:
        return Late(await super().start(*begun), self.reached, self.go)  # type: ignore[return-value]  # it need not be set

    async def acquire(self, *taken: Any) -> RunRecord:
        return Late(await super().acquire(*taken), self.reached, self.go)  # type: ignore[return-value]  # it need not be set


def project(root: Path) -> Path:
    policy = "{ask: [{tool: pay, reason: money}], allow: [pay, hang]}"
    return write(root, {"agents.d/one.yaml": agent("one", skill_policy=policy)})


def options(shop: Shop, *turns: Any) -> dict[str, Any]:
    return {"tools": shop.tools(), "models": {"scripted": ScriptedModel(*turns)}, "watch": False}


async def must_be_cancelled(store: Store, run_id: str) -> None:
    await until_status(store, run_id, "cancelled")
    events = await store.events(run_id)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert (events[-1]["event"], events[-1]["status"]) == ("done", "cancelled")
    assert (await store.conversation("c")).open_run is None


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_run_cancelled_while_its_pause_is_saved_does_not_stay_paused(
    tmp_path: Path, file_url: str, elsewhere: bool
) -> None:
    async def main() -> None:
        store = await Slow.open(file_url, tmp_path)
        assert isinstance(store, Slow)
        store.slow_down()
        root = project(tmp_path)
        async with Runtime.open(root, store=store, **options(Shop(), ASK)) as runtime:
            async with runtime.stream("go", conversation="c") as stream:
                ended = asyncio.create_task(stream.result())
                await store.reached.wait()
                if elsewhere:
                    async with Runtime.open(root, store=file_url, **options(Shop())) as other:
                        await other.cancel(stream.run_id)
                else:
                    await runtime.cancel(stream.run_id)
                store.go.set()
                await ended
            await must_be_cancelled(store, stream.run_id)
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_run_cancelled_while_its_end_is_saved_ends_as_cancelled(
    tmp_path: Path, file_url: str, elsewhere: bool
) -> None:
    """The request is accepted, so the run must not end as completed."""

    async def main() -> None:
        store = await Slow.open(file_url, tmp_path)
        assert isinstance(store, Slow)
        store.slow_down()
        root = project(tmp_path)
        async with Runtime.open(root, store=store, **options(Shop(), "the answer")) as runtime:
            async with runtime.stream("go", conversation="c") as stream:
                ended = asyncio.create_task(stream.result())
                await store.reached.wait()
                if elsewhere:
                    async with Runtime.open(root, store=file_url, **options(Shop())) as other:
                        assert await other.cancel(stream.run_id) == "running"
                else:
                    assert await runtime.cancel(stream.run_id) == "running"
                store.go.set()
                assert (await ended).status == "cancelled"
            await must_be_cancelled(store, stream.run_id)
            assert [one.content for one in (await store.load_run(stream.run_id)).messages] == ["go", "the answer"]
            assert await runtime.cancel(stream.run_id) == "cancelled"
        await store.close()

    asyncio.run(main())


def test_a_run_cancelled_while_its_answer_is_checked_ends_as_cancelled(tmp_path: Path, local_url: str | None) -> None:
    async def main() -> None:
        reached, root = asyncio.Event(), project(tmp_path)
        write(
            root,
            {
                "plugins/guard.py": """
                    import asyncio

                    from framework import hook

                    @hook
                    async def wait(context, output):
                        context.deps.set()
                        await asyncio.Event().wait()
                """,
                "agents.d/one.yaml": agent("one", hooks="{after_run: [guard.wait]}"),
            },
        )
        made = {**options(Shop(), "the answer"), "deps": reached}
        async with Runtime.open(root, store=local_url, **made) as runtime, runtime.stream("go") as stream:
            ended = asyncio.create_task(stream.result())
            async with asyncio.timeout(PATIENCE):
                await reached.wait()
            assert await runtime.cancel(stream.run_id) == "running"
            assert (await ended).status == "cancelled"

    asyncio.run(main())


def test_a_cancellation_of_a_run_that_has_ended_says_how_it_ended(tmp_path: Path, local_url: str | None) -> None:
    async def main() -> None:
        async with Runtime.open(project(tmp_path), store=local_url, **options(Shop(), "the answer")) as runtime:
            result = await runtime.run("go")
            assert await runtime.cancel(result.run_id) == "completed"

    asyncio.run(main())


def test_a_cancel_request_to_a_dead_process_is_executed_by_the_next(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        dead = await Store.open(file_url, tmp_path)
        state = RunState(agent="one", conversation_id="c", messages=[Message(role="user", content="go")])
        record = await dead.start(state, await dead.conversation("c"), None)
        async with Runtime.open(project(tmp_path), store=file_url, **options(Shop())) as runtime:
            await runtime.cancel(state.run_id)
            await record.release()
            with pytest.raises(DecisionRefused, match="was cancelled: cancellation had already been requested"):
                await runtime.resume(state.run_id, {})
            await must_be_cancelled(dead, state.run_id)
        await dead.close()

    asyncio.run(main())


def test_a_cancelled_run_is_not_suspended_when_its_runtime_closes(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        store = await Store.open(file_url, tmp_path)
        shop = Shop()
        async with Runtime.open(project(tmp_path), store=store, **options(shop, HANG)) as runtime:
            running = asyncio.create_task(runtime.run("go", conversation="c"))
            await shop.began.wait()
            (info,) = await store.runs()
            shop.may_clean.set()
            await runtime.cancel(info.run_id)
        assert (await running).status == "cancelled"
        await must_be_cancelled(store, info.run_id)
        await store.close()

    asyncio.run(main())


class Looking(Store):
    """A store that counts renewals of cancelled runs."""

    def look(self, times: int, then: asyncio.Event) -> None:
        self.times, self.then = times, then

    async def renew(self, run_ids: Collection[str]) -> Mapping[str, bool]:
        renewed = await super().renew(run_ids)
        if any(renewed.values()):
            self.times -= 1
            if self.times == 0:
                self.then.set()
        return renewed


def test_a_tool_that_cleans_up_is_cancelled_only_once(
    tmp_path: Path, file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "RENEWAL_SECONDS", 0.001)

    async def main() -> RunResult:
        store = await Looking.open(file_url, tmp_path)
        assert isinstance(store, Looking)
        shop, root = Shop(), project(tmp_path)
        store.look(5, shop.may_clean)
        async with Runtime.open(root, store=store, **options(shop, HANG)) as runtime:
            async with runtime.stream("go", conversation="c") as stream:
                await shop.began.wait()
                async with Runtime.open(root, store=file_url, **options(Shop())) as other:
                    await other.cancel(stream.run_id)
                result = await stream.result()
            assert shop.cleaned
        await store.close()
        return result

    assert asyncio.run(main()).status == "cancelled"


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("ends", ["cancelled", "timeout"])
@pytest.mark.parametrize("outcome", ["a result", "an error"])
def test_a_tool_that_swallows_its_cancellation_does_not_let_the_run_continue(
    tmp_path: Path, outcome: str, ends: str, at_once: int
) -> None:
    began = asyncio.Event()

    @tool(risk="low")
    async def hang() -> str:
        """Wait until it is cancelled, and do not say so."""
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if outcome == "an error":
                raise OSError("the connection was reset") from None
        return "half of it"

    async def main() -> tuple[RunResult, int]:
        limits = {"runtime_policy": "{timeout: 50ms}"} if ends == "timeout" else {}
        root = write(tmp_path, {"agents.d/one.yaml": agent("one", **limits)})
        model = ScriptedModel(calls(*[("hang", {})] * at_once), HANG, "the end")
        opened = Runtime.open(root, tools=[hang], models={"scripted": model}, watch=False)
        async with opened as runtime, runtime.stream("go") as stream:
            if ends == "cancelled":
                await began.wait()
                await runtime.cancel(stream.run_id)
            return await stream.result(), len(model.requests)

    result, requests = asyncio.run(main())
    assert (result.finish_reason, requests) == (ends, 1)


def test_cancelling_resume_orphans_does_not_interrupt_the_end_of_a_crashed_run(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        store = await Slow.open(file_url, tmp_path)
        assert isinstance(store, Slow)
        store.slow_down()
        async with Runtime.open(project(tmp_path), store=store, **options(Shop())) as runtime:
            run_id = await create_crashing_run(file_url, tmp_path)
            giving_up = asyncio.create_task(runtime.resume_orphans())
            await store.reached.wait()
            giving_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await giving_up
            store.go.set()
            await until_status(store, run_id, "failed")
        await store.close()

    asyncio.run(main())


async def create_crashing_run(url: str, root: Path) -> str:
    """Create a run whose processes ended before they made progress."""
    state = RunState(agent="one", messages=[Message(role="user", content="go")])
    for number in range(MAX_RESUME_ATTEMPTS + 1):
        store = await Store.open(url, root, lease_seconds=0.01)
        if number:
            await store.acquire(await store.load_run(state.run_id), {})
        else:
            await store.start(state, None, None)
        while not await store.runs(RunQuery(orphaned=True)):  # until the lease has expired
            pass
        await store.close()
    return state.run_id


class Overtaken(Store):
    """A store in which another process takes over a run first, once."""

    def overtake(self, faster: Callable[[], Awaitable[object]]) -> None:
        self.faster: Callable[[], Awaitable[object]] | None = faster

    async def acquire(self, *taken: Any) -> RunRecord:
        if (faster := self.faster) is not None:
            self.faster = None
            await faster()
        return await super().acquire(*taken)


def test_a_run_resumed_elsewhere_during_its_cancellation_still_ends(tmp_path: Path, store_url: str) -> None:
    async def main() -> None:
        store = await Overtaken.open(store_url, tmp_path)
        assert isinstance(store, Overtaken)
        shop, root = Shop(), project(tmp_path)
        shop.may_clean.set()
        resumed: list[asyncio.Task[RunResult]] = []
        async with (
            Runtime.open(root, store=store, **options(Shop())) as runtime,
            Runtime.open(root, store=store_url, **options(shop, ASK, HANG)) as other,
        ):
            first = await other.run("go", conversation="c")

            async def resume() -> None:
                asked = first.pending[0].id
                resumed.append(asyncio.create_task(other.resume(first.run_id, {asked: Respond(text="by hand")})))
                await shop.began.wait()

            store.overtake(resume)
            await runtime.cancel(first.run_id)
            assert (await resumed[0]).status == "cancelled"
            await must_be_cancelled(store, first.run_id)
        await store.close()

    asyncio.run(main())
