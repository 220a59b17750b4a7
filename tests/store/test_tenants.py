"""Conversations of several tenants and users, and pages of lists, in every store."""

from __future__ import annotations

from itertools import product

import pytest

from framework.store.store import Store
from framework.store.types import Conversation, ConversationQuery, RunQuery
from framework.types.budget import BudgetUse, counter_scope
from framework.types.errors import ConversationBusy, RequestError
from tests.support.queues import begin, end, request
from tests.support.stores import with_store

ODD = ("c", "c\x00", "c\x1f", "c\ufffd", "ü" * 200, "c" * 5000, "%", "c_", "C", "c ", "..%2f")
"""Ids as they may come in URLs."""


async def turn(store: Store, text: str, conversation: str, tenant: str | None, user: str | None = None) -> str:
    """Complete one turn of a conversation."""
    one = request(text, conversation, tenant=tenant, user=user)
    await store.enqueue(one)
    (claimed,) = await store.claim(1, run_id=one.run_id)
    await end(*await begin(store, claimed))
    return one.run_id


OWNERS = [*product(("a", "b", None), ("ann", "bob", None))]
"""Tenants and users."""


def test_equal_ids_of_two_owners_are_two_conversations(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        runs = {owner: await turn(store, f"of {owner}", "c1", *owner) for owner in OWNERS}
        for owner in OWNERS:
            found = await store.conversation("c1", *owner)
            assert [message.content for message in found.messages] == [f"of {owner}", f"answer to of {owner}"]
            assert (found.id, found.tenant, found.user, found.turns) == ("c1", *owner, 1)
            assert (await store.load_run(runs[owner])).history == []
            assert [one.run_id for one in await store.runs(RunQuery.of_conversation(found))] == [runs[owner]]
        assert await store.conversation("c1", "d", "ann") == Conversation("c1", tenant="d", user="ann")
        assert await store.conversation("c1", "a", "eve") == Conversation("c1", tenant="a", user="eve")
        for tenant, user in product(("a", "b", "d", None), ("ann", "bob", "eve", None)):
            named = [owner for owner in OWNERS if tenant in (None, owner[0]) and user in (None, owner[1])]
            listed = await store.conversations(ConversationQuery(id="c1", tenant=tenant, user=user))
            assert sorted(map(OWNERS.index, ((one.tenant, one.user) for one in listed))) == [*map(OWNERS.index, named)]
            found_runs = await store.runs(RunQuery(conversation_id="c1", tenant=tenant, user=user))
            assert [info.run_id for info in found_runs] == [runs[owner] for owner in named]
        await store.replace_session(Conversation("c1", tenant="a", user="ann", turns=1, session={"x": 1}))
        sessions = [(await store.conversation("c1", *owner)).session for owner in OWNERS]
        assert sessions == [{"x": 1}, *[{}] * (len(OWNERS) - 1)]
        await store.enqueue(request("2", "c1", tenant="a", user="ann"))
        with pytest.raises(ConversationBusy):
            await store.enqueue(request("3", "c1", tenant="a", user="ann", queue=False))
        for owner in OWNERS[1:]:
            await store.enqueue(request("3", "c1", tenant=owner[0], user=owner[1], queue=False))
        assert len(await store.claim(20)) == len(OWNERS)
        await store.unclaim([info.run_id for info in await store.runs(RunQuery(statuses=["queued"]))])
        assert await store.delete_conversation("c1", "a", "ann") == 2
        assert [(await store.conversation("c1", *owner)).turns for owner in OWNERS] == [0, *[1] * (len(OWNERS) - 1)]

    with_store(body, any_url)


def test_the_budget_of_a_conversation_is_its_own_of_each_owner(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        for tokens, (tenant, user) in enumerate(OWNERS, 1):
            await turn(store, "hi", "c", tenant, user)
            scope = counter_scope(["conversation"], tenant=tenant, user=user, conversation="c", run_id="r")
            await store.count_use([BudgetUse(budget="talk", scope=scope, tokens=tokens)])
        left = [*range(1, len(OWNERS) + 1)]
        for tokens, owner in [*enumerate(OWNERS, 1)]:
            assert sorted(use.tokens for use in await store.budget_uses()) == left
            await store.delete_conversation("c", *owner)
            left.remove(tokens)
        assert await store.budget_uses() == []

    with_store(body, any_url)


def test_a_tenant_or_user_with_an_empty_name_is_one_of_its_own(any_url: str | None) -> None:
    owners = [*product(("", "a", None), ("", "a", None))]

    async def body(store: Store) -> None:
        for owner in owners:
            await turn(store, f"of {owner}", "c", *owner)
        for owner in owners:
            assert (await store.conversation("c", *owner)).messages[0].content == f"of {owner}"

    with_store(body, any_url)


@pytest.mark.parametrize("tenant", [None, "a", "a\x1fb\x00"])
def test_odd_ids_are_stored_or_unknown_and_never_fail(any_url: str | None, tenant: str | None) -> None:
    async def body(store: Store) -> None:
        await turn(store, "kept", "kept", tenant)
        for odd in ODD[:1] + ODD[6:]:
            await turn(store, odd, odd, tenant)
        for odd in ODD:
            found = await store.conversation(odd, tenant)
            assert found.id == odd
            if found.turns:
                assert found.messages[0].content == odd
            assert len(await store.conversations(ConversationQuery(id=odd, tenant=tenant))) == found.turns
            for query in (RunQuery(conversation_id=odd), RunQuery(agent=odd, user=odd, tenant=odd)):
                assert all(info.conversation_id == odd for info in await store.runs(query))
        for odd in ODD:
            for call in (store.load_run, store.events, store.spans, store.decisions, store.request_cancel):
                with pytest.raises(RequestError, match="there is no run"):
                    await call(odd)
            assert await store.claim(1, run_id=odd) == []
        with pytest.raises(RequestError, match="there is no conversation"):
            await store.delete_conversation("\x00", tenant)
        assert (await store.conversation("kept", tenant)).turns == 1

    with_store(body, any_url)


def test_pages_of_runs_stay_the_same_while_runs_are_added(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        runs = [await turn(store, str(n), f"c{n}", "ab"[n % 2]) for n in range(7)]
        query = RunQuery(newest_first=True, limit=3)
        page = [info.run_id for info in await store.runs(query)]
        assert page == runs[:3:-1]
        await turn(store, "new", "new", "a")
        older = RunQuery(newest_first=True, limit=3, before=page[-1])
        assert [info.run_id for info in await store.runs(older)] == runs[3:0:-1]
        of_b = RunQuery(newest_first=True, tenant="b", before=runs[5])
        assert [info.run_id for info in await store.runs(of_b)] == [runs[3], runs[1]]
        assert await store.runs(RunQuery(before=runs[0])) == []
        for wrong in (RunQuery(before="run_x"), RunQuery(before=runs[0], tenant="b"), RunQuery(before="\x00")):
            with pytest.raises(RequestError, match="before: this list has no run"):
                await store.runs(wrong)

    with_store(body, any_url)


def test_pages_of_conversations_stay_the_same_while_turns_are_added(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        for n in range(7):
            await turn(store, str(n), f"c{n}", "ab"[n % 2])
        seen, cursor = [], None
        while page := await store.conversations(ConversationQuery(limit=2, cursor=cursor)):
            seen += [info.id for info in page]
            cursor = page[-1].cursor
            await turn(store, "new", f"new {len(seen)}", "a")
            await turn(store, "again", "c6", "a")
        assert seen == [f"c{n}" for n in range(6, -1, -1)]
        only = ConversationQuery(tenant="b", limit=1)
        (first,) = await store.conversations(only)
        (second,) = await store.conversations(ConversationQuery(tenant="b", limit=1, cursor=first.cursor))
        assert (first.id, second.id) == ("c5", "c3")
        for wrong in ("", "x", "bm90IGpzb24", "W10", "🙂", "WzEsIDIsIDNd", "WzEuMCwgImMiLCBudWxsLCAzXQ"):
            with pytest.raises(RequestError, match="cursor: not a cursor of this list"):
                await store.conversations(ConversationQuery(cursor=wrong))

    with_store(body, any_url)


def test_lists_are_limited_to_agents_and_to_data_without_a_tenant(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        of_a, own = await turn(store, "1", "c1", "a"), await turn(store, "2", "c2", None)
        queued = request("3", "c3", options={"agent": "two"})
        await store.enqueue(queued)
        for query, runs in (
            (RunQuery(without_tenant=True), [own, queued.run_id]),
            (RunQuery(without_tenant=True, agents=["one"]), [own]),
            (RunQuery(agents=("one", "three")), [of_a, own]),
            (RunQuery(agents=["two", "odd\x00"], tenant="a"), []),
            (RunQuery(agents=["two"]), [queued.run_id]),
            (RunQuery(agents=[]), []),
        ):
            assert [info.run_id for info in await store.runs(query)] == runs, query
        for hidden in (RunQuery(before=of_a, without_tenant=True), RunQuery(before=of_a, agents=["two"])):
            with pytest.raises(RequestError, match="before: this list has no run"):
                await store.runs(hidden)
        for listing, ids in (
            (ConversationQuery(without_tenant=True), {"c2", "c3"}),
            (ConversationQuery(agents=["one"]), {"c1", "c2"}),
            (ConversationQuery(agents=["one"], without_tenant=True), {"c2"}),
            (ConversationQuery(agents=[]), set()),
        ):
            assert {info.id for info in await store.conversations(listing)} == ids, listing

    with_store(body, any_url)
