"""The numbered groups of hostile cases. Each has at least one test with its number.

Expected everywhere: what is hostile is refused or does nothing, that is on record, and the agent goes on.
"""

from __future__ import annotations

import re

import pytest

from tests.support.paths import TESTS

GROUPS = {
    1: "arguments that nobody declared",
    2: "values of another type, and what is not JSON",
    3: "very long, very wide and very deep arguments and results",
    4: "arguments that two readers would read differently",
    5: "names that look like a tool's",
    6: "denied tools, by every door: a call, a plan, a sub-agent, another name, no model at all",
    7: "approvals: for what was shown, for that alone, once",
    8: "schemas of tool servers that fetch, never end or are slow",
    9: "text that wants to be a command or an option of a program",
    10: "secrets in arguments, results, errors, settings, files: in no log and no span",
    11: "paths that lead out, in any spelling",
    12: "names with characters that cannot be seen",
    13: "links, also when they come between two steps",
    14: "hard links, pipes, devices, hidden files",
    15: "huge files and folders, patterns made to be slow",
    16: "writing what decides what runs",
    17: "files that are read while they are written",
    18: "archives",
    19: "loopback, in any spelling",
    20: "metadata services, private and tunnelled addresses",
    21: "names that lead to private addresses, at once or the second time",
    22: "redirects to private addresses, other ports, and in a loop",
    23: "addresses that two readers would read differently",
    24: "answers that are huge, packed, slow or all headers",
    25: "line ends and other requests in headers",
    26: "secrets that would follow a redirect",
    27: "answers that pretend to be instructions or results",
    28: "templates and instructions in text of users, tools and agents",
    29: "templates that never end or get too large",
    30: "YAML made to do harm, paths and names in it that lead elsewhere",
    31: "plugins that break, never end, or want to be another module",
    32: "text that is nearly an action: cut, doubled, wrapped in prose, quoted",
    33: "answers that are two things at once, or none",
    34: "calls that came in half",
    35: "no end: the same call, many calls, plans that cannot be, budgets that run out",
    36: "tools of servers that say something else than when they were accepted",
    37: "servers that die, hang, print garbage, storm or ask back",
}
ELSEWHERE = {
    **dict.fromkeys(range(38, 44), "the HTTP API: there is none yet"),
}
"""Groups of the list that no test here stands for, and why."""


IDS = re.compile(r"test_(llm(0[1-9]|10)|asi(0[1-9]|10))_")


def shown() -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        for number in re.findall(r"mark\.hostile\((\d+)\)", path.read_text("utf-8")):
            found.setdefault(int(number), []).append(path.name)
    return found


@pytest.mark.parametrize("number", GROUPS, ids=lambda number: f"{number}: {GROUPS[number]}")
def test_each_group_has_a_test(number: int) -> None:
    assert shown().get(number), f"no test carries @pytest.mark.hostile({number})"


def test_the_list_is_complete_and_no_test_has_another_number() -> None:
    assert GROUPS.keys() | ELSEWHERE.keys() == set(range(1, 44))
    assert not GROUPS.keys() & ELSEWHERE.keys()
    assert shown().keys() <= GROUPS.keys() | ELSEWHERE.keys()


def test_hostile_cases_are_named_after_their_risk() -> None:
    """By OWASP: `llm01` to `llm10` of the Top 10 for LLMs 2025, `asi01` to `asi10` of that for agents 2026."""
    names = [
        name
        for path in (TESTS / "hostile").glob("test_*.py")
        if path.name != "test_groups.py"
        for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
    ]
    assert len(names) > 30
    assert [name for name in names if not IDS.match(name)] == []
