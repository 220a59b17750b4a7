"""Counters of shared budgets: sums, scopes, and what deletes them, in every store."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from framework.store.store import Store
from framework.types.budget import BudgetUse, CounterKey, CounterScope, counter_scope
from framework.types.messages import Message
from framework.types.state import RunState
from tests.support.stores import with_store

HOUR = 3600.0


def use(
    budget: str = "b", *, tokens: int = 1, cost: float = 0.0, period: str = "", tenant: str | None = None
) -> BudgetUse:
    per: tuple[CounterScope, ...] = ("tenant",) if tenant else ("total",)
    scope = counter_scope(per, tenant=tenant, user=None, conversation=None, run_id="")
    return BudgetUse(budget=budget, scope=scope, period=period, tokens=tokens, cost_usd=cost)


async def counters(store: Store) -> dict[CounterKey, tuple[int, float]]:
    return {one.key: (one.tokens, round(one.cost_usd, 6)) for one in await store.budget_uses()}


def begun(conversation: str | None = None) -> RunState:
    said = [Message(role="user", content="go")]
    return RunState(agent="one", conversation_id=conversation, messages=said, conversation_ttl=HOUR)


def test_uses_are_added_up_by_budget_scope_and_period(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        assert await store.budget_uses() == []
        await store.count_use([use(tokens=3, cost=0.1), use(tenant="ö\"'", tokens=5)])
        await store.count_use([use(tokens=4, cost=0.2), use(tenant="b", tokens=2), use(period="2026-11-22", tokens=1)])
        own, other = use(tenant="ö\"'").key, use(tenant="b").key
        assert await counters(store) == {
            use().key: (7, 0.3),
            own: (5, 0.0),
            other: (2, 0.0),
            ("b", "{}", "2026-11-22"): (1, 0.0),
        }
        found = await store.budget_uses([other, ("b", "{}", "2000-01-01")])
        assert [(one.key, one.tokens) for one in found] == [(other, 2)]

    with_store(body, any_url)


def test_a_record_adds_uses_in_the_write_of_the_state_and_once(store_url: str) -> None:
    async def body(store: Store) -> None:
        state = begun()
        record = await store.start(state, None, None)
        await record.write(state, uses=[use(tokens=5), use("c", tokens=5)])
        state.status, state.finish_reason = "completed", "final"
        await record.write(state, last=True, uses=[use(tokens=2)])
        with pytest.raises(Exception, match="taken over"):
            await record.write(state, uses=[use(tokens=100)])
        assert await counters(store) == {use().key: (7, 0.0), use("c").key: (5, 0.0)}

    with_store(body, store_url)


def test_concurrent_uses_of_two_connections_are_all_counted(store_url: str) -> None:
    """The order of the counters in a transaction differs: neither deadlocks nor loses anything."""

    async def body(store: Store) -> None:
        other = await Store.open(store_url, Path("/"))
        both = [use(f"b{n}", cost=0.1) for n in range(30)]
        async with asyncio.TaskGroup() as group:
            for one in (store, other) * 20:
                group.create_task(one.count_use(both))
                group.create_task(one.count_use(both[::-1]))
        assert await counters(store) == {one.key: (80, 8.0) for one in both}
        await other.close()

    with_store(body, store_url)


def test_counters_of_a_conversation_and_of_a_run_are_deleted_with_it(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        for conversation in ("c-1", "c-2", None):
            state = begun(conversation)
            found = await store.conversation(conversation) if conversation else None
            record = await store.start(state, found, None)
            state.status, state.finish_reason = "completed", "final"
            scope = counter_scope(
                ("conversation",), tenant=None, user=None, conversation=conversation, run_id=state.run_id
            )
            await record.write(state, last=True, uses=[BudgetUse(budget="b", scope=scope, tokens=1)])
        await store.count_use([use(tenant="t")])
        assert len(await store.budget_uses()) == 4
        await store.delete_conversation("c-1")
        assert len(await store.budget_uses()) == 3
        await store.prune(None, time.time() + 2 * HOUR)
        assert len(await store.budget_uses()) == 2
        await store.prune(time.time() + HOUR, time.time())
        assert list(await counters(store)) == [use(tenant="t").key]

    with_store(body, any_url)


def test_pruning_deletes_the_counters_of_ended_periods_only(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        await store.count_use([use(), *(use(period=period) for period in ("2020-01-31", "2020-02", "2020-02-01"))])
        before = 1580601600.0  # 2020-02-02 00:00 UTC
        await store.prune(None, before)
        await store.prune(before + 1, before, dry_run=True)
        assert len(await store.budget_uses()) == 4
        await store.prune(before + 1, before)
        assert {key[2] for key in await counters(store)} == {"", "2020-02"}

    with_store(body, any_url)
