"""Plans on the terminal: shown, edited, approved, replanned and executed; and their text in an editor."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.cli.confirm import as_text, is_unchanged, read_text, with_problems, without
from framework.config.yaml.parse import ParseError
from framework.types.plan import FixedDraft, FixedStep, Plan
from tests.support.cases import cases
from tests.support.commands import ENVIRONMENT, PATIENCE, agentsd, read_to_end, read_until, terminal
from tests.support.paths import ROOT
from tests.support.plans import draft, step

TASK = "summarize data/log/app.log then write it to notes.md"
"""A task with a mistake: the folder is data/logs."""


def plain(shown: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)


@pytest.fixture
def project(starter: Path, tmp_path: Path) -> Path:
    subprocess.run(["cp", "-r", f"{starter}/.", tmp_path], check=True)
    return tmp_path


def answer(master: int, until: str, text: bytes) -> str:
    shown = read_until(master, until)
    os.write(master, text + b"\n")
    return plain(shown)


def test_a_plan_is_approved_fails_and_is_replanned_until_it_completes(project: Path) -> None:
    with terminal("run", "-a", "planner", TASK, cwd=project) as (process, master):
        shown = answer(master, "[r]eject, or say what to change", "是".encode())
        assert "planner asks: may it execute this plan?" in shown
        assert "○ s1  summarize data/log/app.log" in shown
        assert "allowed, risk low" in shown
        assert 'path: "notes.md"' in shown
        assert 'content: "{{ steps.s1.output }}"' in shown
        assert "needs approval again when s1 is done: approve_from high (default), risk high" in shown
        assert "2 tool calls, 1 model call or more, about" in shown
        shown = answer(master, "[r]eject, or say what to change", b"a")
        assert "type a, e, d, s, r, or a sentence" in shown, "one letter, in any script, is no wish"
        shown = answer(master, "say what to change", b"a")
        assert "there is no folder 'data/log'; did you mean logs?" in shown
        assert "plan 2: " in shown
        assert "✓ log_transform" in shown
        assert "planner asks: may it call write_file?" in shown
        shown = plain(read_until(master, "wrote 'notes.md'", "✓ s2"))
        assert process.wait(PATIENCE) == 0
    assert "ERROR" in (project / "notes.md").read_text()


def test_a_plan_is_edited_in_an_editor_until_it_is_valid(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = project / "edit.py"
    script.write_text(
        "import pathlib, sys\n"
        "path, count = pathlib.Path(sys.argv[1]), pathlib.Path('edits')\n"
        "number = len(count.read_text()) if count.exists() else 0\n"
        "count.write_text('x' * (number + 1))\n"
        "text = path.read_text()\n"
        "(pathlib.Path(f'before{number}')).write_text(text)\n"
        "wrong, right = [('tool: write_file', 'toool: write_file'), ('toool: write_file', 'tool: write_fiel'),\n"
        "    ('write_fiel', 'write_file')][number]\n"
        "path.write_text(text.replace(wrong, right).replace('data/log/', 'data/logs/'))\n"
    )
    monkeypatch.setitem(ENVIRONMENT, "EDITOR", f"{shlex.quote(sys.executable)} {shlex.quote(str(script))}")
    with terminal("run", "-a", "planner", TASK, cwd=project) as (process, master):
        answer(master, "[r]eject, or say what to change", b"e")
        shown = answer(master, "edit it again?", b"y")
        assert "unknown key 'toool'" in shown
        assert "did you mean 'tool'?" in shown
        shown = answer(master, "[r]eject, or say what to change", b"e")
        assert "your edit is invalid: step s2: there is no tool 'write_fiel'; did you mean write_file" in shown
        answer(master, "say what to change", b"a")
        read_until(master, "wrote 'notes.md'", "✓ s2")
        assert process.wait(PATIENCE) == 0
    assert (project / "before1").read_text().startswith("#! the plan:16:5: unknown key 'toool'")
    assert "write_fiel" in (project / "before2").read_text(), "the next edit starts from the previous one"


def test_steps_are_dropped_with_their_dependents(project: Path) -> None:
    task = "analyse data/logs/app.log then calculate 2 + 3 then write it to notes.md"
    with terminal("run", "-a", "planner", task, cwd=project) as (process, master):
        answer(master, "[r]eject, or say what to change", b"d")
        answer(master, "which (s1, s2, s3, s4, s5)", b"s9")
        answer(master, "there is no step s9", b"")
        answer(master, "[r]eject, or say what to change", b"d")
        answer(master, "which", b"s5")
        shown = answer(master, "continue with these steps?", b"")
        assert "remaining steps:" in shown
        assert "○ s4  calculate 2 + 3" in shown
        shown = plain(read_to_end(master))
        assert "= 5" in shown
        assert process.wait(PATIENCE) == 0
    assert "removed" not in shown
    assert not (project / "notes.md").exists()


def test_dropping_all_steps_needs_confirmation_and_ends_the_run_without_a_model_call(project: Path) -> None:
    with terminal("run", "-a", "planner", TASK, cwd=project) as (process, master):
        answer(master, "[r]eject, or say what to change", b"d")
        shown = answer(master, "which (s1, s2)", b"s1")
        assert "(s2 depends on it and is dropped too)" in shown + answer(master, "without doing anything?", b"n")
        answer(master, "[r]eject, or say what to change", b"d")
        answer(master, "which", b"s1, s2")
        assert "no steps are left" in answer(master, "end the run without doing anything?", b"y")
        read_until(master, "No steps are left in the plan; nothing was done.")
        assert process.wait(PATIENCE) == 0
    assert '"steps": 1,' in agentsd("runs", "show", "last", "--json", cwd=project).stdout, (
        "the only model call was for the plan"
    )


def test_a_failed_step_is_retried_skipped_or_stopped_at_the_terminal(project: Path) -> None:
    file = project / "agents.d/planner.yaml"
    file.write_text(file.read_text().replace("on_failure: replan", "on_failure: ask"))
    task = "read nowhere.md then calculate 2 + 3"
    with terminal("run", "-a", "planner", task, cwd=project) as (process, master):
        shown = answer(master, "s[t]op the run", b"r")
        assert "planner: step s1 failed: Error: read_file failed: there is no file 'nowhere.md'" in shown
        assert 'read_file path="nowhere.md"' in shown
        answer(master, "s[t]op the run", b"s")
        read_until(master, "s1 was not done", "without these steps: s1 failed, s2 skipped")
        assert process.wait(PATIENCE) == 0
    with terminal("run", "-a", "planner", task, cwd=project) as (process, master):
        answer(master, "s[t]op the run", b"t")
        read_until(master, "step s1 failed, and the user stopped the run")
        assert process.wait(PATIENCE) == 1


def test_a_closed_terminal_is_not_an_approval(project: Path) -> None:
    done = agentsd("run", "-a", "planner", TASK, cwd=project)
    assert done.returncode == 3
    assert "waits for approval: plan (plan-1-" in done.stderr
    assert not (project / "notes.md").exists()


# --- the text

TEXT = st.text(max_size=30)
NAMES = ("a", "b-c", "d_1")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
STEPS = st.builds(
    FixedStep,
    id=st.sampled_from(NAMES),
    description=TEXT,
    tool=st.none() | st.text(min_size=1, max_size=10),
    parameters=st.dictionaries(TEXT, VALUES, max_size=3),
    tools=st.none() | st.lists(TEXT, max_size=2).map(tuple),
    depends_on=st.lists(st.sampled_from(NAMES), max_size=2).map(tuple),
    expected=TEXT,
    when=st.dictionaries(TEXT, TEXT | st.booleans() | st.integers(-9, 9), max_size=2),
    for_each=TEXT,
    max_items=st.integers(1, 100),
)


@cases(150)
@given(st.builds(FixedDraft, goal=TEXT, steps=st.lists(STEPS, max_size=3).map(tuple)))
def test_a_plan_survives_a_round_trip_through_text(plan: FixedDraft) -> None:
    assert read_text(as_text(plan, Plan(goal="g", steps=()))) == plan


def test_finished_steps_are_comments_in_the_editor_text() -> None:
    plan = Plan.from_draft(draft(step("a"), step("b", "a"))).with_step("a", "done", "did a")
    text = as_text(plan.draft, plan, ["work"])
    assert "# done: a: a\n" in text
    assert "# Tools: work\n" in text
    assert [one.id for one in read_text(text).steps] == ["b"]


def test_a_plan_without_steps_survives_a_round_trip() -> None:
    assert read_text(as_text(FixedDraft(goal="g", steps=()), Plan(goal="g", steps=()))).steps == ()


def test_an_empty_file_changes_nothing_and_old_problems_are_removed() -> None:
    assert is_unchanged(None)
    assert is_unchanged("# only\n\n# comments\n")
    assert not is_unchanged("goal: x")
    text = "goal: x\nsteps: 3\n"
    for _ in range(2):
        with pytest.raises(ParseError) as caught:
            read_text(text)
        text = with_problems(text, caught.value)
    assert text.count("must be a list") == 1
    assert text.endswith("goal: x\nsteps: 3\n")


def test_dependents_of_a_dropped_step_are_dropped() -> None:
    plan = Plan.from_draft(draft(step("a"), step("b", "a"), step("c", "b"), step("d"))).draft
    assert [one.id for one in without(plan, ["a"]).steps] == ["d"]
    assert [one.id for one in without(plan, ["c"]).steps] == ["a", "b", "d"]


DOCS = ROOT / "docs/plans.md"


@pytest.mark.parametrize(
    ("you", "keys"),
    [
        ("`r` (reject), with or without a reason", b"r\nno\n"),
        ("Ctrl-D", b"\x04"),
        ("Ctrl-C", None),
        ("nothing: standard input or output is not a terminal", b""),
    ],
)
def test_the_table_of_an_unapproved_plan_is_correct(project: Path, you: str, keys: bytes | None) -> None:
    if keys == b"":
        code: int | None = agentsd("run", "-a", "planner", TASK, cwd=project).returncode
    else:
        with terminal("run", "-a", "planner", TASK, cwd=project) as (process, master):
            read_until(master, "[r]eject, or say what to change")
            if keys is None:
                process.send_signal(signal.SIGINT)
            else:
                os.write(master, keys)
            code = process.wait(PATIENCE)
    (info,) = json.loads(agentsd("runs", "list", "--json", cwd=project).stdout)
    row = f"| {you} | `{info['status']}` (`{info['finish_reason']}`) | {code} |"
    assert row in DOCS.read_text("utf-8"), row
    assert not (project / "notes.md").exists()
    if info["status"] == "paused":
        decided = agentsd("runs", "decide", "last", "--reject", "plan", cwd=project)
        assert (decided.returncode, (project / "notes.md").exists()) == (0, False)
