"""`agentsd agents`, `agentsd templates` and `agentsd explain`: what a project's agents are and may do."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from difflib import get_close_matches
from typing import Any

import click
import yaml

from framework.cli.grants import grant_line, read_grants, state_text
from framework.cli.location import (
    INPUT_OPTION,
    LOCALE_OPTION,
    PROJECT_OPTION,
    Location,
    arguments_of,
    locate,
    parse_inputs,
)
from framework.cli.project import find_tool, read_project
from framework.cli.show import counted, show_table, wrapped
from framework.cli.terminal import print_json, wrapped_line
from framework.config.agents.compile import Agent, template_names
from framework.config.agents.findings import template_variables
from framework.config.agents.plan_steps import file_plan
from framework.config.generations.generation import Generation
from framework.config.overlay import environment_in
from framework.config.settings import Settings
from framework.config.templates.prompts import PromptError, Prompts, shipped_templates
from framework.config.yaml.agent_keys import written_agent
from framework.config.yaml.document import BlockDumper
from framework.engine.context.grants import grant_covers
from framework.engine.context.policy import VerdictKind
from framework.engine.routing import NO_AGENTS
from framework.engine.runtime.agent_policy import RenderedPrompt, ToolPolicy, agent_policy, render_prompt
from framework.engine.runtime.project import Project, summarize_agents
from framework.engine.runtime.request import checked_inputs
from framework.engine.tool_call.call import ToolExplanation, explain_call, explain_tool, explain_tools
from framework.llm.message_shape import schema_changes, wire_schema
from framework.llm.providers import api_format
from framework.store.types import GrantQuery
from framework.tools.conditions import policy_views
from framework.tools.files import BaseFolder
from framework.tools.tool import Tool
from framework.tools.toolset import CLIENT
from framework.types.errors import EXIT_APPROVAL, EXIT_NEGATIVE, RequestError
from framework.types.grant import Grant
from framework.types.text import did_you_mean

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
        print_json([row.model_dump() for row in rows])
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
        print_json({"path": found.path, "digest": found.digest, "spec": spec})
    else:
        click.secho(f"# {found.path}, digest {found.digest}", dim=True)
        click.echo(
            yaml.dump(written_agent(found.spec), Dumper=BlockDumper, sort_keys=False, allow_unicode=True), nl=False
        )
    return 0


@click.command("templates")
@click.argument("name", required=False)
@PROJECT_OPTION
@click.option("--text", is_flag=True, help="Print the text of the template.")
@click.option("--shipped", is_flag=True, help="Show the template of agentsd, which the project's replaces.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def templates_command(name: str | None, project: str, text: bool, shipped: bool, as_json: bool) -> int:
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
        print_json([asdict(one) for one in variables])
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
        print_json(found)
        return 0
    show_table(
        ("template", "of", "used by"),
        [(str(one["name"]), str(one["origin"]), ", ".join(one["agents"])) for one in found],
    )
    return 0


WORDS: dict[VerdictKind, tuple[str, str]] = {
    "allow": ("allowed", "green"),
    "ask": ("asks", "yellow"),
    "deny": ("denied", "red"),
}
VERDICT_CHARS = 7
_MAX_CHANGES = 20


@click.command("explain")
@click.argument("agent")
@click.argument("tool", required=False)
@click.argument("arguments", required=False)
@PROJECT_OPTION
@INPUT_OPTION
@LOCALE_OPTION
@click.option("--connect", is_flag=True, help="Connect to the tool servers, to include their tools.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def explain_command(
    agent: str, tool: str | None, arguments: str | None, project: str, connect: bool, as_json: bool, **given: Any
) -> int:
    """Show which tools AGENT is offered, which need approval and which are denied, and the line that decides.

    With TOOL, show that tool only; with ARGUMENTS (a JSON object), that exact call.
    Exit codes: with TOOL, 0 allowed, 3 needs approval, 1 denied; else 0.
    """
    read = asyncio.run(read_project(locate(project), connect=connect))
    chosen = read.catalog.current.agent(agent)
    if tool is None:
        prompt = _prompt(chosen, read.settings, given["locale"], given["inputs"])
        data = _agent_data(chosen, read.catalog.current, prompt)
        print_json(data) if as_json else _show_agent(chosen, data)
        return 0
    found = find_tool(chosen.toolset.tools, tool)
    granted = _grants(locate(project), read, chosen, found)
    wrong: str | None = None
    if arguments is None:
        explanation = explain_tool(chosen, found)
    else:
        explanation, wrong = explain_call(chosen, found, arguments_of(arguments), read.base_path)
    model, changes = _sent_schema(chosen, found, read.settings)
    if as_json:
        data = ToolPolicy.of(explanation).model_dump(mode="json")
        rows = [{**grant.model_dump(mode="json"), "state": state} for grant, state in granted]
        more = {"invalid_arguments": wrong, "schema_changes": changes, "grants": rows}
        print_json(data | more)
    else:
        _show_tool(explanation, len(tool))
        for grant, state in granted:
            views = policy_views(found, arguments_of(arguments)) if arguments is not None else []
            is_call = bool(views) and grant_covers(grant, found, views, BaseFolder(read.base_path))
            covering = "covers this call: " if is_call else ""
            _show_row(
                "", len(tool), "granted", "green" if state == "active" else "red", covering + grant_line(grant, state)
            )
        if changes:
            click.echo(wrapped(f"the schema of its arguments, as {model} gets it: {'; '.join(changes)}"))
        if wrong:
            click.secho(f"  but its arguments are invalid: {wrong}", fg="red")
    return {"allow": 0, "ask": EXIT_APPROVAL, "deny": EXIT_NEGATIVE}[explanation.verdict.kind]


def _grants(location: Location, project: Project, agent: Agent, tool: Tool) -> list[tuple[Grant, str]]:
    """Return the approvals of calls of a tool that are remembered, each with its state; none if there is no store."""
    grants, now = asyncio.run(read_grants(location, GrantQuery(tool=tool.name)))
    own = [one for one in grants if one.is_active(now) and one.agent.rpartition("/")[2] == agent.name]
    return [(one, state_text(one, project, now)) for one in own]


def _sent_schema(agent: Agent, tool: Tool, settings: Settings) -> tuple[str, list[str]]:
    """Return the agent's model, and what its provider's form changes in the schema of a tool's arguments."""
    model = agent.spec.model or settings.model
    name = settings.models[model].model if model in settings.models else model
    api = "anthropic" if name.startswith("vertex/claude-") else api_format(name)
    written = tool.arguments.schema
    changes = list(schema_changes(written, wire_schema(written, api))) if api else []
    more = len(changes) - _MAX_CHANGES
    return name, [*changes[:_MAX_CHANGES], *([f"{more} more"] if more > 0 else [])]


def _prompt(agent: Agent, settings: Settings, locale: str | None, inputs: tuple[str, ...]) -> RenderedPrompt:
    try:
        return render_prompt(agent, settings, locale, checked_inputs(agent, parse_inputs(inputs)))
    except PromptError as error:
        raise RequestError(str(error)) from None


def _agent_data(agent: Agent, generation: Generation, prompt: RenderedPrompt) -> dict[str, Any]:
    policy = agent_policy(agent, generation).model_dump(mode="json", exclude_unset=True)
    return {**policy, **prompt.model_dump(), "environment": environment_in(generation.files)}


def _show_agent(agent: Agent, data: dict[str, Any]) -> None:
    about = f"({agent.path}): model {data['model']}, executor {data['executor']}"
    about += f", environment {data['environment']}" if data["environment"] else ""
    click.echo(wrapped_line(f"{click.style(agent.name, bold=True)} {about}", sys.stdout))
    for problem in data["stale"]:
        click.secho(f"last good version, because of: {problem}", fg="red")
    _show_tools(agent, data)
    _show_skills(data["skills"])
    if data["budgets"]:
        click.secho("\nshared budgets", bold=True)
    for budget in data["budgets"]:
        defined = f"{budget['limits']} ({', '.join(budget['places'])})" if "limits" in budget else "not defined"
        click.echo(wrapped(f"{budget['name']}: {defined}"))
    for place, names in data["hooks"].items():
        click.echo(f"\n{place}: {', '.join(names)}")
    _show_plan(agent)
    click.secho(f"\nsystem prompt, about {data['system_prompt_tokens']} tokens", bold=True)
    click.echo("\n".join(wrapped(line) for line in data["system_prompt"].splitlines()))


def _show_plan(agent: Agent) -> None:
    """Show the fixed plan of an agent: its steps in their order, with their conditions and loops."""
    if not agent.spec.plan.steps:
        return
    source = agent.place("plan", "steps")
    click.secho(f"\nfixed plan ({source})", bold=True)
    for step in file_plan(agent.spec, "", source).steps:
        after = f" (after {', '.join(step.depends_on)})" if step.depends_on else ""
        name = f"{step.tool}: " if step.tool and step.description != step.tool else ""
        click.echo(wrapped(f"{step.id}  {name}{step.description}{after}"))
        for term in step.terms:
            click.echo(wrapped(f"    {term}"))


def _show_client_rules(agent: Agent) -> None:
    """Show the rules for tools that clients bring, which are known only in their requests."""
    if rules := [str(rule) for rule, _ in agent.toolset.matches() if rule.rule.tool.startswith(CLIENT)]:
        click.echo(wrapped(f"and tools that clients bring: {', '.join(rules)}"))


def _show_tools(agent: Agent, data: dict[str, Any]) -> None:
    found = explain_tools(agent)
    sent, width = [one for one in found if one.is_sent], max((len(one.tool.name) for one in found), default=0)
    click.secho(f"\noffered to the model: {len(sent)} tools, about {data['tools_tokens']} tokens", bold=True)
    for one in sent:
        _show_tool(one, width)
    functions = [one for one in found if one.offered and one.in_scripts and not one.deferred]
    if functions:
        click.secho("\noffered as functions of scripts", bold=True)
    for one in functions:
        _show_tool(one, width)
    _show_client_rules(agent)
    if names := data["not_contacted"]:
        servers = f"{counted(len(names), 'server')} not contacted: {', '.join(names)}"
        hint = f"{servers}; use --connect to include their tools"
        click.secho(wrapped(hint), fg="yellow")
    # Every agent can read on in long results: that is said only where a rule changes it.
    later = [one for one in found if one.deferred and not (one.tool.source == "run" and one.verdict.kind == "allow")]
    if later:
        click.secho("\noffered once a run needs them", bold=True)
    for one in later:
        _show_tool(one, width)
    found = [
        one for one in found if one.offered or one.tool.source != "run" or one.verdict.rule != "not in tools.allow"
    ]
    silent = [one.tool.name for one in found if not one.offered and one.verdict.rule == "not in tools.allow"]
    click.secho("\nnot offered, and denied if called", bold=True)
    for one in found:
        if not one.offered and one.tool.name not in silent:
            _show_tool(one, width)
    if silent:
        names = f"not in tools.allow ({agent.place('skill_policy', 'allow')}): {', '.join(silent)}"
        click.echo(wrapped(names))


def _show_skills(skills: list[dict[str, Any]]) -> None:
    """Print what the agent may do with each skill of the project, and what the skill asks for."""
    if skills:
        click.secho("\nskills", bold=True)
    width = max((len(skill["name"]) for skill in skills), default=0)
    for skill in sorted(skills, key=lambda skill: (skill["use"] == "deny", skill["name"])):
        because = f": {skill['reason']}" if skill["reason"] else ""
        verdict: VerdictKind = "deny" if skill["use"] == "deny" else "allow"
        _show_verdict(skill["name"], width, verdict, f"{skill['rule']} ({skill['place']}){because}")
        if verdict == "allow":
            about = f"{skill['path']}, {counted(skill['files'], 'other file')}, about {skill['tokens']} tokens"
            asked = f"; asks for {', '.join(skill['asks_for'])}: not granted" if skill["asks_for"] else ""
            when = ", in the system prompt" if skill["use"] == "preload" else ""
            click.echo(
                wrapped_line(
                    f"  {'':<{width + VERDICT_CHARS + 4}}{about}{when}, digest {skill['digest']}{asked}",
                    sys.stdout,
                    hanging=width + VERDICT_CHARS + 6,
                )
            )


def _show_tool(found: ToolExplanation, width: int) -> None:
    _show_verdict(found.tool.name, width, found.verdict.kind, str(found.verdict))
    for conditional in found.conditions:
        _show_verdict("", width, conditional.verdict.kind, str(conditional))


def _show_verdict(name: str, width: int, kind: VerdictKind, text: str) -> None:
    _show_row(name, width, *WORDS[kind], text)


def _show_row(name: str, width: int, word: str, colour: str, text: str) -> None:
    row = f"  {name:<{width}}  {click.style(f'{word:<{VERDICT_CHARS}}', fg=colour)}  {text}"
    click.echo(wrapped_line(row, sys.stdout, hanging=width + VERDICT_CHARS + 6))
