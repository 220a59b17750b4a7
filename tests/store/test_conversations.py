"""Conversations in every store: listing, retention, expiry and deletion."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from examples.scale_demo.postgres import new_database
from framework import Approve, ConversationBusy, RequestError, RunNotFound, Runtime, Tool, tool
from framework.llm.client import ModelRequest
from framework.store.database import Database
from framework.store.memory import MemoryStore
from framework.store.schema import metadata
from framework.store.store import Store
from framework.store.types import ConversationQuery, Pruned, RunQuery
from framework.testing import ScriptedModel, Turn, calls
from framework.types.messages import Message
from framework.types.state import RunState
from tests.support.clocks import MovableClock, clock_of
from tests.support.compaction import MESSAGES, is_compression, script
from tests.support.halts import PATIENCE, halted
from tests.support.projects import agent, write

MONTH = 30 * 86400.0


@tool(risk="low")
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


Body = Callable[[Runtime, ScriptedModel], Awaitable[None]]


def with_runtime(
    root: Path, url: str | None, body: Body, script: Any = None, tools: Sequence[Tool] = (pay,), **keys: str
) -> None:
    """Run `body` in a runtime with the agents `a` and `b` on a store."""
    write(root, {"agents.d/a.yaml": agent("a", **keys), "agents.d/b.yaml": agent("b")})

    async def main() -> None:
        clock = MovableClock()
        store: Store = MemoryStore(clock=clock) if url is None else await Store.open(url, root, clock=clock)
        model = ScriptedModel(script=script or (lambda _: "hello"))
        try:
            async with Runtime.open(root, tools=tools, models={"scripted": model}, store=store, watch=False) as runtime:
                assert runtime.catalog.problems == (), runtime.catalog.problems
                await body(runtime, model)
        finally:
            await store.close()

    asyncio.run(main())


def test_conversations_are_listed_with_the_latest_turn_first_and_page_by_page(
    tmp_path: Path, any_url: str | None
) -> None:
    async def body(runtime: Runtime, model: ScriptedModel) -> None:
        for name, user, chosen in (("c1", "ann", "a"), ("c2", "bob", "b"), ("c3", "ann", "a"), ("c1", "ann", "a")):
            await runtime.run(f"hi of {user} {len(model.requests)}", conversation=name, user=user, agent=chosen)
        found = await runtime.store.conversations()
        assert [(one.title, one.status) for one in found] == [
            ("hi of ann 0", "completed"),
            ("hi of ann 2", "completed"),
            ("hi of bob 1", "completed"),
        ]
        assert [(one.id, one.turns, one.agent, one.user) for one in found] == [
            ("c1", 2, "a", "ann"),
            ("c3", 1, "a", "ann"),
            ("c2", 1, "b", "bob"),
        ]
        assert found[0].created_at < found[0].updated_at
        first = await runtime.store.conversations(ConversationQuery(limit=2))
        rest = await runtime.store.conversations(ConversationQuery(before=first[-1].updated_at))
        assert [one.id for one in (*first, *rest)] == ["c1", "c3", "c2"]
        assert [one.id for one in await runtime.store.conversations(ConversationQuery(user="bob"))] == ["c2"]
        assert [one.id for one in await runtime.store.conversations(ConversationQuery(agent="b"))] == ["c2"]

    with_runtime(tmp_path, any_url, body)


def test_conversations_are_found_by_title_agent_or_id_in_pages(tmp_path: Path, any_url: str | None) -> None:
    async def body(runtime: Runtime, model: ScriptedModel) -> None:
        for name, tenant, text in (
            ("Nr-1", None, "Refund 50%"),
            ("nr-2", "acme", "refund 退款"),
            ("c3", None, "weather"),
        ):
            await runtime.run(text, conversation=name, tenant=tenant, agent="b" if name == "c3" else "a")
        await runtime.run("and now", conversation="c3", agent="b")
        queries = {
            "REFUND": ["nr-2", "Nr-1"],
            "50%": ["Nr-1"],
            "5_%": [],
            "退款": ["nr-2"],
            "NR-": ["nr-2", "Nr-1"],
            "acme": [],  # the tenant is no part of the id
            "b": ["c3"],
            "and now": ["c3"],  # what was said, besides the title
            "\x00": [],
        }
        for text, expected in queries.items():
            found = await runtime.store.conversations(ConversationQuery(search=text))
            assert [one.id for one in found] == expected, text
        (first,) = await runtime.store.conversations(ConversationQuery(search="refund", limit=1))
        (rest,) = await runtime.store.conversations(ConversationQuery(search="refund", cursor=first.cursor))
        assert (first.id, rest.id) == ("nr-2", "Nr-1")
        (own,) = await runtime.store.conversations(ConversationQuery(search="refund", without_tenant=True))
        assert own.id == "Nr-1"

    with_runtime(tmp_path, any_url, body)


def test_only_the_latest_conversations_and_runs_are_searched(
    tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(runtime: Runtime, model: ScriptedModel) -> None:
        monkeypatch.setattr("framework.store.conversations.SEARCHED_CONVERSATIONS", 2)
        monkeypatch.setattr("framework.store.schema.SEARCHED_TEXTS", 2)
        for name in ("c1", "c2", "c3"):
            await runtime.run("hello", conversation=name, agent="a")
        for query in (ConversationQuery(search="hello"), ConversationQuery(search="hello", limit=2)):
            assert [one.id for one in await runtime.store.conversations(query)] == ["c3", "c2"]

    with_runtime(tmp_path, store_url, body)


def test_deleting_a_conversation_deletes_all_of_its_data_and_no_other(tmp_path: Path, any_url: str | None) -> None:
    async def body(runtime: Runtime, model: ScriptedModel) -> None:
        gone = [(await runtime.run("hi", conversation="c", agent="a")).run_id for _ in range(3)]
        kept = await runtime.run("hi", conversation="other", agent="a")
        assert await runtime.store.delete_conversation("c") == 3
        for run_id in gone:
            with pytest.raises(RunNotFound):
                await runtime.store.load_run(run_id)
        assert (await runtime.store.conversation("c")).turns == 0
        assert [info.run_id for info in await runtime.store.runs()] == [kept.run_id]
        assert len((await runtime.store.conversation("other")).messages) == 2
        with pytest.raises(RequestError, match="there is no conversation 'c'"):
            await runtime.store.delete_conversation("c")
        assert (await runtime.run("again", conversation="c", agent="a")).messages[0].content == "again"

    with_runtime(tmp_path, any_url, body)


def test_no_row_of_a_deleted_or_expired_conversation_remains(tmp_path: Path, store_url: str) -> None:
    async def body(runtime: Runtime, model: ScriptedModel) -> None:
        for name in ("deleted", "expired"):
            await runtime.run("pay", conversation=name, agent="a")
        assert await rows() > 10
        await runtime.store.delete_conversation("deleted")
        await runtime.store.prune(None, time.time() + MONTH, trust_clock=True)
        assert await rows() == 0

    async def rows() -> int:
        database = await Database.open(store_url, tmp_path)
        others = ("agentsd_versions", "agentsd_processes")
        tables = [table for table in metadata.sorted_tables if table.name not in others]
        counts = [sa.select(sa.func.count()).select_from(table) for table in tables]
        try:
            return await database.read(lambda c: sum(c.execute(count).scalar_one() for count in counts))
        finally:
            await database.close()

    def paying(request: ModelRequest) -> Turn:
        return calls(("pay", {"amount": 1})) if request.messages[-1].content == "pay" else "done"

    with_runtime(tmp_path, store_url, body, paying, conversation="{ttl: 1h}")


def test_a_conversation_with_a_run_in_progress_is_not_deleted(tmp_path: Path, any_url: str | None) -> None:
    begun, may_continue = asyncio.Event(), asyncio.Event()

    @tool(risk="low")
    async def slow() -> str:
        """Be slow."""
        begun.set()
        await may_continue.wait()
        return "done"

    async def body(runtime: Runtime, model: ScriptedModel) -> None:
        task = asyncio.create_task(runtime.run("hi", conversation="c", agent="a"))
        await begun.wait()
        with pytest.raises(ConversationBusy):
            await runtime.store.delete_conversation("c")
        may_continue.set()
        assert (await task).status == "completed"
        assert await runtime.store.delete_conversation("c") == 1

    def slowly(request: ModelRequest) -> Turn:
        return calls(("slow", {})) if request.messages[-1].role == "user" else "done"

    with_runtime(tmp_path, any_url, body, slowly, tools=[slow])


@pytest.mark.parametrize("statement", ["INSERT INTO agentsd_runs", "INSERT INTO agentsd_decisions"])
def test_a_deletion_waits_for_a_run_that_is_about_to_start_or_to_be_resumed(
    tmp_path: Path, postgres: str, statement: str
) -> None:
    waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")

    def state() -> RunState:
        return RunState(agent="a", messages=[Message(role="user", content="hi")], conversation_id="c")

    async def main() -> None:
        store = await Store.open(new_database(postgres), tmp_path)
        paused = state()
        record = await store.start(paused, await store.conversation("c"), None)
        paused.status = "completed" if statement.endswith("runs") else "paused"
        await record.write(paused, last=True)
        loaded, conversation = await store.load_run(paused.run_id), await store.conversation("c")
        with halted(store, statement) as halt:
            async with asyncio.timeout(PATIENCE):
                starting = store.start(state(), conversation, None)
                resuming = store.acquire(loaded, {"a": Approve()})
                used, unused = (starting, resuming) if statement.endswith("runs") else (resuming, starting)
                unused.close()
                taking = asyncio.create_task(used)
                await halt.reached()
                deleting = asyncio.create_task(store.delete_conversation("c"))
                while not await store._database.read(lambda c: c.execute(waiting).scalar_one()):
                    pass  # the deletion has not reached the lock yet
                halt.go()
                await taking
                with pytest.raises(ConversationBusy):
                    await deleting
        assert (await store.conversation("c")).open_run is not None
        await store.close()

    asyncio.run(main())


def test_a_conversation_expires_after_its_last_turn(tmp_path: Path, any_url: str | None) -> None:
    async def body(runtime: Runtime, model: ScriptedModel) -> None:
        for _ in range(2):
            result = await runtime.run("hi", conversation="c", agent="a")
        (info,) = await runtime.store.conversations()
        assert info.expires_at is not None
        assert info.expires_at - info.updated_at == pytest.approx(3600, abs=1)
        assert await runtime.store.prune(None, info.expires_at - 1) == Pruned()
        pruned = await runtime.store.prune(None, info.expires_at + 1, dry_run=True)
        assert (pruned.runs, pruned.conversations) == (2, 1)
        assert (await runtime.store.conversation("c")).turns == 2, "a dry run deletes nothing"
        assert await runtime.store.prune(None, info.expires_at + 1) == pruned
        assert (await runtime.store.conversation("c")).turns == 0
        with pytest.raises(RunNotFound):
            await runtime.store.load_run(result.run_id)

    with_runtime(tmp_path, any_url, body, conversation="{ttl: 1h}")


def test_an_expired_conversation_is_not_loaded_even_without_pruning(tmp_path: Path, any_url: str | None) -> None:
    async def body(runtime: Runtime, model: ScriptedModel) -> None:
        first = await runtime.run("hi", conversation="c", agent="a")
        clock_of(runtime.store).ahead = 3601
        again = await runtime.run("and?", conversation="c", agent="a")
        assert [message.content for message in again.messages] == ["and?", "hello"]
        with pytest.raises(RunNotFound):
            await runtime.store.load_run(first.run_id)

    with_runtime(tmp_path, any_url, body, conversation="{ttl: 1h}")


def test_retention_keeps_the_messages_of_remaining_conversations(tmp_path: Path, store_url: str) -> None:
    async def body(runtime: Runtime, model: ScriptedModel) -> None:
        turn = await runtime.run("pay", conversation="c", agent="a")
        alone = await runtime.run("pay", agent="a")
        later = time.time() + MONTH - 60
        assert (await runtime.store.prune(later - MONTH, later, trust_clock=True)).runs == 0
        pruned = await runtime.store.prune(later, later, trust_clock=True)
        assert (pruned.runs, pruned.conversations) == (2, 0)
        with pytest.raises(RunNotFound):
            await runtime.store.load_run(alone.run_id)
        left = await runtime.store.load_run(turn.run_id)
        assert (left.messages, left.calls, left.trace) == (list(turn.messages), {}, [])
        assert await runtime.store.events(turn.run_id) == []
        assert (await runtime.store.prune(later, later, trust_clock=True)).runs == 0, (
            "what is stripped is not pruned again"
        )
        next_turn = await runtime.run("and?", conversation="c", agent="a")
        assert next_turn.messages[: len(turn.messages)] == turn.messages

    def paying(request: ModelRequest) -> Turn:
        return calls(("pay", {"amount": 1})) if request.messages[-1].content == "pay" else "done"

    with_runtime(tmp_path, store_url, body, paying)


def test_a_paused_run_is_never_pruned(tmp_path: Path, any_url: str | None) -> None:
    async def body(runtime: Runtime, model: ScriptedModel) -> None:
        waits = await runtime.run("pay", conversation="c", agent="a")
        assert waits.status == "paused"
        never = time.time() + 100 * MONTH
        assert (await runtime.store.prune(never, never, trust_clock=True)).runs == 0
        assert (await runtime.store.load_run(waits.run_id)).pending

    def paying(_: ModelRequest) -> Turn:
        return calls(("pay", {"amount": 1}))

    with_runtime(tmp_path, any_url, body, paying, skill_policy="{ask: [pay], allow: []}")


def test_a_summary_is_persisted_and_a_paused_run_resumes_after_it(tmp_path: Path, store_url: str) -> None:
    def paying(request: ModelRequest) -> Turn:
        if is_compression(request):
            return "THE SUMMARY"
        last = request.messages[-1]
        if last.role == "tool":
            return "paid"
        return calls(("pay", {"amount": 1})) if last.content == "pay now" else script(request)

    keys: Any = {"conversation": "{compress_at_tokens: 300}", "skill_policy": "{ask: [pay], allow: []}"}

    async def first(runtime: Runtime, model: ScriptedModel) -> None:
        for message in MESSAGES[1:]:
            await runtime.run(message, conversation="c", agent="a")
        waits = await runtime.run("pay now", conversation="c", agent="a")
        assert waits.status == "paused"

    async def second(runtime: Runtime, model: ScriptedModel) -> None:
        kept = await runtime.store.conversation("c")
        assert kept.summary is not None
        assert kept.summary.text == "THE SUMMARY"
        assert len(kept.messages) > kept.summary.upto
        (waiting,) = await runtime.store.runs(RunQuery(statuses=["paused"]))
        state = await runtime.store.load_run(waiting.run_id)
        assert len(state.history) == len(kept.messages) - (state.summary.upto if state.summary else 0)
        result = await runtime.resume(waiting.run_id, {asked.id: Approve() for asked in state.pending})
        assert result.output == "paid"
        asked = [message.content for message in model.requests[-1].messages]
        assert "THE SUMMARY" in asked[1]
        assert len(asked) == 2 + len(state.history) + 3, "instructions, summary, history, and the turn itself"

    with_runtime(tmp_path, store_url, first, paying, **keys)
    with_runtime(tmp_path, store_url, second, paying, **keys)
