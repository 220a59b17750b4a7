"""The numbered cases of safe reloading. Each has at least one test with its number."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import TESTS

CASES = {
    1: "every way of saving a file creates exactly one new generation",
    2: "a Kubernetes volume swap creates one generation, with each agent once",
    3: "a root deleted and recreated",
    4: "a root renamed away, a symlinked root pointed elsewhere",
    5: "names that are not UTF-8",
    6: "folders and files created in quick succession; folders moved in and out",
    7: "a thousand files rewritten: one or two generations, none mixed",
    8: "events lost in an overflow: a scan finds the changes",
    9: "two writes within a second",
    10: "a slow writer: no prefix with a weaker policy becomes active",
    11: "a writer that never stops does not starve reloading",
    12: "a file missing for a moment: its agent never disappears",
    13: "a branch checked out: no agent on mixed old and new files",
    14: "touch, chmod, identical rewrite, edit and undo: no generation",
    15: "same size and restored modification time: detected",
    16: "a broken file and a valid edit",
    17: "a fix, or the old bytes, clears the problem",
    18: "a start with a broken file",
    19: "shared settings broken: nothing changes",
    20: "strict mode and one bad file: nothing changes",
    21: "two files with one name",
    22: "a file renamed: a move",
    23: "an agent's name changed",
    24: "an agent removed while it runs and waits",
    25: "a tool denied in mid-run",
    26: "a limit raised in mid-run",
    27: "a template used through an include of an include",
    28: "a template edited in mid-run; an include broken",
    29: "undefined variables, guarded ones, and ones set in the template",
    30: "a template that appears a moment after its agent",
    31: "includes in a circle, or by a computed name; missing parents and filters",
    32: "locale variants added, changed and removed",
    33: "a plugin edited while its tool is awaited",
    34: "plugins that cannot be loaded, or never finish loading",
    35: "a plugin's helper edited; same second, same size",
    36: "a plugin drops a tool that an agent allows",
    37: "a thousand plugin reloads leave nothing behind",
    38: "hostile YAML",
    39: "words that older YAML reads as other types",
    40: "variables: unset, default, escaped, hostile; secrets",
    41: "links out of the root, unreadable files, FIFOs, folders named like files",
    42: "schemas from tool servers: hostile ones are omitted",
    43: "a rollback applies until the files change",
    44: "stopping during a reload, and while idle, fifty times",
    45: "unknown versions and fields",
    46: "any sequence of edits: the active generation is a function of files and history",
}


def numbered_tests() -> dict[int, list[str]]:
    numbered: dict[int, list[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        for number in re.findall(r"mark\.conformance\((\d+)\)", path.read_text("utf-8")):
            numbered.setdefault(int(number), []).append(path.name)
    return numbered


@pytest.mark.parametrize("number", CASES, ids=lambda number: f"{number}: {CASES[number]}")
def test_each_case_has_a_test(number: int) -> None:
    assert numbered_tests().get(number), f"no test carries @pytest.mark.conformance({number})"


def test_no_test_has_a_number_outside_the_list() -> None:
    assert numbered_tests().keys() <= CASES.keys()
