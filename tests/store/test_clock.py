"""What expires or is deleted does not depend on the time of day of a process's machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from framework import Runtime
from framework.engine.runtime.resume import RunResumer
from framework.store.database import StoreClock, elapsed
from framework.store.pruning import ClockCheck
from framework.store.store import Store
from framework.store.types import Pruned
from framework.testing import ScriptedModel, calls
from framework.types.errors import ClockRefused
from framework.types.messages import Message
from framework.types.state import IdempotencyKey, RunState
from tests.support.clocks import MovableClock, wrong_by
from tests.support.commands import agentsd
from tests.support.projects import agent, write
from tests.support.queues import request
from tests.support.submitted_runs import PATIENCE
from tests.support.wrong_clock import started

MINUTES, HOUR, DAY = 20 * 60.0, 3600.0, 86400.0
WRONG = pytest.mark.parametrize("ahead", [MINUTES, 40 * DAY, -40 * DAY])


async def ended(store: Store, conversation: str | None = None, ttl: float | None = None) -> str:
    """Store a run that has ended, and return its id."""
    state = RunState(agent="one", conversation_id=conversation, messages=[Message(role="user", content="go")])
    state.conversation_ttl = ttl
    record = await store.start(state, await store.conversation(conversation) if conversation else None, None)
    state.status, state.finish_reason = "completed", "final"
    await record.write(state, last=True)
    return state.run_id


@asynccontextmanager
async def two_stores(url: str, ahead: float) -> AsyncIterator[tuple[Store, Store]]:
    """Open the store in a process that is in use, and then in one whose machine has a wrong time."""
    right = await Store.open(url, Path("/"))
    try:
        await right.keep_alive("right", {})
        wrong = await Store.open(url, Path("/"), clock=wrong_by(ahead))
        try:
            yield right, wrong
        finally:
            await wrong.close()
    finally:
        await right.close()


@WRONG
def test_all_processes_of_a_store_have_the_same_time(store_url: str, ahead: float) -> None:
    async def main() -> None:
        async with two_stores(store_url, ahead) as (right, wrong):
            await wrong.keep_alive("wrong", {})
            assert abs(wrong.now() - right.now()) < HOUR / 4
            assert [one.is_alive for one in await right.processes()] == [True, True]

    asyncio.run(main())


@WRONG
def test_a_wrong_clock_deletes_nothing(store_url: str, ahead: float) -> None:
    async def main() -> None:
        async with two_stores(store_url, ahead) as (right, wrong):
            kept = await ended(right)
            await ended(right, "c", ttl=7 * DAY)
            assert await wrong.prune(wrong.now() - 30 * DAY, wrong.now()) == Pruned()
            assert (await wrong.conversation("c")).turns == 1
            mine = time.time() + ahead  # of a program that uses its own time instead of the store's
            if ahead > DAY:
                with pytest.raises(ClockRefused, match=r"40.0 days after the time of the store"):
                    await wrong.prune(mine - 30 * DAY, mine)
            else:
                assert await wrong.prune(mine - 30 * DAY, mine) == Pruned()
            assert kept in {info.run_id for info in await right.runs()}
            assert (await right.conversation("c")).turns == 1

    asyncio.run(main())


@WRONG
def test_a_wrong_clock_forgets_no_idempotency_key(store_url: str, ahead: float) -> None:
    async def main() -> None:
        key = IdempotencyKey("ann", "key", "digest")
        async with two_stores(store_url, ahead) as (right, wrong):
            first = await right.enqueue(request(), idempotency=key)
            assert await wrong.enqueue(request(), idempotency=key) == first
            another = IdempotencyKey("ann", "another", "digest")
            second = await wrong.enqueue(request(), idempotency=another)
            assert await right.enqueue(request(), idempotency=another) == second
            assert all(abs(info.created_at - right.now()) < HOUR / 4 for info in await right.runs())

    asyncio.run(main())


def test_a_clock_that_is_set_later_changes_no_time_of_a_store() -> None:
    moment = [time.time()]
    clock = StoreClock(lambda: moment[0])
    before = clock()
    moment[0] += 40 * DAY
    assert clock() - before < HOUR


def project(root: Path) -> Path:
    """Return a project whose agents wait for a decision: one for 15 minutes, one for a moment."""
    confirm = "{confirm: {from: never, expires: %s, on_expiry: cancel}}"
    policy = {"skill_policy": "{ask: [read_file], allow: [read_file]}", "model": "offline"}
    expiries = {"patient": "15m", "brief": "1ms"}
    texts = {name: agent(name, runtime_policy=confirm % after, **policy) for name, after in expiries.items()}
    return write(root, {f"agents.d/{name}.yaml": text for name, text in texts.items()})


async def paused(root: Path, store: Store, *agents: str) -> list[str]:
    """Let runs of these agents wait for a decision, and return their ids."""
    model = ScriptedModel(script=lambda _: calls(("read_file", {"path": "x"})))
    async with Runtime.open(root, models={"offline": model}, store=store, watch=False) as runtime:
        results = [await runtime.run("go", agent=name) for name in agents]
    assert {result.status for result in results} == {"paused"}
    return [result.run_id for result in results]


async def unused_for(url: str, seconds: float) -> str:
    """Store a run, and nothing since then; return its id."""
    clock = MovableClock()
    clock.at = time.time() - seconds
    store = await Store.open(url, Path("/"), clock=clock)
    run_id = await ended(store)
    await store.close()
    return run_id


@WRONG
def test_a_wrong_clock_expires_no_confirmation(tmp_path: Path, store_url: str, ahead: float) -> None:
    async def main() -> None:
        async with two_stores(store_url, ahead) as (right, wrong):
            root = project(tmp_path)
            waiting = await paused(root, right, *["patient"] * 5)
            async with Runtime.open(root, store=wrong, watch=False) as runtime:
                assert await runtime.expire() == []
                by_wrong = await paused(root, wrong, "patient")
            async with Runtime.open(root, store=right, watch=False) as runtime:
                assert await runtime.expire() == []
                assert [info.run_id for info in await right.runs()] == [*waiting, *by_wrong]
                assert {info.status for info in await right.runs()} == {"paused"}
                for info in await right.runs():
                    assert info.expires_at is not None
                    assert 0 < info.expires_at - right.now() <= 15 * 60 + HOUR / 4

    asyncio.run(main())


@pytest.mark.parametrize(
    ("new_store", "ahead"), [("sqlite", 40 * DAY), ("postgresql", MINUTES)], indirect=["new_store"]
)
def test_a_server_with_a_wrong_clock_ends_and_deletes_nothing(
    tmp_path: Path, store_url: str, ahead: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has done its periodic work once a run whose confirmation has expired is cancelled, and an old one deleted.

    On PostgreSQL, the processes prune once an hour.
    """
    monkeypatch.setattr(RunResumer, "_on_pause", lambda *_: None)  # this process ignores that one expires

    async def main() -> None:
        root = project(tmp_path)
        old = await unused_for(store_url, 31 * DAY) if "sqlite" in store_url else None
        store = await Store.open(store_url, root)
        await store.keep_alive("right", {})
        kept = [await ended(store), *await paused(root, store, *["patient"] * 5)]
        (expired,) = await paused(root, store, "brief")
        options = {"AGENTSD_STORE__URL": store_url, "AGENTSD_STORE__RETENTION": "30d"}
        left = {info.run_id: info.status for info in await store.runs()}
        async with asyncio.timeout(PATIENCE):
            with started(ahead, "serve", "--port", "0", cwd=root, **options):
                while old in left or left[expired] != "cancelled":
                    await asyncio.sleep(0.05)
                    await store.keep_alive("right", {})
                    left = {info.run_id: info.status for info in await store.runs()}
        assert left == {kept[0]: "completed", **dict.fromkeys(kept[1:], "paused"), expired: "cancelled"}
        await store.close()

    asyncio.run(main())


# --- a clock that may be wrong


def test_nothing_is_deleted_after_more_than_a_day_without_an_entry(store_url: str) -> None:
    async def main() -> None:
        old = await unused_for(store_url, 40 * DAY)
        store = await Store.open(store_url, Path("/"))
        before, now = store.now() - 30 * DAY, store.now()
        new = await ended(store)
        assert await store.prune(before, now, dry_run=True) == Pruned(1, 0)
        with pytest.raises(ClockRefused, match=r"40.0 days after the newest entry of the store, .*--trust-clock"):
            await store.prune(before, now)
        assert {info.run_id for info in await store.runs()} == {old, new}
        assert await store.prune(before, now, trust_clock=True) == Pruned(1, 0)
        assert {info.run_id for info in await store.runs()} == {new}
        await store.close()
        again = await Store.open(store_url, Path("/"))
        assert await again.prune(before, now) == Pruned(), "the newest entry is recent now"
        await again.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("newest", "open_for", "is_refused"),
    [
        (None, 0, False),
        (-0.9 * DAY, 0, False),
        (-1.1 * DAY, 0, True),
        (-1.1 * DAY, 0.9 * DAY, True),
        (-1.1 * DAY, 1.1 * DAY, False),
        (1.1 * DAY, 0, True),
        (0.9 * DAY, 0, False),
    ],
)
def test_an_unused_store_is_pruned_a_day_after_it_was_opened(
    newest: float | None, open_for: float, is_refused: bool
) -> None:
    now = time.time()
    opened_at = now - open_for
    check = ClockCheck(opened_at, None if newest is None else opened_at + newest, elapsed() - open_for)
    if is_refused:
        with pytest.raises(ClockRefused):
            check.check(now)
    else:
        check.check(now)
    with pytest.raises(ClockRefused):
        check.check(now + 3 * DAY)


def test_the_command_says_what_to_do_if_the_clock_may_be_wrong(tmp_path: Path) -> None:
    project(tmp_path)
    asyncio.run(unused_for(f"sqlite:///{tmp_path}/.agentsd/state.db", 2 * DAY))
    refused = agentsd("runs", "prune", "--older-than", "1d", cwd=tmp_path)
    assert refused.returncode != 0
    assert "2.0 days after the newest entry of the store" in refused.stderr
    assert "agentsd runs prune --trust-clock" in refused.stderr
    dry = agentsd("runs", "prune", "--older-than", "1d", "--dry-run", cwd=tmp_path)
    assert dry.stdout == "1 run and 0 conversations would be deleted\n"
    done = agentsd("runs", "prune", "--older-than", "1d", "--trust-clock", cwd=tmp_path)
    assert done.stdout == "1 run and 0 conversations deleted\n"
