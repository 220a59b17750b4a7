"""What a run has used of its limits. A sub-run spends its own budget and its callers' too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from framework.config.agents.compile import Agent
from framework.types.errors import LimitExceeded
from framework.types.messages import Usage
from framework.types.spec import Limits
from framework.types.state import RunState
from framework.types.warnings import WarningCode

_WARNING_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Budget:
    """Counts in the run's state, so that a pause or a crash forgets nothing."""

    state: RunState
    agent: Agent
    """The version the run is pinned to."""
    current: Callable[[str], Agent | None]
    """The version that is live now: a limit that it tightens holds at once."""
    parent: Budget | None = None

    @property
    def limits(self) -> Limits:
        """The limits in force."""
        live = self.current(self.agent.name)
        if live is None or live is self.agent:
            return self.state.limits
        return with_lowered_limits(self.state.limits, self.agent.spec.runtime_policy, live.spec.runtime_policy)

    @property
    def cost_limit(self) -> str | None:
        """Where the first cost limit in force is set; None without one."""
        for budget in self._chain():
            if budget.limits.max_cost_usd is not None:
                return budget._place("max_cost_usd")
        return None

    def check_steps(self) -> None:
        """Before a model call; raises LimitExceeded for what is already used up."""
        for budget in self._chain():
            limits = budget.limits
            budget._check("max_steps", budget.state.steps, limits.max_steps)
            budget._check_spent(limits)

    def spend_step(self) -> None:
        """Count a model call; raises LimitExceeded for what is already used up."""
        self.check_steps()
        for budget in self._chain():
            budget.state.steps += 1

    def check_tokens(self, expected: int) -> None:
        """Before a model call of about so many input tokens; raises LimitExceeded if they are more than are left."""
        for budget in self._chain():
            limit, used = budget.limits.max_total_tokens, budget.state.usage.total_tokens
            if limit is not None and used + expected > limit:
                raise budget._exceeded("max_total_tokens", used + expected, limit)

    def check_spent(self) -> None:
        """Before any attempt at a model call; raises LimitExceeded if tokens or dollars are used up."""
        for budget in self._chain():
            budget._check_spent(budget.limits)

    def spend_tokens(self, usage: Usage) -> None:
        """After a model call."""
        for budget in self._chain():
            budget.state.usage = budget.state.usage + usage

    def reserve_call(self) -> bool:
        """Before a tool call: is there room for it?"""
        for budget in self._chain():
            limit = budget.limits.max_tool_calls
            if limit is not None and budget.state.tool_calls >= limit:
                return False
        for budget in self._chain():
            budget.state.tool_calls += 1
        return True

    def calls_exhausted(self) -> LimitExceeded:
        """The error for a turn none of whose calls fits any more."""
        used_up = next(b for b in self._chain() if b.state.tool_calls >= (b.limits.max_tool_calls or float("inf")))
        return used_up._exceeded("max_tool_calls", used_up.state.tool_calls, used_up.limits.max_tool_calls or 0)

    def spend_repeat(self, key: str) -> int:
        """Count a call with these arguments; raises LimitExceeded when it has been made too often."""
        count = self.state.call_counts.get(key, 0) + 1
        limit = self.limits.max_repeated_calls
        if limit is not None and count > limit:
            raise self._exceeded("max_repeated_calls", count, limit)
        self.state.call_counts[key] = count
        return count

    def spend_correction(self) -> None:
        """Count a turn with a wrong call; raises LimitExceeded when there were too many in a row."""
        if self.state.corrections >= self.limits.max_corrections:
            raise self._exceeded("max_corrections", self.state.corrections + 1, self.limits.max_corrections)
        self.state.corrections += 1

    def time_left(self) -> float | None:
        """Seconds of active time; none without a limit."""
        limit = self.limits.timeout
        return None if limit is None else max(0.0, limit - self.state.elapsed_ms / 1000)

    def timeout_error(self) -> LimitExceeded:
        """The error for a run whose time is up."""
        return self._exceeded("timeout", self.limits.timeout or 0, self.limits.timeout or 0)

    def new_warnings(self) -> Iterator[tuple[WarningCode, str]]:
        """Limits of which 80 % are used, each named once in a run: code and message."""
        state, limits = self.state, self.limits
        uses: dict[WarningCode, tuple[float, float | None]] = {
            "max_steps": (state.steps, limits.max_steps),
            "max_tool_calls": (state.tool_calls, limits.max_tool_calls),
            "max_total_tokens": (state.usage.total_tokens, limits.max_total_tokens),
            "max_cost_usd": (state.usage.cost_usd, limits.max_cost_usd),
        }
        for name, (used, limit) in uses.items():
            if limit is not None and used >= _WARNING_SHARE * limit and name not in state.warned:
                state.warned.append(name)
                yield name, f"{used:.10g} of {name} {limit:.10g} used"

    def _check_spent(self, limits: Limits) -> None:
        usage = self.state.usage
        self._check("max_total_tokens", usage.total_tokens, limits.max_total_tokens)
        self._check("max_cost_usd", usage.cost_usd, limits.max_cost_usd)

    def _check(self, limit: str, used: float, allowed: float | None) -> None:
        if allowed is not None and used >= allowed:
            raise self._exceeded(limit, used, allowed)

    def _exceeded(self, limit: str, used: float, allowed: float) -> LimitExceeded:
        return LimitExceeded(limit, used=used, allowed=allowed, place=self._place(limit))

    def _place(self, limit: str) -> str:
        for agent in (self.agent, self.current(self.agent.name)):
            if agent and getattr(self.limits, limit) == getattr(agent.spec.runtime_policy, limit):
                return agent.place("runtime_policy", limit)
        return f"limits.{limit} of the request"

    def _chain(self) -> Iterator[Budget]:
        budget: Budget | None = self
        while budget is not None:
            yield budget
            budget = budget.parent


def with_lowered_limits(own: Limits, pinned: Limits, live: Limits) -> Limits:
    """A run's own limits, with those lowered that the live file has lowered since the version the run is pinned to."""
    lower = {}
    for name in Limits.model_fields:
        now = getattr(live, name)
        if _less(now, getattr(pinned, name)) and _less(now, getattr(own, name)):
            lower[name] = now
    return own.model_copy(update=lower) if lower else own


def _less(one: float | None, other: float | None) -> bool:
    """Is the first the smaller limit? None is no limit."""
    return one is not None and (other is None or one < other)
