"""The ledger of a run: admits its model calls under the shared budgets, and counts what they use.

Counters are in the store, where all runs share them. Use is added in the transaction that saves the run's own usage,
so that a crash loses neither or both. A call is checked against the stored counters just before it is sent: concurrent
runs can overdraw a budget by one call each. Calls of one run that are made in parallel are admitted only as far as
they certainly fit; otherwise one waits for the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from framework.config.agents.budgets import Budgets, DefinedBudget
from framework.config.overlay import SETTINGS_FILE
from framework.store.protocol import Store
from framework.types.budget import BudgetLimit, BudgetUse, CounterKey, ReachedBudget, counter_scope, period_end
from framework.types.errors import ConfigError, LimitExceeded
from framework.types.messages import Usage
from framework.types.state import RunState

_WARNING_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class ExpectedUse:
    """What a model call will use: an estimate of its request, and the most that it can use."""

    tokens: int
    """Tokens of the request; 0 if unknown."""
    most: Mapping[BudgetLimit, float]
    """Upper bounds, by limit; infinite if unknown."""


@dataclass(slots=True)
class AdmittedCall:
    """A model call in progress."""

    names: Collection[str]
    """Names of the budgets that pay for it."""
    expected: ExpectedUse
    budgets: tuple[tuple[DefinedBudget, CounterKey], ...] = ()
    """The budgets that pay for its current attempt, each with its counter."""
    counters: dict[CounterKey, BudgetUse] = field(default_factory=dict)
    """The counters when the attempt was admitted, plus what it has used since."""
    is_sent: bool = False
    """Whether an attempt is in progress; otherwise the call waits for the next one."""


@dataclass(slots=True)
class BudgetLedger:
    """The shared budgets of one root run and its sub-runs."""

    root: RunState
    store: Store
    definitions: Callable[[], tuple[Budgets, Budgets]]
    """Returns the budgets of the run's generation and of the live one. Both apply."""
    clock: Callable[[], float] | None = None
    """Returns Unix time; by default that of the store. It decides in which day or month a call counts."""
    calls: dict[tuple[str, ...], AdmittedCall] = field(default_factory=dict)
    """Calls in progress that shared budgets pay for, by path of the run or sub-run: one call for each."""
    _released: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced, when an attempt ends."""

    def cost_limit(self, path: tuple[str, ...]) -> str | None:
        """Return the place of a cost limit of the call in progress; None without one."""
        call = self.calls.get(path)
        places = (one.places.get("max_cost_usd") for one, _ in call.budgets) if call else iter(())
        return next((place for place in places if place), None)

    async def admit(self, path: tuple[str, ...], names: Collection[str], expected: ExpectedUse) -> None:
        """Wait until a model call may be sent.

        Args:
            path: path of the run or sub-run that makes the call.
            names: the budgets that pay for it.
            expected: what the call will use.

        Raises:
            LimitExceeded: a budget is used up, or what remains is too little for the request.
            ConfigError: a budget is not defined.
            StoreError: the counters cannot be read.
        """
        await self._admit(path, AdmittedCall(names, expected))

    async def readmit(self, path: tuple[str, ...]) -> None:
        """Wait until another attempt at the call in progress may be sent; raises like `admit`."""
        if (call := self.calls.get(path)) is not None:
            call.is_sent = False
            self._report_end()
            await self._admit(path, call)

    def count(self, path: tuple[str, ...], usage: Usage) -> bool:
        """Count usage of the call in progress, for the run's next write. Return False if no budget pays for it."""
        call = self.calls.get(path)
        if call is None:
            return False
        for key, use in call.counters.items():
            call.counters[key] = use.plus(usage.total_tokens, usage.cost_usd or 0.0)
        self._add(call.counters, usage)
        return True

    def count_earlier(self, names: Iterable[str], usage: Usage) -> None:
        """Count usage from before the run began, such as the choice of its agent."""
        self._add(dict.fromkeys(key for _, key in self._in_force(names)), usage)

    def release(self, path: tuple[str, ...]) -> None:
        """End the call in progress of a run or sub-run, if there is one."""
        if self.calls.pop(path, None) is not None:
            self._report_end()

    def new_warnings(self, path: tuple[str, ...]) -> Iterator[str]:
        """Yield a message for each budget of the call in progress of which 80 % are used, once per run."""
        call = self.calls.get(path)
        for one, key in call.budgets if call else ():
            mark = f"budget {one.name}"
            for limit, allowed in one.budget.limits():
                used = call.counters[key].of(limit) if call else 0
                if used >= _WARNING_SHARE * allowed and mark not in self.root.warned:
                    self.root.warned.append(mark)
                    yield f"{mark}: {_reached(one, key, limit).describe(used, allowed)} ({one.places[limit]})"

    # --- inside

    async def _admit(self, path: tuple[str, ...], call: AdmittedCall) -> None:
        call.budgets = self._in_force(call.names)
        empty = {key: BudgetUse(budget=key[0], scope=key[1], period=key[2]) for _, key in call.budgets}
        while True:
            released = self._released
            stored = {use.key: use for use in await self.store.budget_uses(empty.keys())}
            if released.is_set():  # an attempt of this run ended meanwhile, and what it used may be missing
                continue
            call.counters = empty | stored
            _check(call)
            if self.calls.get(path, call) is call and self._fits(call):
                break
            await released.wait()
        self.calls[path], call.is_sent = call, True

    def _in_force(self, names: Iterable[str]) -> tuple[tuple[DefinedBudget, CounterKey], ...]:
        """Return the definitions of budgets, with their counters. An edit during a run can add a stricter one."""
        pinned, live = self.definitions()
        found: list[DefinedBudget] = []
        for name in names:
            known = [budgets[name] for budgets in (pinned, live) if name in budgets]
            if not known:
                raise ConfigError(
                    f"there is no budget {name!r} any longer: define it under `budgets` in {SETTINGS_FILE}"
                )
            found += known[:1] if known[0] == known[-1] else known
        return tuple((one, self._key(one)) for one in found)

    def _key(self, one: DefinedBudget) -> CounterKey:
        root, budget = self.root, one.budget
        scope = counter_scope(
            budget.per, tenant=root.tenant, user=root.user, conversation=root.conversation_id, run_id=root.run_id
        )
        return one.name, scope, budget.period((self.clock or self.store.now)())

    def _fits(self, call: AdmittedCall) -> bool:
        """Return whether a call fits next to the attempts in progress that share its counters, whatever they use."""
        for one, key in call.budgets:
            sent = [other for other in self.calls.values() if other.is_sent and other is not call]
            others = [other.expected for other in sent if key in other.counters]
            for limit, allowed in one.budget.limits():
                most = sum(expected.most[limit] for expected in (*others, call.expected))
                if others and call.counters[key].of(limit) + most > allowed:
                    return False
        return True

    def _report_end(self) -> None:
        """Wake the calls that wait for the end of an attempt."""
        self._released.set()
        self._released = asyncio.Event()

    def _add(self, keys: Iterable[CounterKey], usage: Usage) -> None:
        self.root.uncounted += [
            BudgetUse(
                budget=key[0],
                scope=key[1],
                period=key[2],
                tokens=usage.total_tokens,
                cost_usd=usage.cost_usd or 0.0,
            )
            for key in keys
        ]


def _check(call: AdmittedCall) -> None:
    """Raise LimitExceeded if a budget is used up, or what remains is too little for the request."""
    for one, key in call.budgets:
        for limit, allowed in one.budget.limits():
            used = call.counters[key].of(limit)
            needed = call.expected.tokens if limit == "max_total_tokens" else 0
            if used >= allowed or used + needed > allowed:
                place, reached = one.places[limit], _reached(one, key, limit)
                raise LimitExceeded("budget", used=used + needed, allowed=allowed, place=place, budget=reached)


def _reached(one: DefinedBudget, key: CounterKey, limit: BudgetLimit) -> ReachedBudget:
    return ReachedBudget(name=one.name, limit=limit, per=one.budget.per, resets_at=period_end(key[2]))
