"""The numbered groups of hostile cases. Each has at least one test with its number.

Expected in each: hostile input is refused or has no effect, this is recorded, and the agent continues.
"""

from __future__ import annotations

import re

import pytest

from tests.support.paths import TESTS

GROUPS = {
    1: "undeclared arguments",
    2: "values of another type, and arguments that are not JSON",
    3: "very long, very wide and very deep arguments and results",
    4: "arguments that two parsers would read differently",
    5: "names that look like those of tools",
    6: "denied tools on every path: a call, a plan, a sub-agent, another name, without a model",
    7: "approvals count once, and only for the call that was shown",
    8: "schemas of tool servers that fetch URLs, are endless or slow",
    9: "text that a program could read as a command or an option",
    10: "secrets in arguments, results, errors, settings, files: in no log and no span",
    11: "paths outside the base directory, in any spelling",
    12: "names with invisible characters",
    13: "links, including those created between two steps",
    14: "hard links, pipes, devices, hidden files",
    15: "huge files and folders, and deliberately slow patterns",
    16: "writes to files that define behavior",
    17: "files that are read while they are written",
    18: "archives",
    19: "loopback, in any spelling",
    20: "metadata services, private and tunnelled addresses",
    21: "names that resolve to private addresses, the first or the second time",
    22: "redirects to private addresses, to other ports, and in a loop",
    23: "addresses that two parsers would read differently",
    24: "responses that are huge, compressed, slow or all headers",
    25: "line ends and smuggled requests in headers",
    26: "secrets in redirected requests",
    27: "responses that imitate instructions or results",
    28: "templates and instructions in text from users, tools and agents",
    29: "templates that are endless or grow too large",
    30: "hostile YAML, and paths and names in it that point elsewhere",
    31: "plugins that break, never finish, or imitate another module",
    32: "text that is almost an action: truncated, doubled, wrapped in prose, quoted",
    33: "replies that contain both text and an action, or neither",
    34: "truncated calls",
    35: "endless runs: the same call, many calls, invalid plans, exhausted budgets",
    36: "tools of servers whose definition has changed since it was accepted",
    37: "servers that die, hang, print garbage, flood or send requests",
    38: "missing, doubled, malformed and removed keys, and keys without the role",
    39: "ids and names of other tenants, users and agents, in any spelling",
    40: "decisions that are repeated, late, or another user's",
    41: "requests to the server that are huge, slow, incomplete or not text",
    42: "requests of web pages and of other machines",
    43: "full queues, repeated requests, and a store that is gone in mid-stream",
    44: "notes that instruct, or that a page led to",
    45: "webhooks with forged, old or repeated signatures, and bodies that instruct",
}

IDS = re.compile(r"test_(llm(0[1-9]|10)|asi(0[1-9]|10))_")


def numbered_tests() -> dict[int, list[str]]:
    numbered: dict[int, list[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        for number in re.findall(r"mark\.hostile\((\d+)\)", path.read_text("utf-8")):
            numbered.setdefault(int(number), []).append(path.name)
    return numbered


@pytest.mark.parametrize("number", GROUPS, ids=lambda number: f"{number}: {GROUPS[number]}")
def test_each_group_has_a_test(number: int) -> None:
    assert numbered_tests().get(number), f"no test carries @pytest.mark.hostile({number})"


def test_the_list_is_complete_and_no_test_has_another_number() -> None:
    assert GROUPS.keys() == set(range(1, 46))
    assert numbered_tests().keys() <= GROUPS.keys()


def test_hostile_cases_are_named_after_their_risk() -> None:
    """OWASP ids: `llm01` to `llm10` of the Top 10 for LLMs 2025, `asi01` to `asi10` of the one for agents 2026."""
    names = [
        name
        for path in (TESTS / "hostile").glob("test_*.py")
        if path.name != "test_groups.py"
        for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
    ]
    assert len(names) > 30
    assert [name for name in names if not IDS.match(name)] == []
