"""Notes in each kind of store: who finds which, by which words, and which are deleted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from framework.store.notes import note_row
from framework.store.schema import notes
from framework.store.store import Store
from framework.store.types import Conversation, NoteQuery
from framework.types.errors import RequestError
from framework.types.memory import MAX_NOTE_CHARS, Embedding, Note, NoteOwner, index_words, note_id, query_words
from framework.types.messages import Message
from framework.types.spec import MemoryScope
from framework.types.state import RunState
from tests.support.cases import cases
from tests.support.clocks import clock_of
from tests.support.stores import with_store

ANN = NoteOwner("user", "t", "ann", "a")
DAY = 86400.0


def note(text: str, number: int = 0, owner: NoteOwner = ANN, now: float = 0.0, ttl: float | None = None) -> Note:
    """Return a note of an owner with an id of its own."""
    return Note(
        id=note_id(f"run{number}", text),
        text=text,
        scope=owner.scope,
        tenant=owner.tenant,
        user=owner.user,
        agent=owner.agent,
        run_id=f"run{number}",
        conversation_id=f"c{number}",
        untrusted=False,
        created_at=now,
        used_at=now,
        expires_at=None if ttl is None else now + ttl,
    )


FACTS = (
    "The user prefers window seats on long flights.",
    "Invoices are sent to billing@example.com every Friday.",
    "Ann's daughters study in Zürich.",
    "用户喜欢靠窗的座位。",
    "每周五上午开会,地点在上海。",
    "窓側の席が好きです。",
    "사용자는 창가 자리를 좋아합니다.",
    'Her code word is "NOT AND (blue)*".',
    "Order 4711 was cancelled.",
)
SEARCHES = (
    ("seat", 0), ("window seat please", 0), ("Which flight would the user prefer?", 0), ("SEATED", 0),
    ("invoice", 1), ("Where do I send the bills on Fridays", 1), ("billing@example.com", 1),
    ("daughter", 2), ("studying", 2), ("zurich", 2), ("ZÜRICH", 2),
    ("靠窗", 3), ("我想要靠窗座位", 3), ("座位", 3), ("上海", 4), ("周五什么时候开会", 4), ("窗", 3),
    ("窓側", 5), ("창가", 6),
    ('"blue"', 7), ("blue OR NEAR(", 7), ("words:blue*", 7), ("4711", 8), ("order-4711!", 8), ("cancelling orders", 8),
)  # fmt: skip


def test_notes_are_found_by_words_inflections_and_chinese(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        for number, fact in enumerate(FACTS):
            await store.notes.save(note(fact, number), 200)
            await store.notes.save(
                note("blue window seats 靠窗", number, NoteOwner("user", "t", f"u{number}", "a")), 200
            )
        for query, wanted in SEARCHES:
            found = await store.notes.search(ANN, query, 3)
            assert found, f"{query!r} finds nothing"
            assert found[0].text == FACTS[wanted], query
        for nothing in ("", "the", "  ", "”’“", "*", "小", "xyzzy", "AND", "🙂"):
            assert not await store.notes.search(ANN, nothing, 3), nothing

    with_store(body, any_url)


@cases(30)
@given(query=st.text(max_size=60) | st.text(alphabet="\"'()*:^-+ANDORTNE &|!<>@$\\\0\x1f%_靠窗", max_size=40))
def test_no_query_is_an_error(query: str) -> None:
    async def body(store: Store) -> None:
        await store.notes.save(note("AND OR NOT 靠窗"), 200)
        found = await store.notes.search(ANN, query, 3)
        assert bool(found) == bool({*query_words(query)} & {*index_words("AND OR NOT 靠窗").split()} - {"and", "or"})

    with_store(body, None)


@cases(20)
@given(
    owners=st.lists(
        st.builds(
            NoteOwner,
            st.sampled_from(["user", "agent", "tenant"]),
            st.sampled_from([None, "t", 'u"]']),
            st.sampled_from([None, "ann", "t"]),
            st.sampled_from(["a", "b"]),
        ),
        min_size=2,
        max_size=8,
    )
)
def test_notes_never_cross_an_owner(owners: Sequence[NoteOwner]) -> None:
    def shared(one: NoteOwner, other: NoteOwner) -> bool:
        same_user = one.scope == "tenant" or one.user == other.user
        same_agent = one.scope != "agent" or one.agent == other.agent
        return (one.scope, one.tenant) == (other.scope, other.tenant) and same_user and same_agent

    async def body(store: Store) -> None:
        for number, owner in enumerate(owners):
            await store.notes.save(note(f"seat {number}", number, owner), 200)
        for reader in owners:
            texts = {f"seat {number}" for number, owner in enumerate(owners) if shared(owner, reader)}
            assert {found.text for found in await store.notes.search(reader, "seat", 50)} == texts
            assert {found.text for found in await store.notes.newest(reader, 50)} == texts
            for number, owner in enumerate(owners):
                id = note_id(f"run{number}", f"seat {number}")
                is_own = shared(owner, reader)
                assert (await store.notes.owned(reader, id) is not None) == is_own
                assert is_own or not await store.notes.forget_owned(reader, id)

    with_store(body, None)


def test_old_and_unused_notes_are_deleted(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        clock = clock_of(store)
        for number in range(3):
            await store.notes.save(note(f"seat {number}", number, now=store.now(), ttl=10 * DAY), 3)
            clock.ahead += DAY
        await store.notes.mark_used([note_id("run0", "seat 0")])
        await store.notes.save(note("seat 3", 3, now=store.now(), ttl=10 * DAY), 3)
        texts = {found.text for found in await store.notes.search(ANN, "seat", 9)}
        assert texts == {"seat 0", "seat 2", "seat 3"}, "the one that was not used for longest is gone"
        clock.ahead += 7.5 * DAY  # seat 0 has expired
        assert [found.text for found in await store.notes.newest(ANN, 9)] == ["seat 3", "seat 2"]
        assert {found.text for found in await store.notes.search(ANN, "seat", 9)} == {"seat 2", "seat 3"}
        await store.prune(None, store.now(), trust_clock=True)
        clock.ahead -= 7.5 * DAY
        assert len(await store.notes.list(NoteQuery())) == 2, "it is deleted, not only hidden"

    with_store(body, any_url)


def test_a_note_is_saved_once_and_deleted_with_its_conversation(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        first = await store.notes.save(note("seat", 1), 200)
        again = note("seat", 1).model_copy(update={"text": "another", "created_at": 5.0})
        assert await store.notes.save(again, 200) == first, "another attempt of the same call"
        assert await store.notes.save(note("seat", 2), 200) == first, "the same fact"
        await store.notes.save(note("aisle", 2), 200)
        for number in (1, 2):
            said = [Message(role="user", content="hi")]
            state = RunState(messages=said, agent="a", conversation_id=f"c{number}", user="ann", tenant="t")
            record = await store.start(state, Conversation(f"c{number}", user="ann", tenant="t"), None)
            state.status = "completed"
            await record.write(state, last=True)
        await store.delete_conversation("c1", "t", "ann")
        assert [found.text for found in await store.notes.search(ANN, "seat aisle", 9)] == ["aisle"]

    with_store(body, any_url)


def test_notes_are_listed_in_pages_and_forgotten_by_filters(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        scopes: Sequence[MemoryScope] = ("user", "agent", "tenant")
        for number in range(6):
            owner = NoteOwner(scopes[number % 3], "t" if number < 5 else None, f"u{number % 2}", "a")
            await store.notes.save(note(f"Fact_{number}%", number, owner), 200)
        every = await store.notes.list(NoteQuery())
        assert [found.text for found in every] == [f"Fact_{number}%" for number in (5, 4, 3, 2, 1, 0)]
        page = await store.notes.list(NoteQuery(tenant="t", limit=2, before=every[2].id))
        assert [found.text for found in page] == ["Fact_2%", "Fact_1%"]
        with pytest.raises(RequestError, match="no note 'x'"):
            await store.notes.list(NoteQuery(before="x"))
        with pytest.raises(RequestError):
            await store.notes.list(NoteQuery(tenant="t", before=every[0].id))
        assert [found.text for found in await store.notes.list(NoteQuery(search="fact_1%"))] == ["Fact_1%"]
        assert [found.text for found in await store.notes.list(NoteQuery(without_tenant=True))] == ["Fact_5%"]
        assert not await store.notes.list(NoteQuery(agents=["b"]))
        assert await store.notes.forget(NoteQuery(tenant="t", user="u1")) == 2
        assert await store.notes.forget(NoteQuery(ids=[every[0].id, "x"])) == 1
        assert [found.text for found in await store.notes.list(NoteQuery())] == ["Fact_4%", "Fact_2%", "Fact_0%"]

    with_store(body, any_url)


def test_vectors_rank_before_words(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        for text, vector in (("seat", (1.0, 0.0)), ("chair", (0.9, 0.1)), ("invoice", (0.0, 1.0))):
            await store.notes.save(note(text), 200, Embedding("p.embed", vector))
        await store.notes.save(note("seat without a vector"), 200)
        await store.notes.save(note("seat of another function"), 200, Embedding("p.other", (1.0, 0.0)))
        found = await store.notes.search(ANN, "seat", 2, Embedding("p.embed", (5.0, 0.1)))
        assert [one.text for one in found] == ["seat", "chair"]
        longer = await store.notes.search(ANN, "seat", 3, Embedding("p.embed", (1.0, 0.0, 0.0)))
        assert {one.text for one in longer} == {"seat", "seat without a vector", "seat of another function"}

    with_store(body, any_url)


def test_ten_thousand_notes_are_searched_and_bounded(any_url: str | None) -> None:
    many = [note(f"fact {number} about topic{number % 97} " + "x" * 200, number) for number in range(10_000)]

    async def body(store: Store) -> None:
        await store.notes.save(many[0], 10_000)
        rows = [note_row(one) for one in many[1:]]
        await store._database.write(lambda connection: connection.execute(sa.insert(notes), rows))
        assert [found.text for found in await store.notes.search(ANN, "fact 4321", 1)] == [many[4321].text]
        assert len(await store.notes.search(ANN, "fact", 5)) == 5
        await store.notes.save(note("one more" + "x" * (MAX_NOTE_CHARS - 8)), 200)
        assert len(await store.notes.list(NoteQuery())) == 200, "a lower limit applies with the next note"

    with_store(body, any_url)
