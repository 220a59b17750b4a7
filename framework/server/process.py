"""`agentsd serve`: a runtime and its server as one process, from the first signal to the last request."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from framework.config.settings import Settings
from framework.engine.runtime.runtime import Runtime
from framework.server.app import create_app
from framework.server.connections import BACKLOG, ConnectionLimits, file_limit_handler, protocol_class
from framework.server.event_feed import ConfigFeed
from framework.server.housekeeping import housekeeping
from framework.server.listen_socket import bind_socket, server_url

_DRAIN_SECONDS = 20
"""How long requests that are under way may still take when the server is to stop."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_OnStarted = Callable[[str, Runtime], None]
"""Is told the server's URL once it can be asked."""


async def serve(root: str | Path, settings: Settings, started: _OnStarted) -> None:
    """Serve a project until SIGTERM or SIGINT; then requests under way are finished, and plugins torn down.

    Args:
        root: the project's folder, or its one file.
        settings: where to listen, and where runs are kept; who may ask, the files say at each moment.
        started: is told the server's URL once it can be asked.

    Raises:
        ConfigError: the settings cannot be used, nothing may go live, or others could reach it without a key.
        CannotListen: the address is in use.
        StoreError: the store cannot be opened.
    """
    store = settings.store.url.get_secret_value()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(file_limit_handler(loop))
    limits = ConnectionLimits.of(settings.server)
    with bind_socket(settings.server) as bound, _Stopping() as stopping:
        try:
            async with Runtime.open(root, store=store) as runtime, housekeeping(runtime, settings.store.retention):
                await _Server(runtime, bound, limits, stopping, started).serve([bound])
        except asyncio.CancelledError:
            if not stopping.asked:
                raise


class _Stopping:
    """What signals do: the first stops what is there to be stopped, each further one does not wait for it."""

    def __init__(self) -> None:
        self.asked = False
        task = asyncio.current_task()
        assert task is not None
        self._abandon = task.cancel
        self.stop: Callable[[], object] = task.cancel

    def __enter__(self) -> _Stopping:
        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number in _SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)

    def _on_signal(self) -> None:
        first, self.asked = not self.asked, True
        (self.stop if first else self._abandon)()


class _Server(uvicorn.Server):
    """uvicorn's server, but it leaves signals to us, and listeners to events do not keep it from ending."""

    def __init__(
        self, runtime: Runtime, bound: socket.socket, limits: ConnectionLimits, stopping: _Stopping, started: _OnStarted
    ) -> None:
        self._bound = bound
        self._feed = ConfigFeed()
        self._forget = runtime.catalog.subscribe(self._feed.add)
        self._tell: Callable[[], None] = lambda: started(server_url(*bound.getsockname()[:2]), runtime)
        super().__init__(
            uvicorn.Config(
                create_app(runtime, self._feed),
                lifespan="off",
                http=protocol_class(limits),  # on h11, which bounds headers; httptools, used where installed, does not
                backlog=BACKLOG,
                ws="none",
                log_config=None,  # the log is the command line's
                log_level="error",  # what anybody may send that is no HTTP is not for it
                server_header=False,
                timeout_graceful_shutdown=_DRAIN_SECONDS,
            )
        )
        stopping.stop = self._stop

    def _stop(self) -> None:
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are for `_Stopping`: uvicorn would take them, and raise them again once it has ended."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._bound.listen(socket.SOMAXCONN)  # asyncio takes one number for the queue and for what it accepts at once
        self._tell()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._feed.close()
        self._forget()
        await super().shutdown(sockets)
