"""A store of an earlier version opens, all its data is read, and its runs are resumed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from framework import Approve, RunResult, Runtime, Tool, tool
from framework.store.protocol import Pruned, RunInfo
from framework.store.sql.database import Database
from framework.store.sql.schema import MIGRATIONS
from framework.store.sql.store import SqlStore
from framework.testing import ScriptedModel
from framework.types.messages import Message
from framework.types.state import RunState
from tests.support.old_stores import DUMPS, STORE, project_with_old_store
from tests.support.postgres import new_database

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
            assert await runtime.store.prune(time.time() + 1, time.time()) == Pruned(3, 0)
            (turn, _) = await runtime.store.runs()  # the messages of conversations remain
            assert await runtime.store.events(turn.run_id) == []

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
    for statement in (
        "DROP TABLE agentsd_idempotency_keys",
        "ALTER TABLE agentsd_runs DROP COLUMN request",
        "DROP INDEX ix_agentsd_runs_queued, ix_agentsd_runs_waiting, ix_agentsd_runs_paused",
        "DROP INDEX ix_agentsd_conversations_of_tenants",
        "DROP TABLE agentsd_budget_counters",
        "DROP TABLE agentsd_run_media",
        "DROP TABLE agentsd_media",
        "DROP TABLE agentsd_packed",
        "ALTER TABLE agentsd_runs DROP COLUMN lease_boot",
        "DELETE FROM agentsd_schema WHERE version > 2",
    ):
        connection.exec_driver_sql(statement)
    assert len(MIGRATIONS) > 2
