"""`agentsd mcp`: serves agents as tools to an MCP client, over standard input and output."""

from __future__ import annotations

import asyncio
import logging
import sys

import click

from framework.cli.location import locate
from framework.cli.options import project_path
from framework.cli.schema import refresh_schemas
from framework.cli.show import counted
from framework.cli.trace_export import trace_export
from framework.engine.runtime.runtime import Runtime
from framework.tools.child_processes import forbid_inspection
from framework.types.errors import ConfigError
from framework.types.extras import install_command

_HINT = "it speaks MCP with a program, not with people: add `agentsd mcp` to a client, see docs/serving-protocols.md"


@click.command("mcp")
@project_path
@click.option(
    "-a", "--agent", "agents", multiple=True, metavar="AGENT", help="Offer only this agent; repeatable. Default: all."
)
def command(path: str, agents: tuple[str, ...]) -> int:
    """Serve the agents of the project at PATH (default: this folder) as MCP tools, over standard input and output.

    MCP clients such as Claude Code, Cursor and Zed start it. Edits of the project's files take effect while it runs.
    Exit codes: 0 the client has closed the connection, 78 invalid files or settings.
    """
    location = locate(path)
    logging.getLogger("framework.config.generations.catalog").setLevel(logging.INFO)
    logging.getLogger("agentsd.runs").setLevel(logging.INFO)
    try:
        from framework.server.mcp import serve_stdio
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] in {"mcp", "mcp_types"}:
            raise ConfigError(f"`agentsd mcp` needs the MCP SDK: {install_command('agentsd[mcp]')}") from None
        raise

    def announce(runtime: Runtime) -> None:
        refresh_schemas(runtime)
        current = runtime.catalog.current
        for name in agents:
            current.agent(name)
        offered = counted(len(agents) or len(current.agents), "agent")
        click.echo(f"agentsd offers {offered} over MCP (generation {current.number})", err=True)
        if sys.stdin.isatty():
            click.echo(_HINT, err=True)

    settings = location.settings()
    forbid_inspection()
    with trace_export(settings):
        asyncio.run(serve_stdio(location.root, settings, agents or None, announce))
    return 0
