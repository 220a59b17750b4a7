"""A store of an earlier version opens, all its data is read, and its runs are resumed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from examples.scale_demo.postgres import new_database
from framework import Approve, RunResult, Runtime, Tool, tool
from framework.store.period import Period
from framework.store.protocol import Conversation, Pruned, RunInfo, RunQuery
from framework.store.sql.database import Database
from framework.store.sql.migrations import SCHEMA_VERSION
from framework.store.sql.schema import INDEXES_OF_VERSION_10, budget_counters, conversations, runs
from framework.store.sql.store import SqlStore
from framework.store.sql.texts import SEPARATOR
from framework.store.usage import GROUPINGS
from framework.testing import ScriptedModel
from framework.types.budget import BudgetUse, CounterScope, counter_scope
from framework.types.messages import Message
from framework.types.state import RunState
from tests.support.old_stores import DUMPS, QUEUED, STORE, TENANTS, project_with_old_store
from tests.support.projects import agent, write
from tests.support.queues import begin, cancel, end, request

each_dump = pytest.mark.parametrize("dump", DUMPS, ids=lambda dump: dump.stem)


def tools() -> list[Tool]:
    @tool(risk="low")
    async def pay() -> str:
        """Pay."""
        return "paid"

    @tool(risk="low", idempotent=True)
    async def look(n: int) -> str:
        """Look around."""
        raise AssertionError(f"look {n} finished before")

    @tool(risk="low", idempotent=True)
    async def hang() -> str:
        """Wait."""
        return "waited"

    return [pay, look, hang]


def opened(root: Path, *turns: Any) -> Any:
    models = {"scripted": ScriptedModel(*turns)}
    return Runtime.open(root, tools=tools(), models=models, store=STORE, watch=False)


@each_dump
def test_all_data_of_an_old_store_is_read(tmp_path: Path, dump: Path) -> None:
    async def main() -> None:
        store = await SqlStore.open(STORE, project_with_old_store(tmp_path, dump))
        ended, paused, left = await store.runs()
        assert [info.status for info in (ended, paused, left)] == ["completed", "paused", "running"]
        assert [info.orphaned for info in (ended, paused, left)] == [False, False, True]
        state = await store.load_run(ended.run_id)
        assert [record.result and record.result.output for record in state.calls.values()] == ["saw 1"]
        events = await store.events(ended.run_id)
        assert [event["event"] for event in events] == ["route", "tool_call", "tool_result", "content", "done"]
        assert await store.events(ended.run_id, after=3) == events[3:]
        assert {"chat scripted", "execute_tool look"} <= {span.name for span in await store.spans(ended.run_id)}
        assert [message.content for message in (await store.conversation("c1")).messages][-1] == "first answer"
        await store.close()

    asyncio.run(main())


@each_dump
def test_the_runs_of_an_old_store_are_counted_with_what_their_states_contain(tmp_path: Path, dump: Path) -> None:
    knows_prices = dump.stem == "version-6"  # except those of the run in progress

    async def main() -> None:
        store = await SqlStore.open(STORE, project_with_old_store(tmp_path, dump))
        infos = await store.runs()
        period = Period.of(infos[0].created_at - 1, infos[-1].created_at + 1, "1d", UTC)
        for by in GROUPINGS:
            report = await store.usage(RunQuery(), by, period)
            counts = report.total.counts
            assert report.total.statuses == {"completed": 1, "paused": 1, "running": 1}
            assert counts.tokens == counts.input_tokens + counts.output_tokens == sum(info.tokens for info in infos)
            assert report.total.latency.p95_ms == infos[0].elapsed_ms > 0
            assert counts.unknown_cost == (1 if knows_prices else sum(info.tokens > 0 for info in infos))
            assert sum(group.figures.counts.runs for group in report.groups) == 3
            if by == "model":
                assert [group.key for group in report.groups] == ["scripted" if knows_prices else None]
        await store.close()

    asyncio.run(main())


@each_dump
def test_the_runs_of_an_old_store_are_resumed_and_pruned(tmp_path: Path, dump: Path) -> None:
    async def finished(runtime: Runtime, info: RunInfo) -> RunResult:
        result = await runtime.resume(info.run_id, {})
        while result.status == "paused":
            result = await runtime.resume(info.run_id, {asked.id: Approve() for asked in result.pending})
        return result

    async def main() -> None:
        async with opened(project_with_old_store(tmp_path, dump), "done", "done") as runtime:
            runs: Sequence[RunInfo] = await runtime.store.runs()
            results = [await finished(runtime, info) for info in runs[1:]]
            assert [result.status for result in results] == ["completed", "completed"]
            assert [call.result for result in results for call in result.tool_calls] == ["paid", "waited"]
            for result in results:
                events = await runtime.store.events(result.run_id)
                assert [event["seq"] for event in events] == list(range(1, len(events) + 1)), "old events and new ones"
            assert await runtime.store.prune(time.time() + 1, time.time(), trust_clock=True) == Pruned(3, 0)
            (turn, _) = await runtime.store.runs()  # the messages of conversations remain
            assert await runtime.store.events(turn.run_id) == []

    asyncio.run(main())


def test_the_queued_runs_of_an_old_store_begin_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        store = await SqlStore.open(STORE, project_with_old_store(tmp_path, QUEUED))
        began = []
        while claimed := await store.claim(10):
            for one in claimed:
                assert one.attempts == 0
                began.append(one.message.content)
                await end(*await begin(store, one))
        assert began == ["1", "2", "5", "3", "6"], "4 waits for the paused run of its conversation"
        paused = await store.load_run((await store.conversation("c2")).open_run or "")
        await end(paused, await store.take(paused, {}))
        assert [one.message.content for one in await store.claim(10)] == ["4"]
        await store.close()

    asyncio.run(main())


def test_the_conversations_of_an_old_store_stay_those_of_their_tenants(tmp_path: Path) -> None:
    async def main() -> None:
        budgets = "version: 1\nbudgets:\n  talk: {max_total_tokens: 100000, per: conversation}\n"
        root = write(project_with_old_store(tmp_path, TENANTS), {"agentsd.yaml": budgets})
        write(root, {"agents.d/one.yaml": agent("one", budgets="[talk]")})
        async with opened(root, "third", "done", "new") as runtime:
            store = runtime.store
            turns = {(info.id, info.tenant): info.turns for info in await store.conversations()}
            assert turns == {("c1", "a"): 2, ("c2", "b"): 1, ("c3", None): 1}
            assert [info.conversation_id for info in await store.runs()] == ["c1", "c1", "c2", "c3"]
            used = {tuple(json.loads(use.scope).items()): use.tokens for use in await store.budget_uses()}
            of_c2 = (("conversation", "c2"), ("tenant", "b"))
            of_c1 = (("conversation", "c1"), ("tenant", "a"), ("user", "ann"))
            assert used == {of_c1: 20, of_c2: 10, (("conversation", "c3"),): 10}
            third = await runtime.run("and then?", conversation="c1", tenant="a", user="ann")
            assert [message.content for message in third.messages[-2:]] == ["and then?", "third"]
            assert len(third.messages) == 6
            (of_all,) = (use.tokens for use in await store.budget_uses() if json.loads(use.scope) == dict(of_c1))
            assert of_all == 30
            (paused,) = await store.runs(RunQuery(statuses=["paused"]))
            (asked,) = (await store.load_run(paused.run_id)).pending
            done = await runtime.resume(paused.run_id, {asked.id: Approve()}, tenant="b")
            assert done.status == "completed"
            assert (await store.conversation("c2", "b")).open_run is None
            other = await runtime.run("hi", conversation="c1", tenant="b")
            assert [message.content for message in other.messages] == ["hi", "new"]
            assert await store.delete_conversation("c1", "a", "ann") == 3
            assert of_c1 not in {tuple(json.loads(use.scope).items()) for use in await store.budget_uses()}

    asyncio.run(main())


def test_a_postgresql_store_of_version_4_moves_its_conversations_to_their_tenants(
    tmp_path: Path, postgres: str
) -> None:
    url = new_database(postgres)

    async def main() -> None:
        store = await SqlStore.open(url, tmp_path)
        for tenant in ("a", None):
            state = RunState(agent="one", messages=[Message(role="user", content="go")], conversation_id=f"of {tenant}")
            await store.begin(state, Conversation(f"of {tenant}", tenant=tenant), None)
            scope = counter_scope(["conversation"], tenant=None, user=None, conversation=f"of {tenant}", run_id="")
            await store.count_use([BudgetUse(budget="talk", scope=scope, tokens=1)])
        await store.close()
        database = await Database.open(url, tmp_path)
        await database.write(_as_version_4)
        await database.close()
        store = await SqlStore.open(url, tmp_path)
        assert (await store.conversation("of a", "a")).turns == 1
        assert (await store.conversation("of None")).turns == 1
        assert [info.conversation_id for info in await store.runs()] == ["of a", "of None"]
        scopes = [json.loads(use.scope) for use in await store.budget_uses()]
        assert scopes == [{"conversation": "of None"}, {"conversation": "of a", "tenant": "a"}]
        await store.close()

    asyncio.run(main())


def test_a_store_of_version_9_moves_its_conversations_to_their_users(
    new_store: Callable[[], str], tmp_path: Path
) -> None:
    url, owners = new_store(), {f"{tenant}-{user}": (tenant, user) for tenant in ("a", None) for user in ("ann", None)}

    async def main() -> None:
        store = await SqlStore.open(url, tmp_path)
        for name, (tenant, user) in owners.items():
            names = {"tenant": tenant, "user": user}
            await store.enqueue(answered := request("answered", name, **names))
            (claimed,) = await store.claim(1, run_id=answered.run_id)
            await end(*await begin(store, claimed))
            await store.enqueue(request("waits", name, **names))
            await store.enqueue(given_up := request("given up", f"no turn of {name}", **names))
            await cancel(store, given_up.run_id)
            per: tuple[list[CounterScope], ...] = (["conversation"], ["conversation", "user"])
            scopes = [counter_scope(p, tenant=tenant, user=None, conversation=name, run_id="") for p in per]
            await store.count_use([BudgetUse(budget="talk", scope=scope, tokens=1) for scope in scopes])
        await store._database.write(_as_version_9)
        await store.close()
        store = await SqlStore.open(url, tmp_path)
        assert {one.id: (one.tenant, one.user) for one in await store.conversations()} == owners
        for name, owner in owners.items():
            found = await store.conversation(name, *owner)
            texts = [message.content for message in found.messages]
            assert (texts, found.turns, found.waiting) == (["answered", "answer to answered"], 1, 1)
            infos = await store.runs(RunQuery.of_conversation(found))
            assert [info.message for info in infos] == ["answered", "waits"]
            left = await store.runs(RunQuery.of_conversation(replace(found, id=f"no turn of {name}")))
            assert [info.message for info in left] == ["given up"]
        for claimed in await store.claim(10):
            await end(*await begin(store, claimed))
        tokens = []
        for name, owner in owners.items():
            assert (await store.conversation(name, *owner)).turns == 2
            tokens.append(sum(use.tokens for use in await store.budget_uses()))
            await store.delete_conversation(name, *owner)
        assert tokens == [8, 6, 4, 2]
        assert await store.budget_uses() == []
        await store.close()

    asyncio.run(main())


def test_a_postgresql_store_of_version_2_is_upgraded(tmp_path: Path, postgres: str) -> None:
    url = new_database(postgres)

    async def main() -> None:
        await (await SqlStore.open(url, tmp_path)).close()
        database = await Database.open(url, tmp_path)
        await database.write(_as_version_2)
        await database.close()
        store = await SqlStore.open(url, tmp_path)
        state = RunState(agent="one", messages=[Message(role="user", content="go")])
        record = await store.begin(state, None, None)
        state.status = "completed"
        await record.write(state, last=True)
        assert [info.status for info in await store.runs()] == ["completed"]
        await store.close()

    asyncio.run(main())


def _as_version_2(connection: sa.Connection) -> None:
    _as_version_4(connection)
    for statement in (
        "DROP TABLE agentsd_budget_counters",
        "DROP TABLE agentsd_run_media",
        "DROP TABLE agentsd_media",
        "DROP TABLE agentsd_packed",
        "ALTER TABLE agentsd_runs DROP COLUMN lease_boot",
        "DELETE FROM agentsd_schema WHERE version > 2",
    ):
        connection.exec_driver_sql(statement)
    assert SCHEMA_VERSION > 2


def _as_version_9(connection: sa.Connection) -> None:
    """Remove the users from the keys of conversations, in tables without their later indexes."""
    for index in INDEXES_OF_VERSION_10:
        connection.exec_driver_sql(f"DROP INDEX IF EXISTS {index.name}")
    for table, column in ((conversations, "id"), (runs, "conversation_id"), (budget_counters, "owner")):
        keys = sa.select(table.c[column]).where(table.c[column].like(f"%{SEPARATOR}%")).distinct()
        for key in connection.execute(keys).scalars().all():
            conversation_id, *owner = key.split(SEPARATOR)
            old = SEPARATOR.join([conversation_id, *(owner[:1] if len(owner) < 3 else ())])
            connection.execute(sa.update(table).where(table.c[column] == key).values({column: old}))
    connection.exec_driver_sql("DELETE FROM agentsd_schema WHERE version > 9")


def _as_version_6(connection: sa.Connection) -> None:
    _as_version_9(connection)
    columns = ("process", "priority", "rank", "queue", "ready", "blocked_by", "refusals", "offered_at")
    for statement in (
        *(f"ALTER TABLE agentsd_runs DROP COLUMN {name}" for name in columns),
        *(f"ALTER TABLE agentsd_runs ADD COLUMN {name} DOUBLE PRECISION" for name in ("lease_until", "lease_boot")),
        "DROP INDEX ix_agentsd_runs_expiring",
        "CREATE INDEX ix_agentsd_runs_paused ON agentsd_runs (expires_at) WHERE status = 'paused'",
        "DROP TABLE agentsd_processes",
        "DROP TABLE agentsd_slots",
        "ALTER TABLE agentsd_schema DROP COLUMN min_version",
        "DELETE FROM agentsd_schema WHERE version > 6",
    ):
        connection.exec_driver_sql(statement)


def _as_version_4(connection: sa.Connection) -> None:
    _as_version_6(connection)
    for statement in (
        "DROP TABLE agentsd_idempotency_keys",
        "ALTER TABLE agentsd_runs DROP COLUMN request",
        "DROP INDEX ix_agentsd_runs_queued, ix_agentsd_runs_waiting, ix_agentsd_runs_paused",
        "UPDATE agentsd_runs SET conversation_id = split_part(conversation_id, chr(31), 1)",
        "UPDATE agentsd_conversations SET id = split_part(id, chr(31), 1)",
        "DELETE FROM agentsd_schema WHERE version > 4",
    ):
        connection.exec_driver_sql(statement)
