"""`agentsd agents`: lists the agents of a project, or shows one with all defaults filled in."""

from __future__ import annotations

import asyncio
import json
from difflib import get_close_matches

import click
import yaml

from framework.cli.location import locate
from framework.cli.options import PROJECT_OPTION
from framework.cli.project import read_project
from framework.cli.show import show_table
from framework.config.yaml.agent_keys import written_agent
from framework.engine.routing.rules import NO_AGENTS
from framework.engine.runtime.project import summarize_agents

_COLUMNS = ("agent", "executor", "model", "tools", "description")
NO_VALID_AGENT = "no agent is valid: `agentsd check` lists the problems"


class _AgentsGroup(click.Group):
    """Reads `agentsd agents NAME` as `agentsd agents show NAME`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command to call."""
        if args[0] not in self.commands and not get_close_matches(args[0], self.commands, n=1):
            args = ["show", *args]
        return super().resolve_command(ctx, args)


@click.group("agents", cls=_AgentsGroup)
def command() -> None:
    """List a project's agents, or show one."""


@command.command("list")
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def list_agents(project: str, as_json: bool) -> int:
    """List the valid agents, by name."""
    read = asyncio.run(read_project(locate(project)))
    rows = summarize_agents(read.catalog.current)
    if as_json:
        click.echo(json.dumps([row.model_dump() for row in rows], ensure_ascii=False, indent=2))
        return 0
    if rows:
        show_table(_COLUMNS, [(row.name, row.executor, row.model, str(row.tools), row.description) for row in rows])
    else:
        click.echo(NO_VALID_AGENT if read.catalog.current.errors else NO_AGENTS)
    return 0


@command.command("show")
@click.argument("agent")
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def show(agent: str, project: str, as_json: bool) -> int:
    """Show AGENT with every key and its value in effect, defaults included."""
    read = asyncio.run(read_project(locate(project)))
    found = read.catalog.current.agent(agent)
    if as_json:
        spec = found.spec.model_dump(mode="json", by_alias=True)
        click.echo(json.dumps({"path": found.path, "digest": found.digest, "spec": spec}, ensure_ascii=False, indent=2))
    else:
        click.secho(f"# {found.path}, digest {found.digest}", dim=True)
        click.echo(yaml.safe_dump(written_agent(found.spec), sort_keys=False, allow_unicode=True), nl=False)
    return 0
