"""`agentsd templates`: lists the prompt templates of a project, or shows the variables and the text of one."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict

import click

from framework.cli.location import locate
from framework.cli.options import PROJECT_OPTION
from framework.cli.project import read_project
from framework.cli.show import show_table
from framework.config.agents.compile import template_names
from framework.config.agents.file_uses import template_variables
from framework.config.generations.generation import Generation
from framework.config.templates.prompts import Prompts, shipped_templates
from framework.types.errors import RequestError
from framework.types.text import did_you_mean


@click.command("templates")
@click.argument("name", required=False)
@PROJECT_OPTION
@click.option("--text", is_flag=True, help="Print the text of the template.")
@click.option("--shipped", is_flag=True, help="Show the template of agentsd, which the project's replaces.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def command(name: str | None, project: str, text: bool, shipped: bool, as_json: bool) -> int:
    """List the templates below prompts/ and those of agentsd, with the agents that use them.

    With NAME, list the variables of that template. A file prompts/plan.j2 replaces the planner's of all agents;
    `plan: {template: NAME}` in an agent's file chooses one for that agent.
    """
    catalog = asyncio.run(read_project(locate(project))).catalog
    generation = catalog.current
    agents = [agent for _, agent in sorted(generation.agents.items())]
    prompts = agents[0].prompts if agents else Prompts({})
    if name is None:
        return _list(generation, prompts, as_json=as_json)
    known = shipped_templates() if shipped else {one: prompts.text(one) for one in prompts.names()}
    if name not in known:
        raise RequestError(f"there is no template {name!r}{did_you_mean(name, sorted(known))}")
    if text:
        click.echo(known[name], nl=not known[name].endswith("\n"))
        return 0
    variables = template_variables(generation.agents, name)
    if as_json:
        click.echo(json.dumps([asdict(one) for one in variables], ensure_ascii=False, indent=2))
        return 0
    rows = [(one.name, ", ".join(one.agents) or "all", one.description) for one in variables]
    show_table(("variable", "agents", "value"), rows)
    return 0


def _list(generation: Generation, prompts: Prompts, *, as_json: bool) -> int:
    users: dict[str, list[str]] = {}
    for name, agent in sorted(generation.agents.items()):
        for template in agent.prompts.closure(template_names(agent.spec)):
            users.setdefault(template, []).append(name)
    found = [
        {
            "name": name,
            "origin": "project" if name in prompts.project_names else "agentsd",
            "agents": users.get(name, []),
        }
        for name in prompts.names()
    ]
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False, indent=2))
        return 0
    show_table(
        ("template", "of", "used by"),
        [(str(one["name"]), str(one["origin"]), ", ".join(one["agents"])) for one in found],
    )
    return 0
