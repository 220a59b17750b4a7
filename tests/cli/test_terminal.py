"""Interruptions of the command line: Ctrl-C at every question, closed and full streams, other encodings."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from framework.cli.confirm import edited_arguments
from framework.cli.main import SHOW_CURSOR
from framework.cli.show import DURATION_CHARS, GAP, GAPS, LEAST, LEAST_BAR, Widths, fitted
from framework.types.state import Confirmation
from tests.support.cases import cases
from tests.support.commands import (
    COMMAND,
    ENVIRONMENT,
    PATIENCE,
    agentsd,
    agentsd_process,
    read_to_end,
    read_until,
    terminal,
)
from tests.support.forks import Fork
from tests.support.paths import ROOT
from tests.support.projects import agent, write

CTRL_C = signal.SIGINT
QUESTION = "say what to change:"


@pytest.fixture
def approval_project(tmp_path: Path) -> Path:
    """A project whose agent needs approval to echo, and has a tool that never returns."""
    files = {
        "agents.d/one.yaml": agent("one", model="offline", skill_policy='{ask: [echo], allow: ["*"]}'),
        "plugins/slow.py": '''
            import asyncio
            from framework import tool

            @tool(risk="low")
            async def wait_long() -> str:
                """Wait very long."""
                await asyncio.Event().wait()
                return ""
        ''',
    }
    return write(tmp_path, files)


def statuses(project: Path) -> list[str]:
    return [run["status"] for run in json.loads(agentsd("runs", "list", "--json", cwd=project).stdout)]


# --- Ctrl-C


def test_ctrl_c_at_a_question_leaves_the_run_paused_and_prints_how_to_decide(approval_project: Path) -> None:
    with terminal("run", "echo hello", cwd=approval_project) as (process, master):
        read_until(master, QUESTION)
        process.send_signal(CTRL_C)
        read_until(master, "runs decide run_", "--approve call_1")
        assert process.wait(PATIENCE) == 3
    assert statuses(approval_project) == ["paused"]


def test_ctrl_c_at_a_decision_decides_nothing(approval_project: Path) -> None:
    agentsd("run", "echo hello", cwd=approval_project)
    with terminal("runs", "decide", "last", cwd=approval_project) as (process, master):
        read_until(master, QUESTION)
        process.send_signal(CTRL_C)
        assert process.wait(PATIENCE) == 130
    assert statuses(approval_project) == ["paused"]


def test_ctrl_c_at_the_prompt_ends_a_chat(approval_project: Path) -> None:
    with terminal("chat", cwd=approval_project) as (process, master):
        read_until(master, "you>")
        process.send_signal(CTRL_C)
        assert process.wait(PATIENCE) == 130


def test_ctrl_c_in_a_chat_cancels_the_answer_and_a_question_ends_it(approval_project: Path) -> None:
    with terminal("chat", "-c", "c1", cwd=approval_project) as (process, master):
        read_until(master, "you>")
        os.write(master, b"wait very long\n")
        read_until(master, "… slow.wait_long")
        process.send_signal(CTRL_C)
        read_until(master, "cancelled")
        os.write(master, b"echo hello\n")
        read_until(master, QUESTION)
        process.send_signal(CTRL_C)
        read_until(master, "--approve call_1", "agentsd chat --conversation c1")
        assert process.wait(PATIENCE) == 3
    assert statuses(approval_project) == ["paused", "cancelled"]


def test_ctrl_c_while_modules_are_loaded_is_quiet(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    # What a shell started in the background ignores SIGINT.
    heeding = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = f"{heeding}; from framework.cli.entry import main; main()"
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run([COMMAND[0], "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_after_a_kill_the_run_can_be_resumed_and_the_cursor_is_visible(approval_project: Path) -> None:
    with terminal("run", "wait very long", cwd=approval_project) as (process, master):
        read_until(master, "… slow.wait_long")
        process.send_signal(signal.SIGTERM)
        read_until(master, SHOW_CURSOR.decode())
        assert process.wait(PATIENCE) == -signal.SIGTERM
    assert statuses(approval_project) == ["orphaned"]


# --- an editor


@pytest.mark.parametrize(
    ("editor", "message"),
    [
        ("exit 1;", "Editing failed"),
        ("printf '' >", "nothing was changed"),
        ("sed -i 's/hello/9/; s/[{}]//g'", "the arguments are not JSON"),
        (r"sed -i -n 's/.*hello.*/[]/p'", "the arguments are not a JSON object"),
        (r"printf '\377' >", "the saved text is not UTF-8"),
    ],
)
def test_an_editor_without_a_usable_result_is_reported_and_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], editor: str, message: str
) -> None:
    script = tmp_path / "editor"
    script.write_text(f'#!/bin/sh\n{editor} "$1"\ntouch -d 2040-01-01 "$1"\n')
    script.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(script))
    arguments = {"text": "hello"}
    question = Confirmation(
        id="c1", kind="tool", agent="one", tool="echo", arguments=arguments, hash="", reason="", rule="", risk="low"
    )
    assert edited_arguments(question) is None
    assert message in capsys.readouterr().err


# --- streams


def redirected(redirection: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a new interpreter that starts with the streams that a shell redirects."""
    words = ["/bin/sh", "-c", f'"$@" {redirection}', "sh", *COMMAND, *arguments]
    environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    return subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("redirection", ["<&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_cause_no_error(starter: Path, redirection: str) -> None:
    done = redirected(redirection, "run", "echo hello", cwd=starter)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert done.stdout == ("" if " >&-" in redirection else "hello\n")


def test_a_chat_without_standard_input_ends(starter: Path) -> None:
    done = redirected("<&-", "chat", cwd=starter)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["run", "echo hello"]])
def test_a_full_disk_is_one_line(starter: Path, arguments: list[str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with (
        Path("/dev/full").open("wb") as full,
        Fork(
            arguments, cwd=starter, env=ENVIRONMENT, stdout=full.fileno(), stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stderr
        shown = process.stderr.read()
    assert process.returncode == 1
    assert shown.splitlines()[-1] == "error: the output: No space left on device"
    assert "Traceback" not in shown


def test_a_closed_pipe_ends_the_command_quietly(starter: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with Fork(
        ["tools", "list"], cwd=starter, env=ENVIRONMENT, stdout=writing, stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(writing)
        assert process.stderr
        assert process.stderr.read() == ""


def test_characters_that_an_encoding_lacks_are_escaped(starter: Path) -> None:
    encoding = "latin-1"
    done = agentsd_process("run", "--trace", "echo 你", cwd=starter, PYTHONIOENCODING=encoding)
    assert done.returncode == 0
    assert done.stdout == "\\u4f60\n"
    as_json = agentsd_process("run", "--json", "echo 你", cwd=starter, PYTHONIOENCODING=encoding)
    assert json.loads(as_json.stdout)["output"] == "你"


def test_a_locale_without_characters_changes_no_message(starter: Path, tmp_path: Path) -> None:
    """`LC_ALL=C` is what minimal containers have; this needs a process of its own, whose interpreter reads it."""
    environment = ENVIRONMENT | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for message, typed in (("echo 你好", None), ("-", "echo 你好".encode())):
        command = [sys.executable, "-m", "framework", "run", "--json", message]
        done = subprocess.run(command, cwd=starter, env=environment, input=typed, capture_output=True, check=True)
        assert json.loads(done.stdout)["output"] == "你好"
    (named := tmp_path / "项目").symlink_to(starter)
    subprocess.run([sys.executable, "-m", "framework", "check", str(named)], env=environment, check=True)


def test_an_error_of_the_operating_system_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "plugins").write_text("a file where init needs a folder")
    done = agentsd("init", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "plugins" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# --- tables


def test_tables_fit_a_terminal_and_are_complete_in_a_pipe(starter: Path) -> None:
    with terminal("tools", "list", cwd=starter) as (process, master):
        shown = re.sub(r"\x1b\[[\d;]*m", "", read_to_end(master)).splitlines()
        assert process.wait(PATIENCE) == 0
    assert shown[0].split() == ["tool", "risk", "source", "description"]
    assert max(cell_len(line) for line in shown) == 120
    assert any(line.endswith("…") for line in shown)
    lines = agentsd("tools", "list", cwd=starter).stdout.splitlines()
    assert not any("…" in line or line != line.rstrip() for line in lines)


@cases(100)
@given(st.lists(st.integers(1, 60), min_size=2, max_size=8), st.integers(20, 200))
def test_columns_shrink_for_the_last_one_but_not_the_first_nor_below_the_minimum(widths: list[int], line: int) -> None:
    columns = fitted(widths, line)
    assert columns[0] == widths[0]
    assert all(min(LEAST, before) <= now <= before for before, now in zip(widths[:-1], columns[:-1], strict=True))
    if sum(columns) + GAP * (len(columns) - 1) > line:
        assert max(columns[1:-1], default=0) <= LEAST, "all other columns have shrunk as far as possible"
    if sum(widths) + GAP * (len(widths) - 1) <= line:
        assert columns == widths


@pytest.mark.parametrize(
    ("line", "name", "notes", "expected"),
    [
        (200, 90, 20, (46, 36)),  # the longest of each
        (80, 29, 20, (29, 18)),  # names as long as needed, the bar gets the rest
        (80, 46, 30, (29, 16)),  # long names and notes leave the bar a fair share
        (40, 29, 20, (12, 8)),
        (80, 10, 0, (10, 36)),
    ],
)
def test_the_parts_of_a_waterfall_fit_a_terminal(line: int, name: int, notes: int, expected: tuple[int, int]) -> None:
    assert Widths(line).fitted(name, notes) == Widths(line, *expected)


@cases(100)
@given(st.integers(40, 250), st.integers(1, 120), st.integers(0, 120))
def test_no_line_of_a_waterfall_is_longer_than_the_terminal(line: int, name: int, notes: int) -> None:
    found = Widths(line).fitted(name, notes)
    assert found.notes is not None
    assert found.name + found.bar + found.notes + DURATION_CHARS + GAPS <= line
    assert found.bar >= LEAST_BAR


def test_without_agents_commands_print_what_to_do(tmp_path: Path) -> None:
    hint = "there are no agents: put one under agents.d/, or run `agentsd init`"
    assert agentsd("agents", "list", cwd=tmp_path).stdout == f"{hint}\n"
    for arguments in (["chat"], ["run", "hi"]):
        done = agentsd(*arguments, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (2, f"error: {hint}\n")


def test_check_says_how_to_begin_only_where_no_agent_file_is(tmp_path: Path) -> None:
    assert "agents: none (put one under agents.d/" in agentsd("check", cwd=tmp_path).stdout
    write(tmp_path, {"agents.d/one.yaml": "version: 1\nname: one\n"})
    assert "agents: none\n" in agentsd("check", cwd=tmp_path).stdout


def test_a_mistyped_command_gets_a_suggestion(tmp_path: Path) -> None:
    for arguments, meant in ((["chekc"], "check"), (["runs", "lst"], "list")):
        done = agentsd(*arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert f"error: there is no command {arguments[-1]!r}; did you mean {meant}?\n" in done.stderr


# --- start-up time


@pytest.mark.parametrize(
    ("module", "spared"),
    [
        ("framework.cli.main", ("framework.config", "framework.engine", "sqlalchemy", "rich", "pydantic")),
        ("framework.cli.run", ("rich", "markdown_it", "pygments")),
        ("framework.cli.runs", ("framework.engine", "framework.config.agents.compile", "jinja2", "instructor")),
        ("framework.cli.agents", ("framework.engine.run", "sqlalchemy", "instructor", "rich")),
    ],
)
def test_read_only_commands_load_no_engine(module: str, spared: tuple[str, ...]) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {name for name in done.stdout.split() if name.startswith(tuple(f"{one}." for one in spared))}
    assert not {*done.stdout.split()} & {*spared}
