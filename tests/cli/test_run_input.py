"""The message of `agentsd run` from standard input, and what its output contains in pipes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from framework.types.messages import MAX_MESSAGE_CHARS
from tests.support.commands import ENVIRONMENT, PATIENCE, agentsd, read_to_end, terminal
from tests.support.forks import run
from tests.support.projects import agent, write
from tests.support.screens import without_styles


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with one agent that echoes."""
    return write(tmp_path_factory.mktemp("project"), {"agents.d/one.yaml": agent("one", model="offline")})


def test_a_message_is_read_from_standard_input(project: Path) -> None:
    piped = run(["run", "-"], cwd=project, env=ENVIRONMENT, given="echo one\ntwo\n")
    assert (piped.returncode, piped.stdout) == (0, "one\ntwo\n")
    assert agentsd("run", str(project / "agents.d/one.yaml"), "-", cwd=project, stdin="echo hi").stdout == "hi\n"


@pytest.mark.parametrize(
    ("given", "problem"),
    [("", "the message is empty"), ("x" * (MAX_MESSAGE_CHARS + 9), f"at most {MAX_MESSAGE_CHARS}")],
)
def test_an_unusable_message_is_an_error(project: Path, given: str, problem: str) -> None:
    done = agentsd("run", "-", cwd=project, stdin=given)
    assert done.returncode == 2
    assert problem in done.stderr.replace(",", "")


def test_json_contains_the_result_of_a_tool_once(project: Path) -> None:
    text = "a result of some length"
    data = json.loads(agentsd("run", "--json", f"echo {text}", cwd=project).stdout)
    assert data["tool_calls"][0]["result"] == text
    assert [message.get("content") for message in data["messages"] if message["role"] == "tool"] == [None]
    assert not any({"tool_output", "observation"} & {*entry} for entry in data["trace"])


def test_a_terminal_shows_the_answer_as_markdown_once(project: Path) -> None:
    with terminal("run", "echo **bold** words", cwd=project) as (process, master):
        shown = without_styles(read_to_end(master))
        assert process.wait(PATIENCE) == 0
    assert "\nbold words" in shown.replace("\r", "")


@pytest.mark.parametrize("columns", ["40", "80", "120"])
def test_every_line_fits_the_terminal(project: Path, columns: str) -> None:
    with terminal("run", f"echo {'word ' * 60}", cwd=project, COLUMNS=columns) as (process, master):
        shown = without_styles(read_to_end(master))
        assert process.wait(PATIENCE) == 0
    lines = [line.rpartition("\r")[2] for line in shown.replace("\r\n", "\n").splitlines()]
    assert max(map(len, lines)) <= int(columns)
