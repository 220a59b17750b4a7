"""`agentsd budgets`, and how `run`, `check` and `explain` show shared budgets."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.commands import agentsd
from tests.support.projects import agent, write

SETTINGS = """
    budgets:
      free: {max_total_tokens: 60, per: [tenant, day]}
      team: {max_cost_usd: 5, per: month}
    """


def project(root: Path, settings: str = SETTINGS, **keys: str) -> Path:
    one = agent(
        "one", **{"model": "offline", "skill_policy": "{allow: [calculator]}", "budgets": "[free, team]", **keys}
    )
    return write(root, {"agents.d/one.yaml": one, "agentsd.yaml": settings})


def test_a_run_that_a_budget_stops_names_it_with_file_and_line(tmp_path: Path) -> None:
    project(tmp_path)
    before = datetime.now(UTC)
    done = agentsd("run", "what is 12 * 7?", cwd=tmp_path)
    ends = {f"{at + timedelta(days=1):%Y-%m-%d} 00:00 UTC" for at in (before, datetime.now(UTC))}
    assert done.returncode == 1
    expected = "tokens per tenant and day, resets at {} (set at agentsd.yaml:2)"
    assert any(expected.format(day) in done.stderr for day in ends)
    assert "stopped after 1 step: budget free reached: " in done.stderr
    assert "! budget free: " in done.stderr
    shown = agentsd("runs", "show", "last", cwd=tmp_path)
    assert "(set at agentsd.yaml:2)" in shown.stdout + shown.stderr
    stop = json.loads(agentsd("run", "--json", "hi", cwd=tmp_path).stdout)["stopped_by"]
    assert (stop["limit"], stop["budget"]["name"], stop["place"]) == ("budget", "free", "agentsd.yaml:2")


def test_used_budgets_are_listed_with_their_share(tmp_path: Path) -> None:
    project(tmp_path)
    agentsd("run", "hi", cwd=tmp_path)
    listed = agentsd("budgets", cwd=tmp_path)
    free, team = listed.stdout.splitlines()
    assert (free.split()[0], team.split()[0]) == ("free", "team")
    assert "no tenant" in free
    assert " of 60 tokens" in free
    assert "$0.00 of $5.00" in team
    data = json.loads(agentsd("budgets", "--json", "free", cwd=tmp_path).stdout)
    assert [(one["budget"], one["scope"], one["max_total_tokens"]) for one in data] == [("free", {"tenant": None}, 60)]
    assert data[0]["resets_at"].endswith("T00:00:00Z")
    assert agentsd("budgets", "-n", "1", cwd=tmp_path).stdout.splitlines()[1:] == ["and 1 more: use --limit"]


@pytest.mark.parametrize(
    ("settings", "arguments", "code", "text"),
    [
        ("version: 1", [], 0, "agentsd.yaml defines no budgets"),
        (SETTINGS, ["temm"], 2, "there is no budget 'temm'; did you mean team?"),
        ("budgets: {team: {per: day}}", [], 78, "the budget has no limit"),
    ],
)
def test_what_cannot_be_listed_is_explained(
    tmp_path: Path, settings: str, arguments: list[str], code: int, text: str
) -> None:
    done = agentsd("budgets", *arguments, cwd=project(tmp_path, settings))
    assert done.returncode == code
    assert text in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"budgets": "[teem]"}, "agents.d/one.yaml:7:11: there is no budget 'teem'; did you mean team?"),
        ({"budgets": "team"}, "agents.d/one.yaml:7:10: must be a list"),
        (
            {"model": "openai/gpt-9-unheard-of"},
            "agents.d/one.yaml:7:17: max_cost_usd of budget team (agentsd.yaml:3) cannot be enforced: the price of "
            "openai/gpt-9-unheard-of is unknown (model)",
        ),
        (
            {"model": "openai/gpt-9-unheard-of", "runtime_policy": "{max_cost_usd: 1, cost: unknown_ok}"},
            "max_cost_usd of budget team (agentsd.yaml:3) cannot be enforced",
        ),
    ],
)
def test_check_reports_problems_at_the_line_of_the_agent(tmp_path: Path, keys: dict[str, str], message: str) -> None:
    checked = agentsd("check", cwd=project(tmp_path, **keys))
    assert checked.returncode == 78
    assert message in checked.stdout + checked.stderr


def test_explain_lists_the_budgets_of_an_agent(tmp_path: Path) -> None:
    project(tmp_path)
    shown = agentsd("explain", "one", cwd=tmp_path).stdout
    assert "shared budgets\n  free: 60 tokens per tenant and day (agentsd.yaml:2)\n" in shown
    assert "  team: 5 US dollars per month (agentsd.yaml:3)\n" in shown
    data = json.loads(agentsd("explain", "one", "--json", cwd=tmp_path).stdout)
    assert [budget["name"] for budget in data["budgets"]] == ["free", "team"]


def test_cases_and_replays_use_no_budget_and_are_not_stopped(tmp_path: Path) -> None:
    project(tmp_path)
    case = "version: 1\ncases: [{name: adds, message: what is 1 + 1?, expect: {status: completed}}]\n"
    write(tmp_path, {"agents.d/one.test.yaml": case})
    stopped = agentsd("run", "what is 12 * 7?", cwd=tmp_path)
    before = agentsd("budgets", "--json", cwd=tmp_path).stdout
    assert stopped.returncode == 1
    for _ in range(2):
        tested = agentsd("test", cwd=tmp_path)
        assert tested.returncode == 0, tested.stdout + tested.stderr
        replayed = agentsd("runs", "replay", "last", cwd=tmp_path)
        assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert agentsd("budgets", "--json", cwd=tmp_path).stdout == before
