"""Figures of many runs: every store counts what a naive computation counts, for any owner, period and grouping."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from examples.scale_demo.postgres import new_database
from framework.store.memory import MemoryStore
from framework.store.store import Store
from framework.store.types import RunQuery
from framework.store.usage import CHARTED_GROUPS, GROUPINGS, MAX_GROUPS, STEPS, Period
from tests.support.cases import cases
from tests.support.clocks import MovableClock
from tests.support.stores import with_store
from tests.support.used_runs import UsedRun, add_runs, expected, flat, used

DAY = 86_400.0
BASE = datetime(2026, 10, 24, 12, tzinfo=UTC).timestamp()
"""Half a day before clocks in Europe go back by an hour."""
ZONES = ("UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kolkata", "Australia/Lord_Howe")
MODELS = ("openai/big", "openai/small", "local/free")

quarters = st.integers(0, 40).map(lambda number: number / 4)
uses = st.builds(used, st.integers(1, 9), st.integers(0, 1000), st.none() | quarters, cached=st.integers(0, 9))
runs = st.builds(
    UsedRun,
    at=st.integers(-4 * 86_400, 3 * 86_400).map(lambda seconds: BASE + seconds),
    agent=st.sampled_from(["one", "two", "three"]),
    tenant=st.sampled_from([None, "a", "b"]),
    user=st.sampled_from([None, "ann", "bob"]),
    generation=st.integers(1, 4),
    status=st.sampled_from(["completed", "stopped", "failed", "cancelled", "paused"]),
    reason=st.sampled_from(["final", "max_steps", "model_error"]),
    elapsed_ms=st.integers(0, 50).map(lambda number: number / 2),
    steps=st.integers(0, 5),
    tool_calls=st.integers(0, 5),
    uses=st.dictionaries(st.sampled_from(MODELS), uses, max_size=3),
)
queries = st.builds(
    RunQuery,
    tenant=st.sampled_from([None, "a"]),
    without_tenant=st.booleans(),
    user=st.sampled_from([None, "ann"]),
    agents=st.sampled_from([None, ("one",), ("one", "three")]),
    agent=st.sampled_from([None, None, "three"]),
)
periods = st.builds(
    lambda since, length, step, zone: Period.of(BASE + since, BASE + since + length, step, ZoneInfo(zone)),
    st.integers(-3 * 86_400, 86_400),
    st.integers(1, 3 * 86_400),
    st.sampled_from(STEPS),
    st.sampled_from(ZONES),
)


async def check(store: Store, stored: list[UsedRun], query: RunQuery, period: Period) -> None:
    for by in GROUPINGS:
        report = await store.usage(query, by, period)
        assert flat(report) == expected(stored, query, by, period), by
        for group in report.groups:
            if group.steps is not None:
                assert sum(one.counts.runs for one in group.steps) == group.figures.counts.runs
                assert sum(one.counts.tokens for one in group.steps) == group.figures.counts.tokens


@cases(8)
@given(stored=st.lists(runs, max_size=12), query=queries, period=periods)
def test_a_store_in_memory_counts_what_is_there(stored: list[UsedRun], query: RunQuery, period: Period) -> None:
    async def main() -> None:
        store = MemoryStore(clock=MovableClock())
        await add_runs(store, stored)
        await check(store, stored, query, period)

    asyncio.run(main())


@cases(4)
@given(stored=st.lists(runs, max_size=12), asked=st.lists(st.tuples(queries, periods), min_size=1, max_size=4))
def test_postgresql_counts_what_is_there(
    postgres: str, stored: list[UsedRun], asked: list[tuple[RunQuery, Period]]
) -> None:
    async def main() -> None:
        store = await Store.open(new_database(postgres), Path("/"), clock=MovableClock())
        try:
            await add_runs(store, stored)
            for query, period in asked:
                await check(store, stored, query, period)
        finally:
            await store.close()

    asyncio.run(main())


def test_groups_beyond_the_limit_are_counted_and_those_with_most_tokens_are_charted(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        stored = [UsedRun(BASE, user=f"u{n:03}", uses={"m": used(1, n, 0)}) for n in range(MAX_GROUPS + 3)]
        await add_runs(store, [*stored, UsedRun(BASE, user=None)])
        report = await store.usage(RunQuery(), "user", Period.of(BASE - 1, BASE + 1, "1h", ZoneInfo("UTC")))
        assert (len(report.groups), report.more_groups) == (MAX_GROUPS, 4)
        charted = await store.usage(RunQuery(agent="one"), "model", Period.of(BASE, BASE + 1, "1h", ZoneInfo("UTC")))
        assert [(group.key, group.steps is not None) for group in charted.groups] == [("m", True), (None, True)]
        stored = [UsedRun(BASE, agent="two", uses={f"m{n}": used(1, n, 0)}) for n in range(CHARTED_GROUPS + 2)]
        await add_runs(store, stored)
        charted = await store.usage(RunQuery(agent="two"), "model", Period.of(BASE, BASE + 1, "1h", ZoneInfo("UTC")))
        assert [group.key for group in charted.groups if group.steps is None] == ["m0", "m1"]

    with_store(body, any_url)


def test_percentiles_are_those_of_the_nearest_rank(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        await add_runs(store, [UsedRun(BASE, elapsed_ms=n) for n in range(1, 21)])
        report = await store.usage(RunQuery(), "agent", Period.of(BASE, BASE + 1, "1h", ZoneInfo("UTC")))
        assert (report.total.latency.p50_ms, report.total.latency.p95_ms) == (10, 19)

    with_store(body, any_url)


def test_new_versions_are_marked_at_their_first_run(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        times = {1: (-3000.0, 0.0), 2: (60.0, 120.0), 3: (-30.0, 90.0), 4: (300.0,), 5: (DAY,)}
        await add_runs(store, [UsedRun(BASE + at, generation=n) for n, ats in times.items() for at in ats])
        report = await store.usage(RunQuery(), "generation", Period.of(BASE, BASE + 3600, "1h", ZoneInfo("UTC")))
        assert [(use.generation, use.at - BASE) for use in report.generations] == [(2, 60.0), (4, 300.0)]
        assert {group.key: group.generation for group in report.groups} == {f"d{n:015}": n for n in (1, 2, 3, 4)}

    with_store(body, any_url)


def test_a_run_counts_while_it_is_paused_resumed_and_ended(store_url: str) -> None:
    """Its figures are in columns while it is paused and once it has ended, and in its state in between."""

    async def body(store: Store) -> None:
        (run_id,) = await add_runs(store, [UsedRun(BASE, status="paused", uses={"m": used(1, 10, 0.5)})])
        period = Period.of(BASE - 1, BASE + 1, "1h", ZoneInfo("UTC"))

        async def found() -> tuple[int, float | None, str | None]:
            report = await store.usage(RunQuery(), "model", period)
            ((group,), (info,)) = report.groups, await store.runs()
            assert (report.total.counts.tokens, info.cost_usd) == (group.figures.counts.tokens, report.total.cost_usd)
            return report.total.counts.tokens, report.total.cost_usd, group.key

        assert await found() == (20, 0.5, "m")
        state = await store.load_run(run_id)
        record = await store.acquire(state, {})
        assert await found() == (20, 0.5, "m")
        state.model_uses, state.usage = {"m": used(2, 30, 1.5)}, used(2, 30, 1.5).usage
        state.status = "running"
        await record.write(state)
        assert await found() == (60, 1.5, "m")
        state.status = "completed"
        await record.write(state, last=True)
        assert await found() == (60, 1.5, "m")

    with_store(body, store_url)


def test_figures_need_no_statement_of_their_own(tmp_path: Path) -> None:
    async def main() -> None:
        store = await Store.open("sqlite:///state.db", tmp_path, clock=MovableClock())
        statements: list[str] = []
        await store._database.maintain(lambda driver: driver.set_trace_callback(statements.append))
        await add_runs(store, [UsedRun(BASE, uses={"m": used(1, 10, 0.5)})])
        words = [" ".join(statement.split()[:3]) for statement in statements]
        begun = words.index("COMMIT")
        assert words[begun + 1 :] == [
            "BEGIN IMMEDIATE",
            "UPDATE agentsd_runs SET",
            "COMMIT",
        ]
        await store.close()

    asyncio.run(main())


# --- the period


@cases(200)
@given(period=periods, seconds=st.integers(0, 3 * 86_400))
def test_each_time_is_in_the_step_that_began_last(period: Period, seconds: int) -> None:
    at = period.since + seconds % (period.until - period.since)
    number, start = max(one for one in period.starts if one[1] <= at)
    assert period.number(at) == number
    assert [after - before > 0 for (_, before), (_, after) in pairwise(period.starts)] == [True] * (
        len(period.starts) - 1
    )
    assert start <= at


def test_days_begin_at_midnight_of_their_zone_also_when_clocks_change() -> None:
    zone = ZoneInfo("Europe/Berlin")
    period = Period.of(BASE - DAY, BASE + 2 * DAY, "1d", zone)
    shown = [datetime.fromtimestamp(start, zone).isoformat() for _, start in period.starts]
    assert shown == [f"2026-10-{day}T00:00:00+0{offset}:00" for day, offset in ((23, 2), (24, 2), (25, 2), (26, 1))]
    for step in STEPS:
        period = Period.of(BASE - DAY, BASE + 2 * DAY, step, zone)
        assert all(period.number(start) == number for number, start in period.starts)
        assert all(period.number(after - 1) == number for (number, _), (_, after) in pairwise(period.starts))
    hours = Period.of(BASE - DAY, BASE + DAY, "1h", zone)
    assert len(hours.starts) == 47, "48 hours pass, and clocks show one of them twice"
