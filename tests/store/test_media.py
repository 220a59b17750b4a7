"""Files in messages: stored once, as long as a run or a conversation refers to them."""

from __future__ import annotations

import asyncio
import time
from itertools import product
from pathlib import Path

import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from examples.scale_demo.postgres import new_database
from framework.store.memory import MemoryStore
from framework.store.schema import media
from framework.store.store import Store
from framework.store.types import RunQuery
from framework.types.file import File
from framework.types.media import MessagePart, TextPart
from framework.types.messages import Message
from framework.types.state import RunState
from framework.types.text import bytes_digest
from tests.support.cases import cases
from tests.support.halts import PATIENCE, halted
from tests.support.media import SAMPLES, pdf, png
from tests.support.stores import with_store

FILES = [File.from_bytes(data, name=f"file {number}") for number, data in enumerate(SAMPLES.values())]
HOUR = 3600.0


async def turn(store: Store, *parts: MessagePart | File, conversation: str | None = None) -> str:
    """Store a completed run whose user's message has these parts."""
    given = [part.part if isinstance(part, File) else part for part in parts]
    message = Message.of_parts("user", given)
    state = RunState(agent="one", conversation_id=conversation, conversation_ttl=HOUR, messages=[message])
    await store.save_media(state.run_id, {f.part.digest: f.data for f in parts if isinstance(f, File)})
    record = await store.start(state, await store.conversation(conversation) if conversation else None, None)
    state.status, state.finish_reason = "completed", "final"
    await record.write(state, last=True)
    return state.run_id


async def stored(store: Store, *files: bytes) -> list[bool]:
    found = await store.load_media([bytes_digest(data) for data in files])
    assert all(found[bytes_digest(data)] == data for data in files if bytes_digest(data) in found)
    return [bytes_digest(data) in found for data in files]


def test_the_files_of_one_owner_are_those_that_its_runs_refer_to(any_url: str | None) -> None:
    owners = [*product(("a", None), ("ann", "bob", None))]
    own = {owner: File.from_bytes(png(str(number)), name="own") for number, owner in enumerate(owners, 1)}

    async def body(store: Store) -> None:
        for (tenant, user), conversation in product(owners, ("c", None)):
            files = {one.part.digest: one.data for one in (own[tenant, user], *FILES[:1])}
            message = Message.of_parts("user", [own[tenant, user].part, FILES[0].part])
            state = RunState(agent="one", messages=[message], tenant=tenant, user=user, conversation_id=conversation)
            await store.save_media(state.run_id, files)
            found = await store.conversation(conversation, tenant, user) if conversation else None
            record = await store.start(state, found, None)
            state.status, state.finish_reason = "completed", "final"
            await record.write(state, last=True)
        digests = [one.part.digest for one in (*own.values(), *FILES[:1])]
        for owner in owners:
            found_files = await store.load_media(digests, RunQuery.of_owner(*owner))
            assert found_files == {one.part.digest: one.data for one in (own[owner], FILES[0])}
        assert len(await store.load_media(digests, RunQuery(tenant="a"))) == 4
        assert len(await store.load_media(digests)) == len(digests)
        assert await store.load_media(digests, RunQuery.of_owner("b", "ann")) == {}

    with_store(body, any_url)


PARTS = st.lists(st.builds(TextPart, text=st.text(st.characters(codec="utf-8"))) | st.sampled_from(FILES))


def test_any_parts_are_loaded_unchanged(any_url: str | None) -> None:
    @given(PARTS)
    @cases(8)
    def check(parts: list[TextPart | File]) -> None:
        async def body(store: Store) -> None:
            conversation = f"c{time.monotonic_ns()}"
            run_id = await turn(store, *parts, conversation=conversation)
            expected = Message.of_parts("user", [part.part if isinstance(part, File) else part for part in parts])
            assert (await store.load_run(run_id)).messages == [expected]
            assert (await store.conversation(conversation)).messages == (expected,)
            assert all(await stored(store, *(part.data for part in parts if isinstance(part, File))))
            (info,) = [info for info in await store.runs() if info.run_id == run_id]
            shown = expected.description[:200]
            assert info.message == shown.replace("\0", "\ufffd")

        with_store(body, any_url)

    check()


def test_a_file_is_deleted_with_the_last_conversation_that_contains_it(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        await turn(store, File.from_bytes(png("both")), File.from_bytes(png("one")), conversation="a")
        await turn(store, File.from_bytes(png("both")), conversation="b")
        await turn(store, File.from_bytes(png("both")), conversation="b")
        await store.delete_conversation("a")
        assert await stored(store, png("both"), png("one")) == [True, False]
        await store.prune(None, time.time() + 2 * HOUR)  # the other one expires
        assert await stored(store, png("both")) == [False]

    with_store(body, any_url)


def test_pruned_runs_lose_their_files_and_conversations_keep_them(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        await turn(store, File.from_bytes(png("single")))
        await turn(store, File.from_bytes(pdf(1, "turn")), conversation="kept")
        assert await stored(store, png("single"), pdf(1, "turn")) == [True, True]
        await store.prune(time.time() + 1, time.time(), dry_run=True)
        assert await stored(store, png("single"), pdf(1, "turn")) == [True, True]
        await store.prune(time.time() + 1, time.time())
        assert await stored(store, png("single"), pdf(1, "turn")) == [False, True]
        await store.delete_conversation("kept")
        assert await stored(store, pdf(1, "turn")) == [False]

    with_store(body, any_url)


def test_the_oldest_run_in_memory_leaves_its_files_to_its_conversation() -> None:
    async def main() -> None:
        store = MemoryStore(keep_runs=1)
        await turn(store, File.from_bytes(png("turn")), conversation="kept")
        await turn(store, File.from_bytes(png("single")))
        await turn(store)
        assert await stored(store, png("turn"), png("single")) == [True, False]
        await store.delete_conversation("kept")
        assert await stored(store, png("turn")) == [False]

    asyncio.run(main())


def test_files_of_a_run_that_never_begins_are_deleted_after_an_hour(store_url: str) -> None:
    async def body(store: Store) -> None:
        await store.save_media("run_never", {bytes_digest(png("x")): png("x")})
        await store.prune(None, time.time() + HOUR / 2)
        assert await stored(store, png("x")) == [True]
        await store.prune(None, time.time() + 2 * HOUR)
        assert await stored(store, png("x")) == [False]

    with_store(body, store_url)


def test_a_file_that_a_new_run_refers_to_is_not_deleted_with_an_old_one(store_url: str) -> None:
    async def body(store: Store) -> None:
        shared = File.from_bytes(png("shared"))
        await turn(store, shared, conversation="c0")
        for number in range(15):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(store.delete_conversation(f"c{number}"))
                tasks.create_task(turn(store, shared, conversation=f"c{number + 1}"))
            assert await stored(store, shared.data) == [True]

    with_store(body, store_url)


def test_a_deletion_waits_for_a_run_that_is_about_to_refer_to_the_file(tmp_path: Path, postgres: str) -> None:
    waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")

    async def main() -> None:
        store = await Store.open(new_database(postgres), tmp_path)
        shared = File.from_bytes(png("shared"))
        await turn(store, shared, conversation="old")
        with halted(store, "INSERT INTO agentsd_run_media") as halt:
            async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
                tasks.create_task(turn(store, shared, conversation="new"))
                await halt.reached()
                tasks.create_task(store.delete_conversation("old"))
                while not await store._database.read(lambda c: c.execute(waiting).scalar_one()):
                    pass  # the deletion has not reached the lock yet
                halt.go()
        assert await stored(store, shared.data) == [True]
        await store.close()

    asyncio.run(main())


def test_a_file_is_stored_once(store_url: str) -> None:
    async def body(store: Store) -> None:
        for name in ("a", "b", "c"):
            await turn(store, File.from_bytes(png("once")), conversation=name)
        assert isinstance(store, Store)
        count = sa.select(sa.func.count()).select_from(media)
        assert await store._database.read(lambda connection: connection.execute(count).scalar_one()) == 1

    with_store(body, store_url)
