"""Exit codes: the same table in the code, in the documentation and in the behavior of commands."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from framework.cli.main import agentsd as group
from framework.cli.main import main
from framework.types.errors import EXIT_CODES, OUTCOMES
from tests.support.cases import each
from tests.support.commands import agentsd
from tests.support.paths import ROOT
from tests.support.projects import agent, write

LISTED = re.compile(r"Exit codes?: (.*?)(?:\n\n|$)", re.DOTALL)
ASKS = agent("asks", model="offline", skill_policy="{allow: [calculator], ask: [calculator]}")


def helps(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    """Yield the name and help of a command and of its subcommands."""
    yield name, command.help or ""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for child in command.list_commands(context):
            if found := command.get_command(context, child):
                yield from helps(found, f"{name} {child}")


HELPS = dict(helps(group, "agentsd"))


def test_the_documented_table_equals_the_codes() -> None:
    page = (ROOT / "docs/reference/outcomes.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\d+)` \| ([^|]+) \|$", page, re.MULTILINE)
    assert {int(code): meaning for code, meaning in rows} == EXIT_CODES


def test_runs_end_with_codes_of_the_table() -> None:
    assert {row.exit_code for row in OUTCOMES.values()} <= set(EXIT_CODES)


@each("name", HELPS)
def test_help_names_only_codes_of_the_table(name: str) -> None:
    for listed in LISTED.findall(HELPS[name]):
        assert {int(code) for code in re.findall(r"\b(\d+)\b", listed)} <= set(EXIT_CODES)


CALL = '{"expression": "2+3"}'


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("explain", "asks", "calculator"), 3),
        (("tools", "call", "calculator", CALL, "-a", "asks"), 3),
        (("tools", "call", "calculator", CALL, "-a", "asks", "--json"), 3),
        (("run", "-a", "asks", "calculate 2 + 3"), 3),
        (("explain", "asks", "read_file"), 1),
        (("tools", "call", "read_file", '{"path": "a"}', "-a", "asks"), 1),
        (("run", "-a", "nobody", "hi"), 2),
        (("explain", "asks", "--no-such-option"), 2),
        (("check",), 0),
    ],
)
def test_commands_exit_with_the_code_of_their_outcome(tmp_path: Path, words: tuple[str, ...], code: int) -> None:
    write(tmp_path, {"agents.d/asks.yaml": ASKS})
    assert agentsd(*words, cwd=tmp_path).returncode == code


def test_unusable_files_have_one_exit_code(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/asks.yaml": ASKS, "agentsd.yaml": "modle: x\n"})
    for words in (("check",), ("run", "hi"), ("explain", "asks"), ("agents", "list")):
        assert agentsd(*words, cwd=tmp_path).returncode == 78, words


def test_a_tool_thread_from_before_the_command_does_not_end_the_process(capfd: pytest.CaptureFixture[str]) -> None:
    ended = threading.Event()
    abandoned = threading.Thread(target=ended.wait, name="agentsd-tool", daemon=True)
    abandoned.start()
    try:
        with pytest.raises(SystemExit) as exited:
            main(["explain", "--help"])
    finally:
        ended.set()
    assert exited.value.code == 0
    assert "agentsd explain" in capfd.readouterr().out
