"""Shared budgets as data: which values are valid, periods, scopes, and texts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.config.overlay import SettingsSource
from framework.config.settings import Settings
from framework.types.budget import BudgetUse, SharedBudget, budget_statuses, counter_scope, period_end
from framework.types.errors import ConfigError
from tests.support.cases import cases

TIMES = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))


def budget(**keys: object) -> SharedBudget:
    return SharedBudget.model_validate({"max_cost_usd": 5, "per": "day", **keys})


@pytest.mark.parametrize(
    ("keys", "problem", "hint"),
    [
        ("per: day", "the budget has no limit: set max_total_tokens, max_cost_usd or both", None),
        ("max_cost_usd: 0, per: day", "must be greater than 0", None),
        ("max_cost_usd: -0.5, per: day", "must be greater than 0", None),
        ("max_cost_usd: .nan, per: day", "a number must be finite", None),
        ("max_cost_usd: .inf, per: day", "a number must be finite", None),
        ("max_cost_usd: true, per: day", "must be a number", None),
        ("max_total_tokens: 1.5, per: day", "must be a whole number", None),
        ("max_total_tokens: -1, per: day", "must be greater than 0", None),
        ("max_cost_usd: 5", "the key 'per' is missing", "write what has a limit of its own, such as `per: day`"),
        ("max_cost_usd: 5, per: dya", "must be 'day', 'month', 'tenant', 'user', 'conversation' or 'total'", "'day'"),
        ("max_cost_usd: 5, per: []", "is empty: write `total` for one limit that is never reset", None),
        ("max_cost_usd: 5, per: [total, tenant]", "`total` cannot be combined with anything", None),
        ("max_cost_usd: 5, per: [day, month]", "`day` and `month` cannot be combined: define two budgets", None),
        ("max_cost: 5, per: day", "unknown key 'max_cost'", "did you mean 'max_cost_usd'?"),
    ],
)
def test_each_bad_value_is_a_problem_at_its_place(keys: str, problem: str, hint: str | None) -> None:
    with pytest.raises(ConfigError) as error:
        Settings.parse(SettingsSource(f"budgets:\n  team: {{{keys}}}\n".encode()))
    (found,) = error.value.problems
    assert (found.path, found.line, found.message) == ("agentsd.yaml", 2, problem)
    assert (hint or "") in (found.hint or "")
    assert found.excerpt, "no key of a budget looks like a secret"


def test_budgets_can_be_set_by_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTSD_BUDGETS", '{"team": {"max_total_tokens": 10, "per": ["tenant", "day", "tenant"]}}')
    assert Settings().budgets["team"].per == ("tenant", "day")


@cases(50)
@given(TIMES, st.sampled_from([("day",), ("month",), ("tenant", "day")]))
def test_a_period_contains_its_moment_and_ends_when_the_next_one_begins(moment: datetime, per: tuple[str, ...]) -> None:
    one = budget(per=per)
    period = one.period(moment.timestamp())
    end = period_end(period)
    assert end is not None
    assert moment < end
    assert one.period(end.timestamp()) != period
    assert one.period((end - timedelta(seconds=1)).timestamp()) == period
    assert end - moment <= timedelta(days=31 if "month" in per else 1)


def test_scopes_are_distinct() -> None:
    def scope(*per: str, tenant: str | None = None, user: str | None = None, conversation: str | None = None) -> str:
        one = budget(per=per)
        return counter_scope(one.per, tenant=tenant, user=user, conversation=conversation, run_id="run_1")

    found = [
        scope("total"),
        scope("tenant"),
        scope("tenant", tenant="null"),
        scope("tenant", tenant='a", "user": "b'),
        scope("user", tenant="a", user="b"),
        scope("user", tenant="b", user="b"),
        scope("conversation"),
        scope("conversation", conversation="run_1"),
    ]
    assert len(set(found)) == len(found)
    assert scope("day") == scope("total") == "{}"


def test_only_counters_of_the_definition_and_the_current_period_are_listed() -> None:
    now = datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp()
    budgets = {"team": budget(per="tenant"), "free": SharedBudget(max_total_tokens=10, per=("day",))}
    counters = [
        BudgetUse(budget="team", scope='{"tenant": "a"}', cost_usd=1),
        BudgetUse(budget="team", scope='{"tenant": "b"}', cost_usd=10),
        BudgetUse(budget="team", scope="{}", period="2026-11-22", cost_usd=3),
        BudgetUse(budget="free", period="2026-11-21", tokens=9),
        BudgetUse(budget="old", tokens=9),
    ]
    found = budget_statuses(budgets, counters, now)
    assert [(one.budget, one.scope, one.share) for one in found] == [
        ("team", {"tenant": "b"}, 2.0),
        ("team", {"tenant": "a"}, 0.2),
        ("free", {}, 0.0),
    ]
    assert found[2].resets_at == datetime(2026, 11, 23, tzinfo=UTC)


def test_the_stricter_of_two_definitions_is_kept_unless_they_count_something_else() -> None:
    wide, strict = budget(), SharedBudget(max_cost_usd=1, max_total_tokens=5, per=("day",))
    assert wide.narrowed_by(strict) == strict.narrowed_by(wide) == strict
    assert wide.narrowed_by(budget(max_cost_usd=1, per="tenant")) == wide


def test_a_budget_is_described_in_one_line() -> None:
    both = SharedBudget(max_cost_usd=0.5, max_total_tokens=200_000, per=("tenant", "day"))
    assert both.describe() == "200000 tokens and 0.5 US dollars per tenant and day"
    assert budget(per="total").describe() == "5 US dollars in total"
