"""`runs decide` with abbreviated ids, rejected edits, and `runs export` into an existing file."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.cli.run_control import matching
from framework.cli.show import short_id
from framework.config.yaml.document import read_document
from framework.evals.suite import case_file, with_case
from framework.types.errors import RequestError
from framework.types.state import Confirmation
from tests.support.cases import cases
from tests.support.commands import agentsd, read_to_end, read_until, terminal
from tests.support.projects import agent, write
from tests.support.screens import without_styles

TASK = "search for 'calculator' then write it to notes.md"


def question(name: str, kind: Any = "tool", tool: str = "") -> Confirmation:
    return Confirmation(id=name, kind=kind, agent="a", tool=tool, hash="")


LONG = "plan-1-11a3b6d271019630"
QUESTIONS = [
    question(LONG, "plan"),
    question("call_1", tool="echo"),
    question("call_2", tool="echo"),
    question("x_1", tool="pay"),
]


@pytest.mark.parametrize(
    ("given", "meant"),
    [(LONG, LONG), ("plan", LONG), ("plan-1", LONG), ("pay", "x_1"), ("x", "x_1"), ("call_1", "call_1")],
)
def test_a_question_is_found_by_id_subject_or_prefix(given: str, meant: str) -> None:
    assert matching(given, QUESTIONS) == meant


@pytest.mark.parametrize("given", ["echo", "call", "call_"])
def test_an_ambiguous_name_is_an_error_with_the_matching_ids(given: str) -> None:
    with pytest.raises(RequestError, match="call_1, call_2"):
        matching(given, QUESTIONS)


@pytest.mark.hostile(7)
def test_asi09_an_id_that_is_another_calls_tool_is_ambiguous() -> None:
    with pytest.raises(RequestError, match="write_file, call_1"):
        matching("write_file", [question("write_file", tool="send_email"), question("call_1", tool="write_file")])


@pytest.mark.parametrize("given", ["call_3", "", "plans", "lan"])
def test_a_name_without_a_match_is_returned_unchanged(given: str) -> None:
    assert matching(given, QUESTIONS) == given


@cases(100)
@given(st.lists(st.text("ab~", min_size=1, max_size=4), unique=True), st.text("ab~", min_size=1, max_size=4))
def test_a_decision_about_an_earlier_question_never_applies_to_a_new_one(ids: list[str], name: str) -> None:
    try:
        found = matching(name, [question(one, tool="t") for one in ids])
    except RequestError:
        return
    assert found == name or (found in ids and not found.startswith(f"{name}~"))


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("call_1", "call_1"),
        (f"plan-1-{'ab' * 32}", "plan-1-abababababab"),
        (f"x/c~{'12' * 32}~{'ab' * 32}~1", "x/c~121212121212"),
        ("plan-1-11a3b6d271019630", "plan-1-11a3b6d271019630"),
    ],
)
def test_a_long_id_is_shown_as_an_unambiguous_prefix(key: str, shown: str) -> None:
    assert short_id(key) == shown
    assert matching(shown, [question(key), question("other")]) == key


@pytest.fixture
def project(starter: Path, tmp_path: Path) -> Path:
    subprocess.run(["cp", "-r", f"{starter}/.", tmp_path], check=True)
    return tmp_path


def test_a_plan_is_rejected_by_the_name_in_the_hint(project: Path) -> None:
    waiting = agentsd("run", "-a", "planner", TASK, cwd=project)
    assert waiting.returncode == 3
    assert "--approve plan (or --reject plan; " in waiting.stderr
    done = agentsd("runs", "decide", "last", "--reject", "plan", cwd=project)
    assert (done.returncode, "no pending decision" in done.stderr) == (0, False), done.stderr


def test_a_rejected_edit_prints_the_reason(project: Path) -> None:
    agentsd("run", "-a", "planner", TASK, cwd=project)
    steps = {"goal": "g", "steps": [{"id": "s1", "description": "d", "tool": "no_such_tool"}]}
    done = agentsd("runs", "decide", "last", "--edit", f"plan={json.dumps(steps)}", cwd=project)
    assert done.returncode == 3
    assert "your edit is invalid: " in done.stderr
    assert "no_such_tool" in done.stderr


@pytest.mark.parametrize(
    "before",
    ["", "# ours\ncases:\n  # first\n  - {name: a, message: hi}\n\n", "cases:\n- name: a\n  message: |\n    hi\n"],
)
def test_a_second_export_is_added_to_the_file(tmp_path: Path, before: str) -> None:
    files = {"agents.d/one.yaml": agent("one", model="offline")}
    write(tmp_path, files | ({"agents.d/one.test.yaml": before} if before else {}))
    for _ in range(2):
        agentsd("run", "-a", "one", "echo hello", cwd=tmp_path)
        done = agentsd("runs", "export", "last", "--as-test", "-o", "agents.d/one.test.yaml", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "agents.d/one.test.yaml").read_text().startswith(before.rstrip())
    tested = agentsd("test", cwd=tmp_path)
    assert f"{3 if before else 2} passed, 0 failed" in tested.stdout, tested.stdout + tested.stderr


@pytest.mark.parametrize(
    "text", ["cases: [{name: a, message: hi}]\n", "cases:\n  - {name: a, message: hi}\nversion: 1\n", "[\n"]
)
def test_a_file_that_cannot_be_extended_is_not_changed(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline"), "agents.d/one.test.yaml": text})
    agentsd("run", "-a", "one", "echo hello", cwd=tmp_path)
    done = agentsd("runs", "export", "last", "--as-test", "-o", "agents.d/one.test.yaml", cwd=tmp_path)
    assert (done.returncode, "cannot be extended" in done.stderr) == (2, True)
    assert (tmp_path / "agents.d/one.test.yaml").read_text() == text


@cases(100)
@given(st.lists(st.text(), max_size=4))
def test_cases_added_one_by_one_are_all_in_the_file(messages: list[str]) -> None:
    text = case_file({"name": "first", "message": "m"})
    for message in messages:
        text = with_case(text.encode(), {"name": "first", "message": message}, "f")
    found = read_document("f", text.encode()).data["cases"]
    assert [case["message"] for case in found] == ["m", *messages]
    assert len({case["name"] for case in found}) == len(found)


def test_the_terminal_says_what_each_width_would_have_covered(tmp_path: Path) -> None:
    shop = (
        'from agentsd import tool\n\n\n@tool(risk="low")\ndef pay(order: str, amount: float) -> str:\n    "Pay it."\n'
    )
    rules = '{allow: ["*"], ask: [shop.pay]}'
    file = agent("a", model="offline", skill_policy=rules)
    write(tmp_path, {"plugins/shop.py": shop + "    return order\n", "agents.d/a.yaml": file})
    assert agentsd("run", "--user", "ann", "pay order B-7 amount 80", cwd=tmp_path).returncode == 3
    assert agentsd("runs", "decide", "last", "--by", "ann", "--reject", "shop.pay", cwd=tmp_path).returncode == 0
    with terminal("run", "--user", "ann", "pay order A-1 amount 20", cwd=tmp_path) as (_, master):
        read_until(master, "re[m]ember")
        os.write(master, b"m\n")
        shown = without_styles(read_until(master, "which calls"))
        os.write(master, b"1\nuser\nn\n")
        read_to_end(master)
    assert "exactly this call of shop.pay (1 of 2 calls in 30 days)" in shown
    assert "every call of shop.pay (2 of 2 calls in 30 days, 1 of them rejected)" in " ".join(shown.split())
