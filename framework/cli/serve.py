"""`agentsd serve`: the project over HTTP, with its files watched."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

import click

from framework.cli.exporting import exporting
from framework.cli.location import locate
from framework.cli.schema import refresh_schemas
from framework.cli.show import counted
from framework.engine.runtime import Runtime
from framework.types.errors import ConfigError

NEEDED = "`agentsd serve` needs FastAPI and uvicorn: pip install 'agentsd[serve]'"


@click.command("serve")
@click.argument("path", default=".")
@click.option("--host", help="Listen at this address, instead of server.host.")
@click.option("--port", type=click.IntRange(0, 65535), help="Listen at this port, instead of server.port; 0: any.")
def command(path: str, **given: Any) -> int:
    """Serve the project at PATH (default: this folder) over HTTP. Edits of its files go live meanwhile.

    Ends with SIGTERM or Ctrl-C, once the requests under way are done.
    Exit codes: 0 ended so, 1 nothing can listen there, 78 the files or settings cannot be used.
    """
    location = locate(path)
    logging.getLogger("framework.config.catalog").setLevel(logging.INFO)
    logging.getLogger("framework.server").setLevel(logging.INFO)
    logging.getLogger("agentsd.runs").setLevel(logging.INFO)
    try:
        from framework.server.process import serve
    except ModuleNotFoundError as missing:
        if missing.name in {"fastapi", "uvicorn"}:
            raise ConfigError(NEEDED) from None
        raise
    settings = location.settings()
    listen = settings.server.model_copy(update={name: value for name, value in given.items() if value is not None})
    _freeze_imports()
    with exporting(settings):
        asyncio.run(serve(location.root, settings.model_copy(update={"server": listen}), _tell))
    return 0


def _freeze_imports() -> None:
    """What imports leave lives as long as the process: garbage collections, in which everything waits, pass over it."""
    gc.collect()
    gc.freeze()


def _tell(url: str, runtime: Runtime) -> None:
    refresh_schemas(runtime)
    current = runtime.catalog.current
    agents = counted(len(current.agents), "agent")
    click.echo(f"agentsd serves {agents} at {url} (generation {current.number}; Ctrl-C ends it)")
