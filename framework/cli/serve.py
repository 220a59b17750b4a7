"""`agentsd serve`: the project over HTTP, with its files watched."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
from contextlib import suppress
from typing import Any

import click

from framework.cli.exporting import exporting
from framework.cli.location import locate
from framework.cli.schema import refresh_schemas
from framework.cli.show import counted
from framework.engine.runtime.runtime import Runtime
from framework.types.errors import ConfigError

MMAP_THRESHOLD = 128 * 1024
"""Bytes: the default of glibc, before it raises it."""
_M_MMAP_THRESHOLD = -3  # in <malloc.h>
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
    logging.getLogger("framework.config.generations.catalog").setLevel(logging.INFO)
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
    settle_memory()
    with exporting(settings):
        asyncio.run(serve(location.root, settings.model_copy(update={"server": listen}), _tell))
    return 0


def settle_memory() -> None:
    """Prepare the process's memory for a long life with many edits.

    What imports leave lives as long as the process, so garbage collections, in which everything waits, skip it. And
    glibc keeps to its threshold for allocations of their own: otherwise it raises that with the first large block that
    is freed, and the heap grows by some kilobytes of unusable gaps with every edit. An operator's own
    MALLOC_MMAP_THRESHOLD_ counts; other C libraries are left as they are.
    """
    gc.collect()
    gc.freeze()
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD)


def _tell(url: str, runtime: Runtime) -> None:
    refresh_schemas(runtime)
    current = runtime.catalog.current
    agents = counted(len(current.agents), "agent")
    click.echo(f"agentsd serves {agents} at {url} (generation {current.number}; Ctrl-C ends it)")
