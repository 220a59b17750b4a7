"""Runs survive an outage of PostgreSQL: no data is lost, and no finished call is repeated."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import pytest

from examples.scale_demo.postgres import FAST, Server, new_database, server
from framework import Approve, Respond, RunResult, Runtime, StoreError, Tool, tool
from framework.llm.client import ModelRequest
from framework.store.store import Store
from framework.testing import ScriptedModel, Turn, calls
from framework.types.budget import BudgetUse
from framework.types.events import Routed
from framework.types.messages import Message
from framework.types.state import IdempotencyKey, RunState
from tests.support.cases import FACTOR
from tests.support.halts import Cutter
from tests.support.projects import agent, write
from tests.support.queues import end, request

T = TypeVar("T")
STEPS = 6
POLICY = "{max_steps: null, max_tool_calls: null, max_total_tokens: null, timeout: null}"
KEPT = [setting for setting in FAST if not setting.startswith("synchronous_commit")]
"""With `synchronous_commit=off` it is the server that may lose what it has committed."""


@pytest.fixture(scope="module")
def outage() -> Iterator[Server]:
    """A server used only by this module."""
    try:
        with server(KEPT) as running:
            yield running
    except LookupError as missing:
        pytest.skip(str(missing))


@dataclass
class Weather:
    """A tool whose second call stops the server."""

    server: Server
    mode: str
    stays_away: bool = False
    made: Counter[int] = field(default_factory=Counter)
    back: asyncio.Task[None] | None = None

    def tools(self) -> list[Tool]:
        @tool(risk="low")
        async def pay(n: int) -> str:
            """Pay somebody."""
            self.made[n] += 1
            if n == 1 and self.made[n] == 1:
                await asyncio.to_thread(self.server.stop, self.mode)
                if not self.stays_away:
                    self.back = asyncio.create_task(asyncio.to_thread(self.server.start))
            return f"paid {n}"

        return [pay]


def paying(request: ModelRequest) -> Turn:
    """One call per turn, then the answer."""
    turn = sum(message.role == "assistant" for message in request.messages)
    return calls(("pay", {"n": turn}), prefix=f"t{turn}") if turn < STEPS else "done"


def project(root: Path) -> Path:
    return write(root, {"agents.d/one.yaml": agent("one", runtime_policy=POLICY)})


async def must_be_whole(store: Store, result: RunResult) -> None:
    """Check that the saved run equals the result, and that every event was saved once."""
    state = await store.load_run(result.run_id)
    assert tuple(state.messages) == result.messages
    assert [(call.id, call.result) for call in result.tool_calls] == [
        (record.call.id, record.result and record.result.output) for record in state.calls.values()
    ]
    events = await store.events(result.run_id)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    (info,) = await store.runs()
    assert (info.status, info.held) == ("completed", False)
    assert (await store.conversation("c")).open_run is None


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_run_waits_for_a_server_that_comes_back(tmp_path: Path, outage: Server, mode: str) -> None:
    weather = Weather(outage, mode)

    async def main() -> None:
        store = await Store.open(new_database(outage.url), tmp_path)
        models = {"scripted": ScriptedModel(script=paying)}
        async with Runtime.open(
            project(tmp_path), tools=weather.tools(), models=models, store=store, watch=False
        ) as runtime:
            result = await runtime.run("go", conversation="c")
            assert (result.status, result.output) == ("completed", "done")
            await must_be_whole(store, result)
        await store.close()

    asyncio.run(main())
    assert weather.made == Counter(range(STEPS))


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_run_whose_server_failed_is_resumed_by_its_own_process_immediately(
    tmp_path: Path, outage: Server, mode: str
) -> None:
    weather = Weather(outage, mode, stays_away=True)

    async def main() -> None:
        store = await Store.open(new_database(outage.url), tmp_path, lease_seconds=3600, retry_seconds=0)
        models = {"scripted": ScriptedModel(script=paying)}
        async with Runtime.open(
            project(tmp_path), tools=weather.tools(), models=models, store=store, watch=False
        ) as runtime:
            with pytest.raises(StoreError, match=r"store postgresql://.* refused; start the database server"):
                await runtime.run("go", conversation="c")
            with pytest.raises(StoreError):
                await runtime.orphans()
            await asyncio.to_thread(outage.start)
            (orphan,) = await runtime.orphans()
            assert orphan.conversation_id == "c"
            asked = await runtime.resume(orphan.run_id, {})
            assert [question.arguments for question in asked.pending] == [{"n": 1}], "it may have taken effect"
            result = await runtime.resume(orphan.run_id, {asked.pending[0].id: Respond(text="paid 1")})
            assert (result.status, result.output) == ("completed", "done")
            await must_be_whole(store, result)
        await store.close()

    asyncio.run(main())
    assert weather.made == Counter(range(STEPS))


class Storm:
    """A tool that is called by many runs, and stops the server after every 20 calls."""

    def __init__(self, server: Server, outages: int) -> None:
        self.server, self.left = server, outages
        self.made: Counter[str] = Counter()
        self.away: asyncio.Task[None] | None = None

    def tools(self) -> list[Tool]:
        @tool(risk="low")
        async def pay(key: str) -> str:
            """Pay somebody."""
            self.made[key] += 1
            if self.left and self.made.total() % 20 == 0 and (self.away is None or self.away.done()):
                self.left -= 1
                self.away = asyncio.create_task(asyncio.to_thread(self._go_away))
            return f"paid {key}"

        return [pay]

    def _go_away(self) -> None:
        self.server.stop("fast" if self.left % 2 else "immediate")
        self.server.start()


def storming(request: ModelRequest) -> Turn:
    """Two concurrent calls per turn, then the answer."""
    start = max(place for place, message in enumerate(request.messages) if message.role == "user")
    said = request.messages[start].content
    turn = sum(message.role == "assistant" for message in request.messages[start:])
    keys = [("pay", {"key": f"{said}.{turn}.{n}"}) for n in range(2)]
    return calls(*keys, prefix=f"t{turn}") if turn < STEPS else f"done {said}"


async def converse(runtime: Runtime, name: str, turns: int) -> None:
    """Complete a conversation despite store outages."""
    while True:
        try:
            conversation = await runtime.store.conversation(name)
            if (run_id := conversation.open_run) is not None:
                asked = await runtime.pending(run_id)
                await runtime.resume(run_id, {question.id: Respond(text="by hand") for question in asked})
            elif conversation.turns < turns:
                await runtime.run(f"{name}.{conversation.turns}", conversation=name)
            else:
                return
        except StoreError:
            await asyncio.sleep(0.01)  # the server is away for a moment


@pytest.mark.parametrize("retry_seconds", [0, 15])
def test_repeated_server_outages_lose_nothing(tmp_path: Path, outage: Server, retry_seconds: float) -> None:
    names, turns, storm = [f"c{number}" for number in range(5)], 2, Storm(outage, outages=2 * FACTOR)

    async def main() -> None:
        store = await Store.open(new_database(outage.url), tmp_path, lease_seconds=3600, retry_seconds=retry_seconds)
        models = {"scripted": ScriptedModel(script=storming)}
        async with Runtime.open(
            project(tmp_path), tools=storm.tools(), models=models, store=store, watch=False
        ) as runtime:
            async with asyncio.TaskGroup() as group:
                for name in names:
                    group.create_task(converse(runtime, name, turns))
            assert storm.away
            await storm.away
        for info in await store.runs():
            events = await store.events(info.run_id)
            assert (info.status, [event["seq"] for event in events]) == ("completed", [*range(1, len(events) + 1)])
        for name in names:
            said = [message.content for message in (await store.conversation(name)).messages if message.role == "user"]
            assert said == [f"{name}.{number}" for number in range(turns)]
        await store.close()

    asyncio.run(main())
    assert storm.made == Counter(
        f"{c}.{t}.{s}.{n}" for c in names for t in range(turns) for s in range(STEPS) for n in range(2)
    )


@pytest.fixture
def cutter(outage: Server) -> Iterator[Cutter]:
    """A proxy between stores and the server that can cut connections."""
    where = urlsplit(outage.url)
    made = Cutter((where.hostname or "", where.port or 0))
    yield made
    made.close()


def through(cutter: Cutter, url: str) -> str:
    where = urlsplit(url)
    return url.replace(f":{where.port}/", f":{cutter.port}/")


def test_a_transaction_with_a_lost_commit_reply_is_executed_once(
    tmp_path: Path, outage: Server, cutter: Cutter
) -> None:
    """A run's start, takeover and steps check whether the transaction was committed before repeating it."""

    async def main() -> None:
        store = await Store.open(through(cutter, new_database(outage.url)), tmp_path)
        state = RunState(agent="one", conversation_id="c", messages=[Message(role="user", content="go")])

        async def cut(work: Awaitable[T]) -> T:
            cutter.cut_next()
            done = await work
            assert cutter.has_cut
            return done

        record = await cut(store.start(state, await store.conversation("c"), None))
        state.messages.append(Message(role="assistant", content="hm"))
        state.seq = 1
        event = Routed(run_id=state.run_id, seq=1, generation=0, agent="one", reason="", confidence=1.0)
        await cut(record.write(state, [event], uses=[BudgetUse(budget="team", tokens=5)]))
        state.status = "paused"
        await cut(record.write(state, last=True))
        loaded = await store.load_run(state.run_id)
        record = await cut(store.acquire(loaded, {"a": Approve()}, {"a": "ann"}))
        assert (await store.load_run(state.run_id)).decisions == {"a": Approve()}
        loaded.status, loaded.finish_reason = "completed", "final"
        await cut(record.write(loaded, last=True))
        assert len(await store.events(state.run_id)) == 1
        assert [use.tokens for use in await store.budget_uses()] == [5]
        assert [message.content for message in (await store.conversation("c")).messages] == ["go", "hm"]
        assert (await store.conversation("c")).open_run is None
        await store.close()

    asyncio.run(main())


def test_a_queued_run_with_lost_commit_replies_is_saved_claimed_and_begun_once(
    tmp_path: Path, outage: Server, cutter: Cutter
) -> None:
    async def main() -> None:
        store = await Store.open(through(cutter, new_database(outage.url)), tmp_path)
        one, key = request("go", "c"), IdempotencyKey("ann", "key", "digest")

        async def cut(work: Awaitable[T]) -> T:
            cutter.cut_next()
            done = await work
            assert cutter.has_cut
            return done

        assert await cut(store.enqueue(one, idempotency=key)) == one.run_id
        assert await cut(store.enqueue(request("go", "c"), idempotency=key)) == one.run_id
        assert await cut(store.claim(1, run_id=one.run_id)) == [one]
        assert await store.renew([one.run_id]) == {one.run_id: False}
        await cut(store.unclaim([one.run_id]))
        assert await cut(store.claim(1, run_id=one.run_id)) == [one], "it counts as no attempt"
        state, conversation = one.queued_state(), await store.conversation("c")
        state.status = "running"
        await end(state, await cut(store.start(state, conversation, None)))
        (info,) = await store.runs()
        assert (info.status, info.turn) == ("completed", 1)
        await store.close()

    asyncio.run(main())
