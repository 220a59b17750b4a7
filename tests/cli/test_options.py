"""Options have one spelling in all commands, and each has a metavar."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from framework.cli.main import agentsd as root
from tests.support.cases import each
from tests.support.commands import agentsd
from tests.support.projects import agent, write

WITHOUT_PROJECT = {"keys new", "completion"}
"""Commands that do not work on a project."""
SPELLINGS = {
    "project": ("-C", "--project"),
    "conversation": ("-c", "--conversation"),
    "inputs": ("-i", "--input"),
    "model": ("-m", "--model"),
    "agent": ("-a", "--agent"),
    "tenant": ("-t", "--tenant"),
    "user": ("-u", "--user"),
}
"""Flags of an option by the name of its parameter."""
OTHERS = {("runs decide", "user")}
"""Options with the name of a common one and another meaning: `--by` is who decides."""
CONTINUING = ("run", "chat", "runs list", "conversations show", "conversations delete")
"""Commands that need the owner of a conversation whose id several have."""
OFFLINE_ECHO = {"model": "offline", "skill_policy": "{allow: [echo]}"}


def commands(group: click.Group = root, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))
        else:
            yield " ".join((*path, name)), found


COMMANDS = dict(commands())


@each("name", COMMANDS)
def test_every_option_has_the_common_spelling_and_a_metavar(name: str) -> None:
    found = COMMANDS[name]
    options = [param for param in found.params if isinstance(param, click.Option)]
    for option in options:
        assert option.is_flag or option.metavar or isinstance(option.type, click.Choice), f"{option.opts}: what value?"
        if option.name in SPELLINGS and (name, option.name) not in OTHERS:
            assert tuple(option.opts) == SPELLINGS[option.name]
    assert name not in CONTINUING or {"user", "tenant"} <= {option.name for option in options}
    assert name in WITHOUT_PROJECT or any(option.name == "project" for option in options)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {
        "p/agents.d/one.yaml": agent(
            "one", model="offline", inputs="{city: {required: true}}", skill_policy="{allow: [echo]}"
        ),
        "p/agents.d/two.yaml": agent("two", model="offline"),
    }
    return write(tmp_path, files)


@pytest.mark.parametrize(
    "arguments",
    [("check", "-C", "p"), ("check", "p"), ("check", "-C", "p", "agents.d/two.yaml"), ("schema", "-C", "p")],
    ids=" ".join,
)
def test_the_project_is_an_option_or_a_path(project: Path, arguments: tuple[str, ...]) -> None:
    done = agentsd(*arguments, cwd=project)
    assert done.returncode == 0, done.stderr


def test_a_path_is_relative_to_the_project(project: Path) -> None:
    done = agentsd("check", "-C", "p", "agents.d/three.yaml", cwd=project)
    assert done.returncode == 2
    assert "no such file or folder: p/agents.d/three.yaml" in done.stderr


def test_a_tool_is_called_with_the_inputs_of_its_agent(project: Path) -> None:
    call = ("tools", "call", "-C", "p", "-a", "one", "echo", '{"text": "hi"}')
    assert agentsd("tools", "list", "-C", "p", cwd=project).returncode == 0
    done = agentsd(*call, cwd=project)
    assert done.returncode == 2
    assert "-i city=VALUE" in done.stderr
    done = agentsd(*call, "-i", "city=Rome", cwd=project)
    assert (done.returncode, done.stdout) == (0, "hi\n")


def test_explain_rejects_an_unknown_input(project: Path) -> None:
    done = agentsd("explain", "-C", "p", "one", "-i", "ciyt=Rome", cwd=project)
    assert done.returncode == 2
    assert "unknown input 'ciyt' of agent 'one'; did you mean city?" in done.stderr


def test_the_variable_replaces_the_model_of_an_agent_file(project: Path) -> None:
    run = ("run", "-C", "p", "-a", "two", "echo hi")
    assert agentsd(*run, cwd=project).returncode == 0
    done = agentsd(*run, cwd=project, AGENTSD_MODEL="openai/gpt-5.4-mini")
    assert done.returncode == 1
    assert "openai/gpt-5.4-mini needs an API key" in done.stderr
    assert agentsd(*run, "-m", "offline", cwd=project, AGENTSD_MODEL="openai/gpt-5.4-mini").returncode == 0


def test_an_unknown_model_is_an_error_with_the_closest_name(project: Path) -> None:
    for arguments, environment in ((("-m", "oflfine"), {}), ((), {"AGENTSD_MODEL": "oflfine"})):
        done = agentsd("run", "-C", "p", *arguments, "-a", "two", "hi", cwd=project, **environment)
        assert done.returncode != 0
        assert "unknown model 'oflfine'; did you mean offline?" in done.stderr
