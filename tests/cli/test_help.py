"""The help of each command: printed from the index, which equals the commands, without importing them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from framework.cli.completion import INDEX_FILE, find_entry, read_index
from framework.cli.main import IndexedHelp
from framework.cli.main import agentsd as root
from tests.support.cases import each
from tests.support.command_index import index_text
from tests.support.commands import ENVIRONMENT, agentsd


def leaves(group: click.Group = root, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


COMMANDS = dict(leaves())


def test_the_index_equals_the_commands() -> None:
    assert INDEX_FILE.read_text("utf-8") == index_text(), "run: .venv/bin/python -m tests.support.command_index"


@each("width", [40, 80, 120])
@each("name", COMMANDS)
def test_the_help_from_the_index_is_that_of_the_command(name: str, width: int) -> None:
    _, entry = find_entry(read_index(), name.split())
    own, indexed = (
        click.Context(one, info_name=name, terminal_width=width, help_option_names=["-h", "--help"]).get_help()
        for one in (COMMANDS[name], IndexedHelp(entry))
    )
    assert indexed == own


@pytest.mark.parametrize("arguments", [("run", "--help"), ("run", "hi", "-h"), ("runs", "decide", "last", "--help")])
def test_help_imports_no_command(arguments: tuple[str, ...], tmp_path: Path) -> None:
    shows = "import sys, atexit; atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
    code = f"{shows}from framework.cli.main import main; main({[*arguments]!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: agentsd {arguments[0]} ")
    modules = set(done.stderr.split())
    assert "framework.cli.main" in modules
    assert not {"framework.cli.run", "framework.engine", "framework.config", "yaml", "jinja2", "rich"} & modules


def test_the_help_of_a_group_shows_whole_summaries(tmp_path: Path) -> None:
    for group in ("tools", "config", "runs", "agents", "keys", "new", "conversations"):
        done = agentsd(group, "--help", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert "..." not in done.stdout.replace("[ARGS]...", "")


def test_a_flag_after_two_dashes_is_text(tmp_path: Path) -> None:
    done = agentsd("run", "--", "--help", cwd=tmp_path)
    assert done.returncode == 2
    assert "agentsd init" in done.stderr, "the message reached the project, which has no agents"


@pytest.mark.parametrize(
    ("arguments", "meant"), [(("ruin", "--help"), "did you mean run"), (("tools", "lst", "-h"), "did you mean list")]
)
def test_the_help_of_an_unknown_command_is_an_error(tmp_path: Path, arguments: tuple[str, ...], meant: str) -> None:
    done = agentsd(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert meant in done.stderr


def test_check_imports_no_model_client_and_no_executor(tmp_path: Path) -> None:
    assert agentsd("init", cwd=tmp_path).returncode == 0
    shows = "import sys, atexit; atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
    code = f"{shows}from framework.cli.main import main; main(['check'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0
    modules = set(done.stderr.split())
    assert "framework.config.generations.catalog" in modules
    assert not {name for name in modules if name.startswith(("framework.engine.plan", "framework.llm.anthropic"))}


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        (("run",), "error: missing argument '[FILE] MESSAGE'."),
        (("chekc",), "error: there is no command 'chekc'; did you mean check?"),
        (("check", "--jsno"), "error: no such option '--jsno'. Did you mean '--json'?"),
        (("serve", "--port", "x"), "error: invalid value for '--port'"),
    ],
)
def test_a_mistake_in_a_command_line_begins_with_the_error(
    tmp_path: Path, arguments: tuple[str, ...], first: str
) -> None:
    done = agentsd(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(first)
    assert "\nUsage: agentsd" in done.stderr


def test_the_version_has_a_name(tmp_path: Path) -> None:
    assert re.fullmatch(r"agentsd \d+\.\d+\.\d+\S*\n", agentsd("--version", cwd=tmp_path).stdout)


@pytest.mark.parametrize("group", [(), ("runs",), ("config",), ("tools",)])
def test_a_group_without_a_command_shows_its_help(group: tuple[str, ...], tmp_path: Path) -> None:
    done = agentsd(*group, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == agentsd(*group, "--help", cwd=tmp_path).stdout
