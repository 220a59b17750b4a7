"""The ledger of a run admits no call on a counter that misses what a call of the same run has just used."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

import pytest

from framework.config.agents.models import DefinedBudget
from framework.engine.context.policy import BudgetLedger, ExpectedUse
from framework.store.memory import MemoryStore
from framework.types.budget import BudgetUse, CounterKey, SharedBudget
from framework.types.errors import ConfigError, LimitExceeded
from framework.types.messages import Usage
from framework.types.state import RunState

TEAM = DefinedBudget("team", SharedBudget(max_cost_usd=1, per=("total",)), {"max_cost_usd": "agentsd.yaml:1"})
EXPECTED = ExpectedUse(0, {"max_total_tokens": 10, "max_cost_usd": 0.1})


class SlowStore(MemoryStore):
    """A store whose reads return, on request, what they have read before."""

    def __init__(self) -> None:
        super().__init__()
        self.answered = asyncio.Event()
        self.answered.set()
        self.reading = asyncio.Event()

    async def budget_uses(self, keys: Collection[CounterKey] | None = None) -> Sequence[BudgetUse]:
        """Read the counters, and return them later."""
        uses = await super().budget_uses(keys)
        self.reading.set()
        await self.answered.wait()
        return uses


def test_a_counter_that_was_read_before_another_call_ended_is_read_again() -> None:
    async def main() -> None:
        store, root = SlowStore(), RunState(agent="one")
        ledger = BudgetLedger(root, store, lambda: ({"team": TEAM}, {}))
        await ledger.admit(("a",), ["team"], EXPECTED)
        store.answered.clear()
        store.reading.clear()
        second = asyncio.create_task(ledger.admit(("b",), ["team"], EXPECTED))
        await store.reading.wait()
        assert ledger.count(("a",), Usage(total_tokens=1, cost_usd=1.0))
        await store.count_use(root.uncounted)
        ledger.release(("a",))
        store.answered.set()
        with pytest.raises(LimitExceeded):
            await second

    asyncio.run(main())


def test_a_call_that_waits_for_another_one_is_admitted_when_that_is_cancelled() -> None:
    async def main() -> None:
        ledger = BudgetLedger(RunState(agent="one"), MemoryStore(), lambda: ({"team": TEAM}, {}))
        whole = ExpectedUse(0, {"max_total_tokens": 10, "max_cost_usd": 1.0})
        await ledger.admit(("a",), ["team"], whole)
        second = asyncio.create_task(ledger.admit(("b",), ["team"], whole))
        await asyncio.sleep(0)
        assert not second.done()
        ledger.release(("a",))
        await second
        assert ledger.calls.keys() == {("b",)}

    asyncio.run(main())


def test_a_budget_that_nothing_defines_is_an_error() -> None:
    async def main() -> None:
        ledger = BudgetLedger(RunState(agent="one"), MemoryStore(), lambda: ({}, {}))
        with pytest.raises(ConfigError, match="there is no budget 'team' any longer: define it under `budgets`"):
            await ledger.admit((), ["team"], EXPECTED)

    asyncio.run(main())


def test_a_run_makes_one_call_at_a_time_also_if_its_executor_makes_several_at_once() -> None:
    async def main() -> None:
        store, root = MemoryStore(), RunState(agent="one")
        ledger = BudgetLedger(root, store, lambda: ({"team": TEAM}, {}))
        await ledger.admit((), ["team"], EXPECTED)
        second = asyncio.create_task(ledger.admit((), ["team"], EXPECTED))
        for cost in (0.1, 0.2):
            await asyncio.sleep(0)
            assert second.done() == (cost == 0.2)
            assert ledger.count((), Usage(total_tokens=1, cost_usd=cost))
            ledger.release(())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert sum(use.cost_usd for use in root.uncounted) == pytest.approx(0.3)

    asyncio.run(main())


def test_two_calls_that_wait_for_their_next_attempt_do_not_wait_for_each_other() -> None:
    async def main() -> None:
        ledger = BudgetLedger(RunState(agent="one"), MemoryStore(), lambda: ({"team": TEAM}, {}))
        half = ExpectedUse(0, {"max_total_tokens": 10, "max_cost_usd": 0.5})
        for path in ("a", "b"):
            await ledger.admit((path,), ["team"], half)
            ledger.count((path,), Usage(total_tokens=1, cost_usd=0.3))
        await ledger.store.count_use(ledger.root.uncounted)
        retries = {path: asyncio.create_task(ledger.readmit((path,))) for path in ("a", "b")}
        await asyncio.wait(retries.values(), return_when=asyncio.FIRST_COMPLETED)
        (first,) = (path for path, retry in retries.items() if retry.done())
        ledger.release((first,))
        await asyncio.wait(retries.values())

    asyncio.run(main())
