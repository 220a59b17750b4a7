"""`agentsd tools`: lists the tools of a project, calls one, and accepts changed ones."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import click

from framework.cli.location import arguments_of, lenient_settings, locate, show_problem
from framework.cli.options import INPUT_OPTION, PROJECT_OPTION, parse_inputs
from framework.cli.project import find_tool, read_project
from framework.cli.show import show_table
from framework.cli.terminal import prints_on_stderr, say
from framework.engine.runtime.project import Project
from framework.engine.runtime.runtime import Runtime
from framework.engine.tool_call.call import RAISED_AT
from framework.tools.tool import Tool
from framework.types.errors import EXIT_CANCELLED, EXIT_NEGATIVE
from framework.types.messages import ToolResult

_COLUMNS = ("tool", "risk", "source", "description")
_EXIT_CODES = {"success": 0, "error": EXIT_NEGATIVE, "denied": EXIT_NEGATIVE, "cancelled": EXIT_CANCELLED}


@click.group("tools")
def command() -> None:
    """List a project's tools, or call one."""


@command.command("list")
@PROJECT_OPTION
@click.option("--connect/--offline", default=True, help="Connect to the tool servers, the default, or do not.")
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON, with their schemas.")
def list_tools(project: str, connect: bool, as_json: bool) -> int:
    """List all tools, by name; `agentsd explain AGENT` shows which of them an agent may call."""
    generation = asyncio.run(read_project(locate(project), connect=connect)).catalog.current
    tools = [tool for _, tool in sorted(generation.tools.items())]
    for problem in generation.external.problems:
        show_problem(problem)
    if as_json:
        rows: list[dict[str, Any]] = [
            {**tool.definition.model_dump(), "source": tool.source, "risk": tool.risk, "idempotent": tool.idempotent}
            for tool in tools
        ]
        click.echo(json.dumps(rows, ensure_ascii=False, indent=2))
        return 0
    show_table(_COLUMNS, [(tool.name, tool.risk, tool.source, _summary(tool)) for tool in tools])
    return 0


def _summary(tool: Tool) -> str:
    return (tool.definition.description.splitlines() or [""])[0]


@command.command("call")
@click.argument("tool")
@click.argument("arguments", required=False)
@click.option("-a", "--agent", required=True, metavar="AGENT", help="The agent whose policy applies.")
@INPUT_OPTION
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
def call(tool: str, arguments: str | None, agent: str, inputs: tuple[str, ...], project: str, as_json: bool) -> int:
    """Call TOOL with ARGUMENTS (a JSON object) as AGENT would, without a model.

    Exit codes: 0 succeeded, 1 failed or denied, 3 needs approval.
    """
    with prints_on_stderr():
        result = asyncio.run(_call(project, agent, tool, arguments_of(arguments), parse_inputs(inputs)))
    if as_json:
        click.echo(result.model_dump_json(indent=2))
    elif result.status == "success":
        text = (
            result.output if isinstance(result.output, str) else json.dumps(result.output, ensure_ascii=False, indent=2)
        )
        say(text)
    else:
        click.secho(f"{result.status}: ", fg="red", nl=False, err=True)
        say(result.error or "", err=True)
        if place := result.metadata.get(RAISED_AT):
            say(f"  raised at {place}", err=True)
    return _EXIT_CODES[result.status]


@command.command("accept")
@click.argument("tools", nargs=-1, required=True)
@PROJECT_OPTION
def accept(tools: tuple[str, ...], project: str) -> int:
    """Accept the current definitions of TOOLS of MCP servers, which have changed since they were accepted."""
    asyncio.run(_accept(project, tools))
    for tool in tools:
        click.echo(f"accepted {tool}")
    return 0


async def _accept(project: str, tools: tuple[str, ...]) -> None:
    location = locate(project)
    read = await Project.read(location.root, lenient_settings(location), connect=True)
    try:
        await read.catalog.accept(tools)
    finally:
        await read.catalog.close()


async def _call(project: str, agent: str, tool: str, arguments: dict[str, Any], inputs: dict[str, Any]) -> ToolResult:
    location = locate(project)
    async with Runtime.open(location.root, settings=lenient_settings(location), watch=False) as runtime:
        find_tool(runtime.catalog.current.agent(agent).toolset.tools, tool)
        return await runtime.call_tool(agent, tool, arguments, inputs=inputs)
