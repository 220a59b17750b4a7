"""`agentsd new`: adds a file to a project."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click

from framework.cli.init import write_files
from framework.cli.options import PROJECT_OPTION
from framework.cli.project_files import agent_files
from framework.types.errors import RequestError
from framework.types.spec import AGENT_NAME


@click.group("new")
def command() -> None:
    """Add an agent to a project."""


@command.command("agent")
@click.argument("name")
@PROJECT_OPTION
def new_agent(name: str, project: str) -> int:
    """Write agents.d/NAME.yaml, an agent that works with any model, and a test case for it."""
    if not re.fullmatch(AGENT_NAME, name):
        raise RequestError(f"not a name for an agent: {name!r}; it must match {AGENT_NAME}, such as support")
    folder = Path(project)
    if not folder.is_dir():
        raise RequestError(f"no such folder: {project}; create a project with `agentsd init`")
    files = {path: text.encode() for path, text in agent_files(name).items()}
    if existing := [path for path in files if (folder / path).exists()]:
        raise RequestError(f"{existing[0]} already exists; choose another name, or edit the file")
    written, _ = write_files(folder, files)
    for path in written:
        click.echo(f"  {path}")
    where = "" if project == "." else f" -C {shlex.quote(project)}"
    click.echo("\nTry it, no key needed:")
    click.secho(f'  agentsd run{where} -a {name} "calculate 2 + 3"', bold=True)
    return 0
