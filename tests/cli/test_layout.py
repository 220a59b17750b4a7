"""Layout on terminals of 40 to 120 columns: lines wrap between words, and the tree of a resumed run is nested."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from framework.cli.show import ANSWERED, line
from framework.cli.terminal import wrap
from framework.types.events import ToolFinished
from tests.support.cases import cases
from tests.support.commands import PATIENCE, agentsd, read_until, terminal
from tests.support.projects import agent, write
from tests.support.screens import screen_of, without_styles
from tests.support.stored_runs import approval_project, start_paused_run

WORDS = st.lists(st.text("abc你好", min_size=1, max_size=12), min_size=1, max_size=30).map(" ".join)


def shown(root: Path, *arguments: str, columns: int) -> str:
    """Return what a terminal shows after a command, without styles."""
    output = b""
    with terminal(*arguments, cwd=root, COLUMNS=str(columns)) as (process, master):
        with suppress(OSError):  # the end
            while more := os.read(master, 65536):
                output += more
        process.wait(PATIENCE)
    return "\n".join(screen_of(output.decode())).rstrip() + "\n"


# --- wrapping


@cases(200)
@given(WORDS, st.integers(12, 120), st.integers(0, 8), st.one_of(st.none(), st.integers(0, 40)))
def test_a_wrapped_line_fits_and_keeps_all_words(text: str, columns: int, indent: int, hanging: int | None) -> None:
    found = wrap(" " * indent + text, columns, hanging)
    longest = max(map(cell_len, text.split()))
    for number, one in enumerate(found.split("\n")):
        assert cell_len(one) <= max(columns, longest + max(indent, columns // 2))
        assert number == 0 or one.startswith(" " * min(indent + 2 if hanging is None else hanging, columns // 2))
    assert found.split() == text.split()


def test_styles_take_no_columns_and_continue_on_the_next_line() -> None:
    styled = click.style("  " + "word " * 6, fg="yellow")
    assert click.unstyle(wrap(styled, 20)).split("\n") == ["  word word word", "    word word word "]


@pytest.fixture
def guarded(tmp_path: Path) -> Path:
    """Return a project whose rules have long places."""
    policy = "{allow: [calculator, 'dates.*'], ask: [echo]}"
    return write(tmp_path, {"agents.d/one-with-a-long-name.yaml": agent("one", model="offline", skill_policy=policy)})


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_explain_wraps_verdicts_below_themselves(guarded: Path, columns: int) -> None:
    lines = shown(guarded, "explain", "one", columns=columns).splitlines()
    words = (word for text in lines for word in text.split())
    assert max(map(len, lines)) <= max(columns, columns // 2 + max(map(len, words))), "long paths are not broken"
    place = next(number for number, text in enumerate(lines) if text.startswith("  calculator"))
    verdict = " ".join(text.strip() for text in lines[place : place + 3])
    assert "allow calculator (agents.d/one-with-a-long-name.yaml:" in verdict
    if columns == 40:
        assert lines[place + 1].startswith(" " * 15), "a hanging indent"


@pytest.mark.parametrize("columns", [40, 80])
def test_a_question_wraps_between_words(tmp_path: Path, columns: int) -> None:
    root = approval_project(tmp_path)
    with terminal("run", f"echo {'word ' * 30}", cwd=root, COLUMNS=str(columns)) as (_, master):
        text = without_styles(read_until(master, "say what to change")).replace("\r\n", "\n")
    question = text.rpartition("asks: may it call echo?")[2].splitlines()[1:-1]
    assert question
    assert max(map(len, question)) <= columns
    assert any(re.fullmatch(r" {4}(word ?)+\"?", one) for one in question), question


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_a_stored_run_fits_the_terminal_except_for_commands(tmp_path: Path, columns: int) -> None:
    root = approval_project(tmp_path)
    start_paused_run(root, f"echo {'word ' * 30}")
    lines = shown(root, "runs", "show", "last", columns=columns).splitlines()
    assert max(len(one) for one in lines if "agentsd runs decide" not in one) <= columns
    assert any("agentsd runs decide" in one for one in lines), "a command that is copied is not broken"


@pytest.mark.parametrize("columns", [60, 80])
def test_a_problem_of_a_file_is_wrapped_between_words(tmp_path: Path, columns: int) -> None:
    write(
        tmp_path,
        {
            "agents.d/one.yaml": agent(
                "one", model="offline", runtime_policy="{risk_level: low}", skill_policy="{allow: [write_file]}"
            )
        },
    )
    message, _, _ = shown(tmp_path, "check", columns=columns).partition("agents: one")
    assert max(map(len, message.splitlines())) <= columns
    assert " ".join(message.split()).endswith("write_file has risk high, and max_risk is low")


# --- the tree of a resumed run


def test_the_call_of_a_resumed_plan_is_below_its_step(tmp_path: Path) -> None:
    keys = {"model": "offline", "executor": "plan", "skill_policy": "{allow: [calculator], ask: [echo]}"}
    root = write(tmp_path, {"agents.d/one.yaml": agent("one", **keys)})
    done = agentsd("run", "calculate 2 + 3 then echo hello", cwd=root)
    assert done.returncode == 3, done.stderr
    lines = [one.rstrip() for one in shown(root, "runs", "decide", "last", "--approve-all", columns=80).splitlines()]
    step = next(number for number, text in enumerate(lines) if "✓ s2  echo" in text)
    assert lines[step].startswith("└── ✓ s2")
    assert lines[step + 1].startswith("    └── ✓ echo")


def test_an_answer_in_place_of_a_call_is_not_shown_as_a_success(tmp_path: Path) -> None:
    root = approval_project(tmp_path)
    start_paused_run(root)
    text = shown(root, "runs", "decide", "last", "--respond", "echo=never mind", columns=80)
    assert f"↩ echo  {ANSWERED}" in text
    assert "✓" not in text


def test_an_answer_in_place_of_a_call_is_a_line_of_its_own_in_a_pipe(tmp_path: Path) -> None:
    root = approval_project(tmp_path)
    start_paused_run(root)
    done = agentsd("runs", "decide", "last", "--respond", "echo=never mind", cwd=root)
    assert f"↩ echo {ANSWERED}: never mind" in done.stderr


def test_the_event_of_an_executed_call_has_no_decision() -> None:
    finished = {"run_id": "r", "seq": 1, "generation": 1, "path": (), "id": "c", "tool": "echo", "status": "success"}
    event = ToolFinished.model_validate({**finished, "result": "hi", "elapsed_ms": 2.0})
    assert (event.decision, line(event)) == (None, "✓ echo 2 ms: hi")
