"""The routes of a runtime on a real port, in the event loop of the test: for clients that need a URL."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from framework import Runtime, tool
from framework.server.event_stream import ConfigFeed, OpenStreams
from framework.server.process import console_routes, create_app
from framework.server.routes import runtime_access_check, served_routes, server_state
from framework.store.types import RunInfo, RunQuery
from framework.telemetry.metrics import ServerMetrics


@tool(risk="low", name="clock.now")
async def now() -> str:
    """The time."""
    return "noon"


@dataclass
class Serving:
    """A server and its runtime."""

    url: str
    runtime: Runtime

    @property
    def v1(self) -> str:
        """The base URL for OpenAI's clients."""
        return f"{self.url}/v1"

    async def runs(self) -> list[RunInfo]:
        """Return all recorded runs, the newest first."""
        return [*await self.runtime.store.runs(RunQuery())]


class _Uvicorn(uvicorn.Server):
    """uvicorn's server without its signal handlers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(
    root: Path, *, drain: int = 5, streams: OpenStreams | None = None, **options: Any
) -> AsyncIterator[Serving]:
    """Open a runtime with these options and serve its routes until the context ends.

    Args:
        root: the project.
        drain: seconds that requests in progress get to end.
        streams: the streams of runs, for a test that closes them as a server does that stops.
        **options: options of `Runtime.open`.
    """
    async with Runtime.open(root, **{"watch": False, "single_user": True, **options}) as runtime:
        app = FastAPI(openapi_url=None)
        state = server_state(runtime, runtime_access_check(runtime), streams)
        app.router.routes.extend(served_routes(state).routes)  # cheaper than `include_router`
        async with _listening(app, drain) as url:
            yield Serving(url, runtime)


@asynccontextmanager
async def serving_everything(root: Path, console: Path | None = None, **options: Any) -> AsyncIterator[Serving]:
    """Open a runtime with these options and serve the whole app of `agentsd serve`, the console included.

    Args:
        root: the project.
        console: a folder with another console, for a project that switches the one of the package off.
        **options: options of `Runtime.open`.
    """
    feed, streams = ConfigFeed(), OpenStreams()
    async with Runtime.open(root, **{"watch": False, "single_user": False, **options}) as runtime:
        unsubscribe = runtime.catalog.subscribe(feed.add)
        app = create_app(runtime, ServerMetrics(), feed=feed, streams=streams)
        if console:
            app.router.routes.extend(console_routes(console).routes)
        async with _listening(app, 5) as url:
            try:
                yield Serving(url, runtime)
            finally:
                unsubscribe()
                streams.close()
                feed.close()


@asynccontextmanager
async def _listening(app: FastAPI, drain: int) -> AsyncIterator[str]:
    """Serve an app on a free port until the context ends; yield its URL."""
    with socket.socket(proto=socket.IPPROTO_TCP) as bound:  # no delay of small packets, as in `agentsd serve`
        bound.bind(("127.0.0.1", 0))
        bound.listen(128)
        config = uvicorn.Config(app, lifespan="off", log_config=None, timeout_graceful_shutdown=drain)
        server = _Uvicorn(config)
        task = asyncio.create_task(server.serve([bound]))
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task
