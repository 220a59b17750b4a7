"""Shared budgets: limits on what many runs use together, and the counters of what they have used."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, field_validator, model_validator

from framework.types.frozen import Frozen

BudgetName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
BudgetLimit = Literal["max_total_tokens", "max_cost_usd"]
BUDGET_LIMITS: tuple[BudgetLimit, ...] = get_args(BudgetLimit)
CounterScope = Literal["day", "month", "tenant", "user", "conversation", "total"]
_PERIODS: Mapping[CounterScope, str] = {"day": "%Y-%m-%d", "month": "%Y-%m"}
"""The format of a period's name."""
_UNITS: Mapping[BudgetLimit, str] = {"max_total_tokens": "tokens", "max_cost_usd": "US dollars"}

CounterKey = tuple[str, str, str]
"""Budget, scope and period of a counter; see `BudgetUse`."""
CounterOwner = tuple[Literal["conversation", "run"], str, str | None, str | None]
"""The conversation or run with which a counter is deleted: its kind and id, and tenant and user of a conversation."""


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class SharedBudget(Frozen):
    """A limit on what all runs of the agents that name this budget use together."""

    max_total_tokens: Annotated[int, Field(gt=0, strict=True)] | None = None
    """Maximum number of input and output tokens."""
    max_cost_usd: Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)] | None = None
    """Maximum cost, in US dollars. Every model that an agent with this budget can call needs a known price."""
    per: Annotated[
        tuple[CounterScope, ...], BeforeValidator(_as_list, json_schema_input_type=CounterScope | list[CounterScope])
    ]
    """What has a limit of its own: each `day` or `month` (in UTC), `tenant`, `user`, `conversation`, or a combination
    such as `[tenant, day]`. `total`: one limit for all runs, which is never reset."""

    @field_validator("per")
    @classmethod
    def _fits_together(cls, value: tuple[CounterScope, ...]) -> tuple[CounterScope, ...]:
        if not value:
            raise ValueError("is empty: write `total` for one limit that is never reset")
        if len(set(value)) > 1 and "total" in value:
            raise ValueError("`total` cannot be combined with anything")
        if {"day", "month"}.issubset(value):
            raise ValueError("`day` and `month` cannot be combined: define two budgets")
        return tuple(dict.fromkeys(value))

    @model_validator(mode="after")
    def _has_limit(self) -> SharedBudget:
        if self.max_total_tokens is None and self.max_cost_usd is None:
            raise ValueError("the budget has no limit: set max_total_tokens, max_cost_usd or both")
        return self

    def limits(self) -> Iterator[tuple[BudgetLimit, float]]:
        """Yield the limits that are set."""
        for key in BUDGET_LIMITS:
            if (limit := getattr(self, key)) is not None:
                yield key, limit

    def narrowed_by(self, other: SharedBudget) -> SharedBudget:
        """Return this budget with the lower limits of both, or unchanged if `other` counts something else."""
        if set(self.per) != set(other.per):
            return self
        given = {key: [limit for limit in (getattr(self, key), getattr(other, key)) if limit] for key in BUDGET_LIMITS}
        return self.model_copy(update={key: min(values, default=None) for key, values in given.items()})

    def describe(self) -> str:
        """Return the limits as text, such as `200000 tokens and 5 US dollars per tenant and day`."""
        amounts = " and ".join(f"{limit:.10g} {_UNITS[key]}" for key, limit in self.limits())
        return f"{amounts} {_per(self.per)}"

    def period(self, now: float) -> str:
        """Return the name of the period at a Unix time, such as `2026-11-22`; empty if the counter is never reset."""
        formats = (text for name, text in _PERIODS.items() if name in self.per)
        return datetime.fromtimestamp(now, UTC).strftime(next(formats, ""))


class BudgetUse(Frozen):
    """Tokens and cost in one counter of a shared budget, or to be added to it."""

    budget: str
    """Name of the budget."""
    scope: str = "{}"
    """JSON object with the tenant, user or conversation that the counter is for."""
    period: str = ""
    """Day or month in UTC, such as `2026-11-22`; empty if the counter is never reset."""
    tokens: int = 0
    cost_usd: float = 0.0

    @property
    def key(self) -> CounterKey:
        """What identifies the counter."""
        return self.budget, self.scope, self.period

    @property
    def resets_at(self) -> datetime | None:
        """When the next period starts; None if the counter is never reset."""
        return period_end(self.period)

    @property
    def owner(self) -> CounterOwner | None:
        """The conversation or run that the counter is for, and is deleted with; None if it is for more than one."""
        kinds: tuple[Literal["conversation", "run"], ...] = ("conversation", "run")
        scope: dict[str, str] = json.loads(self.scope)
        owner = scope if "conversation" in scope else {}
        return next(
            ((kind, scope[kind], owner.get("tenant"), owner.get("user")) for kind in kinds if kind in scope), None
        )

    def of(self, limit: BudgetLimit) -> float:
        """Return how much of a limit is used."""
        return self.tokens if limit == "max_total_tokens" else self.cost_usd

    def plus(self, tokens: int, cost_usd: float) -> BudgetUse:
        """Return the counter with this use added."""
        return self.model_copy(update={"tokens": self.tokens + tokens, "cost_usd": self.cost_usd + cost_usd})


class ReachedBudget(Frozen):
    """The shared budget that stopped a run."""

    name: str
    """Key below `budgets` in agentsd.yaml."""
    limit: BudgetLimit
    """Which of its limits is reached."""
    per: tuple[CounterScope, ...]
    """What the limit applies to."""
    resets_at: datetime | None = None
    """When the next period starts; null if the budget is never reset."""

    def describe(self, used: float, allowed: float) -> str:
        """Return `used` of `allowed` with unit, period and reset, such as `5.1 of 5 US dollars per day, …`."""
        reset = f"resets at {self.resets_at:%Y-%m-%d %H:%M} UTC" if self.resets_at else "never resets"
        return f"{used:.10g} of {allowed:.10g} {_UNITS[self.limit]} {_per(self.per)}, {reset}"


class BudgetStatus(Frozen):
    """One counter of a shared budget next to its limits, as lists show it."""

    budget: str
    """Name of the budget."""
    per: tuple[CounterScope, ...]
    """What each counter covers: a day or month, and a tenant, user or conversation; `total`: everything."""
    scope: dict[str, str | None]
    """Tenant, user or conversation; empty if the counter is for all."""
    tokens: int
    """Input and output tokens used in this period."""
    max_total_tokens: int | None
    """Limit on the tokens; None if there is none."""
    cost_usd: float
    """Cost in this period, in US dollars."""
    max_cost_usd: float | None
    """Limit on the cost; None if there is none."""
    resets_at: datetime | None
    """When the next period starts; None if the budget is never reset."""

    @property
    def share(self) -> float:
        """The largest used share of a limit; 1 or more if the budget is used up."""
        tokens = self.tokens / self.max_total_tokens if self.max_total_tokens else 0.0
        return max(tokens, self.cost_usd / self.max_cost_usd if self.max_cost_usd else 0.0)


def _per(per: Collection[CounterScope]) -> str:
    return "in total" if "total" in per else f"per {' and '.join(per)}"


def counter_scope(
    per: Iterable[CounterScope], *, tenant: str | None, user: str | None, conversation: str | None, run_id: str
) -> str:
    """Return the scope of a run's counter. A run outside a conversation counts as a conversation of its own.

    Users belong to a tenant, and conversations to a tenant and user: equal names or ids of two have two counters.
    """
    scope: dict[str, str | None] = {}
    if "conversation" in per:
        scope |= {"run": run_id} if conversation is None else {"conversation": conversation}
        owner = {"tenant": tenant, "user": user} if conversation is not None else {}
        scope |= {name: value for name, value in owner.items() if value is not None}
    if "tenant" in per or "user" in per:
        scope["tenant"] = tenant
    if "user" in per:
        scope["user"] = user
    return json.dumps(scope, ensure_ascii=False, sort_keys=True)


def period_end(period: str) -> datetime | None:
    """Return when a day or month ends; None for an empty period."""
    match period.split("-"):
        case [year, month, day]:
            return datetime(int(year), int(month), int(day), tzinfo=UTC) + timedelta(days=1)
        case [year, month]:
            following = int(year) * 12 + int(month)
            return datetime(following // 12, following % 12 + 1, 1, tzinfo=UTC)
    return None


def budget_statuses(
    budgets: Mapping[str, SharedBudget], counters: Iterable[BudgetUse], now: float
) -> tuple[BudgetStatus, ...]:
    """Return the counters of the current periods, those with the largest used share first.

    Args:
        budgets: the definitions, by name.
        counters: all counters of the store; those of other definitions and of ended periods are left out.
        now: Unix time.
    """
    found = {name: list[BudgetUse]() for name in budgets}
    for use in counters:
        if use.budget in budgets and _counts_for(budgets[use.budget], use, now):
            found[use.budget].append(use)
    empty = {name: BudgetUse(budget=name, period=budget.period(now)) for name, budget in budgets.items()}
    statuses = [_status(budgets[name], use) for name, uses in found.items() for use in uses or [empty[name]]]
    return tuple(sorted(statuses, key=lambda status: (-status.share, status.budget, sorted(status.scope.items()))))


def _counts_for(budget: SharedBudget, use: BudgetUse, now: float) -> bool:
    scope = json.loads(use.scope)
    samples = (
        counter_scope(budget.per, tenant=tenant, user=user, conversation=conversation, run_id="")
        for tenant in (None, "")
        for user in (None, "")
        for conversation in (None, "")
    )
    return use.period == budget.period(now) and any(scope.keys() == json.loads(sample).keys() for sample in samples)


def _status(budget: SharedBudget, use: BudgetUse) -> BudgetStatus:
    limits = {key: getattr(budget, key) for key in BUDGET_LIMITS}
    return BudgetStatus(
        budget=use.budget,
        per=budget.per,
        scope=json.loads(use.scope),
        tokens=use.tokens,
        cost_usd=use.cost_usd,
        resets_at=use.resets_at,
        **limits,
    )


_AT_MOST = re.compile(r"([1-9][0-9]{0,5})/(minute|hour|day|week|month)")
_AT_MOST_EXPECTED = "write a number and a period, such as 10/day; periods: minute, hour, day, week, month (in UTC)"


@dataclass(frozen=True, slots=True)
class CallRate:
    """A number of calls in each calendar minute, hour, day, week or month, in UTC."""

    count: int
    per: str

    @classmethod
    def parse(cls, text: str) -> CallRate:
        """Parse a rate such as `10/day`; raise ValueError if it is invalid."""
        match = _AT_MOST.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"invalid rate {text!r:.40}: {_AT_MOST_EXPECTED}")
        return cls(int(match[1]), match[2])

    def period(self, now: float) -> tuple[str, float]:
        """Return the name of the period at a Unix time, and the Unix time at which it ends."""
        at = datetime.fromtimestamp(now, UTC).replace(second=0, microsecond=0)
        if self.per == "minute":
            start, end = at, at + timedelta(minutes=1)
        elif self.per == "hour":
            start = at.replace(minute=0)
            end = start + timedelta(hours=1)
        else:
            start = at.replace(minute=0, hour=0)
            if self.per == "week":
                start -= timedelta(days=start.weekday())
            if self.per == "month":
                start = start.replace(day=1)
            days = {"day": 1, "week": 7, "month": 32}[self.per]
            end = start + timedelta(days=days)
            end = end.replace(day=1) if self.per == "month" else end
        return f"{self.per} {start:%Y-%m-%dT%H:%M}", end.timestamp()


def _check_rate(text: str) -> str:
    rate = CallRate.parse(text)
    return f"{rate.count}/{rate.per}"


AtMost = Annotated[str, StringConstraints(max_length=40), AfterValidator(_check_rate)]
"""A number of calls per period, such as `10/day`, counted over all processes of a store."""
