"""Serves the shop on loopback as `agentsd serve` does, with the scripted model in place of a provider's."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from shutil import copy, copytree

import uvicorn
from fastapi import FastAPI

from examples.console_demo.edits import EDITS, MISTAKE, apply_edit, undo_edits
from examples.console_demo.history import seed
from examples.console_demo.model import LIVE, Pace, shop_models
from framework import Runtime
from framework.server.event_stream import ConfigFeed, OpenStreams
from framework.server.process import create_app
from framework.server.startup import housekeeping
from framework.telemetry.metrics import ServerMetrics

SHOP = Path(__file__).resolve().parent / "shop"
LOG_PLUGIN = SHOP.parents[2] / "plugins/log_transform.py"
"""The starter's tool for logs, which the shop uses, too."""
STORE = "sqlite:///.agentsd/state.db"
"""URL of the shop's store."""


@dataclass(frozen=True, slots=True)
class ShopServer:
    """The running server."""

    url: str
    runtime: Runtime
    project: Path
    runs: int
    """Number of stored runs at the start."""


@asynccontextmanager
async def serve_shop(
    folder: Path, port: int = 0, visits: int = 260, *, pace: Pace = LIVE, broken: bool = True
) -> AsyncIterator[ShopServer]:
    """Copy the shop into a folder, run its two weeks, and serve it while the context is open.

    Args:
        folder: absolute path of the new project; a folder that contains one already is served as it is.
        port: on loopback; 0 selects a free one.
        visits: number of conversations in the two weeks.
        pace: of the model from now on.
        broken: leave a mistake in one agent file, as somebody who is just editing it.
    """
    if is_new := _copy_shop(folder):
        await seed(folder, STORE, datetime.now(UTC), visits)
        undo_edits(folder)
    feed, streams, metrics = ConfigFeed(), OpenStreams(), ServerMetrics()
    async with Runtime.open(folder, store=STORE, models=shop_models(pace)) as runtime:
        unsubscribe = runtime.catalog.subscribe(feed.add)
        for edit in EDITS if is_new else ():
            apply_edit(folder, edit)
            await runtime.reload()
        if is_new and broken:
            apply_edit(folder, MISTAKE)
            await runtime.reload()
        stored = len(await runtime.store.runs())
        async with housekeeping(runtime, metrics):
            with socket.create_server(("127.0.0.1", port)) as bound:
                server = _Server(create_app(runtime, metrics, feed=feed, streams=streams))
                task = asyncio.create_task(server.serve([bound]))
                try:
                    yield ShopServer(f"http://127.0.0.1:{bound.getsockname()[1]}", runtime, folder, stored)
                finally:
                    unsubscribe()
                    server.should_exit = True
                    streams.close()
                    feed.close()
                    await task


def _copy_shop(folder: Path) -> bool:
    """Copy the shop as it was before its edits. Return False if the folder contains a project already."""
    if (folder / "agentsd.yaml").exists():
        return False
    copytree(SHOP, folder, dirs_exist_ok=True)
    copy(LOG_PLUGIN, folder / "plugins")
    undo_edits(folder)
    return True


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers, so that Ctrl-C ends the program."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(uvicorn.Config(app, lifespan="off", log_config=None, timeout_graceful_shutdown=5))

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
