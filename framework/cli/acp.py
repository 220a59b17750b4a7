"""`agentsd acp`: serves agents to an editor that speaks the Agent Client Protocol, over standard input and output."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import cast

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
from framework.types.spec import RISKS, Risk

_NOTHING = "none"
_HINT = "it speaks ACP with an editor, not with people: see docs/how-to/use-an-editor.md"


@click.command("acp")
@project_path
@click.option("-a", "--agent", metavar="AGENT", help="Offer only this agent. Default: all, as modes of a session.")
@click.option(
    "--decides",
    type=click.Choice([_NOTHING, *RISKS]),
    default="high",
    show_default=True,
    help="Highest risk of what may be approved in the editor.",
)
def command(path: str, agent: str | None, decides: str) -> int:
    """Serve the agents of the project at PATH (default: this folder) to an editor, over standard input and output.

    Editors such as Zed, JetBrains and Neovim start it. Edits of the project's files take effect while it runs. The
    folder and the tool servers that the editor sends are not used.
    Exit codes: 0 the editor has closed the connection, 78 invalid files or settings.
    """
    location = locate(path)
    logging.getLogger("framework.config.generations.catalog").setLevel(logging.INFO)
    logging.getLogger("agentsd.runs").setLevel(logging.INFO)
    try:
        from framework.server.acp import serve_acp
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] == "acp":
            raise ConfigError(f"`agentsd acp` needs the ACP SDK: {install_command('agentsd[acp]')}") from None
        raise

    def announce(runtime: Runtime) -> None:
        refresh_schemas(runtime)
        current = runtime.catalog.current
        if agent is not None:
            current.agent(agent)
        offered = counted(1 if agent else len(current.agents), "agent")
        click.echo(f"agentsd offers {offered} over ACP (generation {current.number})", err=True)
        if sys.stdin.isatty():
            click.echo(_HINT, err=True)

    settings = location.settings()
    forbid_inspection()
    highest = None if decides == _NOTHING else cast(Risk, decides)
    with trace_export(settings):
        asyncio.run(serve_acp(location.root, settings, agent, highest, announce))
    return 0
