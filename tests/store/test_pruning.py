"""Pruning deletes data past its retention and nothing else, despite concurrent writes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from examples.scale_demo.postgres import new_database
from framework import Approve, Runtime
from framework.server.startup import housekeeping
from framework.store import conversations as sql_conversations
from framework.store import memory as in_memory
from framework.store.run_links import delete_old_case_results
from framework.store.store import Store
from framework.store.types import CaseResult, Pruned
from framework.telemetry.metrics import ServerMetrics
from framework.testing import ScriptedModel, calls
from framework.types.events import Warned
from framework.types.messages import Message
from framework.types.state import RunState
from tests.support.halts import halted
from tests.support.projects import agent, write
from tests.support.served import served
from tests.support.waiting import until

HOUR = 3600.0
STORE = "sqlite:///.agentsd/state.db"


def project(root: Path, said: str = "You are one.") -> Path:
    policy = "{ask: [{tool: read_file, reason: secret}], allow: [read_file]}"
    one = agent("one", skill_policy=policy, conversation="{ttl: 1h}", instructions=said)
    return write(root, {"agents.d/one.yaml": one})


def opened(root: Path, store: Store | str, *turns: Any) -> Any:
    return Runtime.open(root, models={"scripted": ScriptedModel(*turns)}, store=store, watch=False)


async def turn(store: Store, conversation: str | None, *, ttl: float = HOUR, has_events: bool = False) -> str:
    """Store a completed run, without a runtime."""
    state = RunState(agent="one", conversation_id=conversation, messages=[Message(role="user", content="go")])
    state.conversation_ttl = ttl
    record = await store.start(state, await store.conversation(conversation) if conversation else None, None)
    state.status, state.finish_reason = "completed", "final"
    warned = Warned(run_id=state.run_id, seq=1, generation=1, code="x", message="")
    await record.write(state, [warned] if has_events else (), last=True)
    return state.run_id


def test_blueprints_exist_for_runs_that_begin_after_pruning(tmp_path: Path, store_url: str) -> None:
    async def main() -> None:
        store = await Store.open(store_url, tmp_path)
        asking = calls(("read_file", {"path": "x"}))
        async with opened(project(tmp_path), store, "done", asking, "still one") as runtime:
            await runtime.run("go")
            assert (await store.prune(time.time(), time.time())).runs == 1
            paused = await runtime.run("read")
            project(tmp_path, "You are another one.")
            await runtime.reload()
            result = await runtime.resume(paused.run_id, {paused.pending[0].id: Approve()})
            assert result.output == "still one"
        await store.close()

    asyncio.run(main())


def test_a_blueprint_is_refreshed_before_it_could_be_deleted(
    tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        store = await Store.open(store_url, tmp_path)
        async with opened(project(tmp_path), store, "done", "done") as runtime:
            first = await store.load_run((await runtime.run("go")).run_id)
            monkeypatch.setattr(sql_conversations, "UNUSED_BLUEPRINT_SECONDS", 0)
            await store.prune(time.time() + 1, time.time() + 1)
            assert await store.blueprint(first.blueprint) is None
            await runtime.run("go")
            assert await store.blueprint(first.blueprint) is not None
        await store.close()

    asyncio.run(main())


def test_a_restarted_conversation_is_not_deleted_as_the_expired_one(
    tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        one, other = await Store.open(store_url, tmp_path), await Store.open(store_url, tmp_path)
        old = await turn(one, "c", ttl=0)
        write_now = one._database.write
        new: list[str] = []

        async def write_late(*arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(one._database, "write", write_now)
            new.append(await turn(other, "c"))
            return await write_now(*arguments, **options)

        monkeypatch.setattr(one._database, "write", write_late)
        found = await one.conversation("c")
        assert (found.turns, len(found.messages)) == (1, 1)
        assert [info.run_id for info in await one.runs()] == new != [old]
        await one.close()
        await other.close()

    asyncio.run(main())


def test_a_conversation_continued_during_pruning_is_not_deleted(tmp_path: Path, postgres: str) -> None:
    url = new_database(postgres)

    async def main() -> None:
        one, other = await Store.open(url, tmp_path), await Store.open(url, tmp_path)
        await turn(one, "c")
        with halted(one, "DELETE FROM agentsd_conversations") as halt:
            pruning = asyncio.create_task(one.prune(None, time.time() + 2 * HOUR))
            await halt.reached()
            state = RunState(agent="one", conversation_id="c", messages=[Message(role="user", content="on")])
            record = await other.start(state, await other.conversation("c"), None)
            halt.go()
            assert await pruning == Pruned()
        state.status = "completed"
        await record.write(state, last=True)
        assert [message.content for message in (await one.conversation("c")).messages] == ["go", "on"]
        await one.close()
        await other.close()

    asyncio.run(main())


def test_pruning_uses_small_transactions(tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_conversations, "BATCH_SIZE", 2)

    async def main() -> None:
        store = await Store.open(store_url, tmp_path)
        for number in range(5):
            await turn(store, None)
            await turn(store, f"c{number}", ttl=0)
            await turn(store, "kept")
        before, now = time.time() + 1, time.time() + 1
        assert await store.prune(before, now, dry_run=True) == Pruned(10, 5)
        assert await store.prune(before, now) == Pruned(10, 5)
        assert await store.prune(before, now) == await store.prune(before, now, dry_run=True) == Pruned()
        assert (await store.conversation("kept")).turns == len(await store.runs()) == 5
        await store.close()

    asyncio.run(main())


def test_a_server_deletes_data_past_its_retention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        store = await Store.open(STORE, write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline")}))
        await turn(store, None)
        with served(tmp_path, environment={"AGENTSD_STORE__RETENTION": "1ms"}) as server:
            await until(lambda: "pruned 1 runs, 0 conversations" in str(server.output), "the server prunes the run")
            assert await store.runs() == []
            assert server.stop() == 0
        await store.close()

    asyncio.run(main())


def test_data_without_retention_is_not_deleted(tmp_path: Path, store_url: str) -> None:
    async def main() -> None:
        store = await Store.open(store_url, tmp_path)
        await turn(store, None)
        await turn(store, "over", ttl=0)

        async def is_deleted() -> bool:
            return not await store.conversations()

        async with opened(project(tmp_path), store) as runtime, housekeeping(runtime, ServerMetrics(), None):
            await until(is_deleted, "the expired conversation is deleted")
            assert len(await store.runs()) == 1
        await store.close()

    asyncio.run(main())


def test_in_memory_expired_data_is_deleted_with_a_later_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_memory, "SWEEP_SECONDS", 0)

    async def main() -> None:
        store = in_memory.MemoryStore()
        for number in range(5):
            await turn(store, f"c{number}", ttl=0)
        assert [info.id for info in await store.conversations()] == ["c4"]
        assert len(await store.runs()) == 1

    asyncio.run(main())


def test_old_results_of_cases_are_deleted(tmp_path: Path, store_url: str) -> None:
    result = CaseResult(agent="one", name="a", source="test", digest="d", attempts=2, passed=1)

    async def main() -> None:
        store = await Store.open(store_url, tmp_path)
        await store.case_results.add([result, result.model_copy(update={"name": "b\x00"})])
        assert [(one.name, one.passed) for one in await store.case_results.latest("one", 1)] != []
        assert {one.name for one in await store.case_results.latest("one")} == {"a", "b\x00"}
        assert await store.case_results.latest("other") == []
        await store._database.write(lambda connection: delete_old_case_results(connection, store.now() + 181 * 86400))
        assert await store.case_results.latest("one") == []
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("deletion", ["conversation", "retention", "turn"])
def test_the_result_of_a_scored_run_is_deleted_with_the_run(tmp_path: Path, store_url: str, deletion: str) -> None:
    async def main() -> None:
        store = await Store.open(store_url, tmp_path)
        run_id = await turn(store, None if deletion == "retention" else "c1", has_events=True)
        kept = await turn(store, "c2")
        scored = CaseResult(agent="one", name="", source="runs", digest="d", attempts=1, passed=0, failure="said: 4711")
        await store.case_results.add([scored.model_copy(update={"run_id": one}) for one in (run_id, kept)])
        again = scored.model_copy(update={"run_id": run_id, "passed": 1})
        await store.case_results.add([again])
        assert [one.passed for one in await store.case_results.latest("one") if one.run_id == run_id] == [1]
        if deletion == "conversation":
            await store.delete_conversation("c1")
        else:
            await store._database.write(
                lambda connection: sql_conversations.delete_ended(connection, store.now() + 1, 1)
            )
        assert [one.run_id for one in await store.case_results.latest("one")] == [kept]
        await store.close()

    asyncio.run(main())
