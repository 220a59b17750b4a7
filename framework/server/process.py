"""`agentsd serve`: runs a runtime and its HTTP server until a signal stops them."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from framework.config.settings import ServerSettings, Settings
from framework.engine.runtime.runtime import Runtime
from framework.server.app import create_app
from framework.server.event_feed import ConfigFeed
from framework.server.housekeeping import housekeeping
from framework.server.listen_socket import bind_socket, server_url
from framework.server.open_streams import OpenStreams
from framework.server.opening import START_RETRY_SECONDS, open_working
from framework.server.stopping import Stopping
from framework.telemetry.prometheus import Scrape
from framework.telemetry.server_metrics import ServerMetrics

log = logging.getLogger(__name__)

_DRAIN_SECONDS = 20
"""Time limit for requests in progress when the server stops."""
_RESERVED_FILES = 256
"""Open files reserved for the store, tool servers, and connections that are being closed."""
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_LOG_INTERVAL_SECONDS = 60.0
"""Minimum interval between log lines about a lack of open files."""
_OnStarted = Callable[[str, Runtime], None]
"""Called with the server's URL and the runtime once the server accepts requests."""


async def serve(
    root: str | Path,
    settings: Settings,
    started: _OnStarted,
    scrape: Scrape | None = None,
    *,
    works: bool = True,
    allow_empty: bool = False,
) -> None:
    """Serve a project until SIGTERM or SIGINT. Then finish the requests in progress and tear down the plugins.

    Args:
        root: the project's folder, or its single agent file.
        settings: the address to listen on, and the store. API keys come from the live settings instead.
        started: called with the server's URL and the runtime once the server accepts requests.
        scrape: returns the metrics of this process for `/metrics`.
        works: execute runs too. Otherwise workers do, and this process accepts, decides, cancels and follows runs.
        allow_empty: serve a project without any valid agent, too.

    Raises:
        ConfigError: the settings or files are invalid, no agent is valid, or other machines can reach the address
            without keys.
        CannotListen: the address is in use or not permitted.
        StoreError: the store cannot be opened.
    """
    capacity = settings.work.concurrency if works else 0
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_file_limit_handler(loop))
    max_connections, metrics = connection_limit(settings.server), ServerMetrics()
    with bind_socket(settings.server) as bound, Stopping() as stopping:
        try:
            async with (
                open_working(
                    root,
                    settings,
                    capacity,
                    kind="serve",
                    retry_seconds=0 if works else START_RETRY_SECONDS,
                    allow_empty=allow_empty,
                ) as runtime,
                housekeeping(runtime, metrics, settings.store.retention) as stop_housekeeping,
            ):
                server = _Server(runtime, bound, max_connections, started, metrics, scrape)
                stopping.call_on_stop(stop_housekeeping, server.stop)
                await server.serve([bound])
        except asyncio.CancelledError:
            if not stopping.requested:
                raise
        stopping.check()


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers. Event streams do not delay its shutdown."""

    def __init__(
        self,
        runtime: Runtime,
        bound: socket.socket,
        max_connections: int,
        started: _OnStarted,
        metrics: ServerMetrics,
        scrape: Scrape | None,
    ) -> None:
        self._feed, self._streams = ConfigFeed(), OpenStreams()
        self._unsubscribe = runtime.catalog.subscribe(self._feed.add)
        self._report_started: Callable[[], None] = lambda: started(server_url(*bound.getsockname()[:2]), runtime)
        super().__init__(
            uvicorn.Config(
                create_app(runtime, self._feed, metrics, scrape, self._streams),
                lifespan="off",
                http="h11",  # limits header sizes; httptools, which uvicorn prefers, does not
                limit_concurrency=max_connections + 1,  # uvicorn refuses the connection that reaches its limit
                ws="none",
                log_config=None,  # the command line configures logging
                log_level="error",  # invalid HTTP from clients must not fill the log
                server_header=False,
                timeout_graceful_shutdown=_DRAIN_SECONDS,
            )
        )

    def stop(self) -> None:
        """End event streams, accept no more connections, finish the requests in progress, and return from `serve`."""
        self.should_exit = True
        self._streams.close()
        self._feed.close()  # immediately, not at uvicorn's next tick: `/ready` is 503 and event streams end

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: `Stopping` handles signals. uvicorn would handle them and raise them again at its end."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._report_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._unsubscribe()
        await super().shutdown(sockets)


def connection_limit(settings: ServerSettings) -> int:
    """Return the maximum of connections: that of the settings, lowered to the limit of open files."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY or settings.max_connections <= files - _RESERVED_FILES:
        return settings.max_connections
    lowered = min(settings.max_connections, max(files - _RESERVED_FILES, 16))
    log.warning(
        "server.max_connections is lowered from %d to %d: the limit of open files is %d (ulimit -n)",
        settings.max_connections,
        lowered,
        files,
    )
    return lowered


def _file_limit_handler(loop: asyncio.AbstractEventLoop) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """Return an exception handler for `loop` that logs a lack of open files once a minute, not at each attempt."""
    reported = -_LOG_INTERVAL_SECONDS

    def handle(running: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal reported
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in _OUT_OF_FILES and "socket" in context):
            running.default_exception_handler(context)
        elif loop.time() - reported >= _LOG_INTERVAL_SECONDS:
            reported = loop.time()
            log.error("cannot accept connections: %s; raise the limit of open files (ulimit -n)", error.strerror)

    return handle
