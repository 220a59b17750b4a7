"""`agentsd serve`: runs a runtime and its HTTP server until a signal stops them, with the web page for people."""

from __future__ import annotations

import asyncio
import errno
import gzip
import logging
import os
import re
import resource
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import APIRouter, FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import Response
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from framework.config.settings import ServerSettings, Settings
from framework.console import BUILT, SOURCES, has_current_build
from framework.engine.runtime.runtime import Runtime
from framework.server.event_stream import ConfigFeed, OpenStreams
from framework.server.request_handling import RequestObserver, error_response, with_security_headers
from framework.server.routes import runtime_access_check, send_a2a_pushes, served_routes, server_state
from framework.server.startup import START_RETRY_SECONDS, Stopping, housekeeping, open_working
from framework.telemetry.metrics import ServerMetrics
from framework.telemetry.setup import Scrape
from framework.types.errors import AgentsdError, ConfigError
from framework.types.http import is_loopback, server_url

log = logging.getLogger(__name__)
_READABLE = (
    "etag", "location", "mcp-session-id", "retry-after", "x-agentsd-conversation-id", "x-agentsd-ignored",
    "x-agentsd-run-id", "x-request-id",
)  # fmt: skip
"""Headers of responses that scripts of other origins may read."""


def create_app(runtime: Runtime, metrics: ServerMetrics, **options: Any) -> FastAPI:
    """Create the app. It has no documentation pages, because these would load scripts from other sites."""
    app = FastAPI(
        title="agentsd",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # Tracing would add a span to any trace that a client names, even for health checks. Logs would quote requests.
        telemetry={"tracing": False, "logs": False},
    )
    app.add_middleware(_LiveOrigins, runtime)
    app.add_middleware(RequestObserver, metrics)
    if runtime.settings.server.console:  # first, because a visit requests many files
        app.router.routes.extend(console_routes().routes)
        app.state.serves_console = True
    state = server_state(runtime, runtime_access_check(runtime), **options)
    # `include_router` would build each route once more, 50 ms in all
    app.router.routes.extend(served_routes(state, with_probes=True).routes)

    @app.exception_handler(HTTPException)
    async def no_such_route(request: Request, error: HTTPException) -> Response:
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            error = HTTPException(error.status_code, headers={"allow": ", ".join(_methods_of_path(request))})
        return with_security_headers(error_response(error, request))

    return app


class _LiveOrigins(CORSMiddleware):
    """Lets scripts of pages of the origins in the live settings read responses."""

    def __init__(self, app: ASGIApp, runtime: Runtime) -> None:
        methods = ("GET", "POST", "PUT", "DELETE")
        super().__init__(app, allow_methods=methods, allow_headers=("*",), expose_headers=_READABLE)
        self._runtime = runtime

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serve = super().__call__ if self._runtime.settings.server.cors_origins else self.app
        await serve(scope, receive, send)

    def is_allowed_origin(self, origin: str) -> bool:
        return origin in self._runtime.settings.server.cors_origins


def _methods_of_path(request: Request) -> list[str]:
    """Return the methods of all routes with a request's path. Starlette's error names those of the first one only."""
    path = request.scope["path"]
    routes = iter_route_contexts(request.app.routes)
    return sorted({method for route in routes if route.path_regex.match(path) for method in route.methods or ()})


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
                housekeeping(
                    runtime, metrics, settings.store.retention, partial(send_a2a_pushes, runtime)
                ) as stop_housekeeping,
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
                create_app(runtime, metrics, feed=self._feed, scrape=scrape, streams=self._streams),
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


class CannotListen(AgentsdError):
    """The address is in use, or not permitted. Choose another one: `agentsd serve --port`."""

    code = "cannot_listen"


@contextmanager
def bind_socket(settings: ServerSettings) -> Iterator[socket.socket]:
    """Bind a socket to the address in the settings, and close it at the end. The caller accepts connections.

    Raises:
        ConfigError: the address is reachable from other machines and no key is set, or it does not resolve.
        CannotListen: the address is in use, or not permitted.
    """
    family, address = _resolve_address(settings)
    if not is_loopback(address[0]) and not settings.api_keys:
        raise ConfigError(
            f"{address[0]} is reachable from other machines: set server.api_keys (AGENTSD_SERVER__API_KEYS), or listen "
            f"on 127.0.0.1"
        )
    # asyncio disables the delay of small packets, 40 ms per response, only if the protocol is named.
    with closing(socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(address)
            bound.listen()
        except OSError as error:
            where = f"{settings.host}, port {settings.port}"
            failure = f"cannot listen on {where}: {error.strerror}"
            if error.errno == errno.EADDRINUSE:
                failure = f"{where} is in use: choose another port with --port or server.port, or stop the program"
                failure += " that uses it"
            elif error.errno == errno.EACCES:
                failure = f"{where}: permission denied; ports below 1024 require root"
            elif error.errno == errno.EADDRNOTAVAIL:
                failure = f"{where} is not an address of this machine"
            raise CannotListen(failure) from None
        yield bound


def _resolve_address(settings: ServerSettings) -> tuple[socket.AddressFamily, tuple[str, int]]:
    try:
        addresses = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise ConfigError(f"server.host: {settings.host!r} is not an address of this machine") from None
    family, _, _, _, address = min(addresses, key=lambda one: one[0] != socket.AF_INET)
    return family, (str(address[0]), int(address[1]))


_ASSETS = "/console"
_INDEX = "index.html"
_NOT_BUILT = (
    "the console is served as modules: Markdown is plain text, the editor is a plain field; "
    "`make console` builds it, and wheels contain it built"
)
_CONTENT_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
"""Content types of the assets by suffix. Files with other suffixes are not served."""
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Only files of this server are loaded, and text never becomes markup: without a trusted type, `innerHTML` throws."""
_PAGE_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_ASSET_HEADERS = {
    "cache-control": "public, max-age=31536000, immutable",
    "cross-origin-resource-policy": "same-origin",
    "vary": "accept-encoding",
    "x-content-type-options": "nosniff",
}
_GZIP = re.compile(r"\bgzip\b(?!\s*;\s*q=0(?:\.0*)?\s*(?:,|$))")
"""In `Accept-Encoding`: the client reads gzip."""


@dataclass(frozen=True, slots=True)
class Asset:
    """An asset as it is sent."""

    content: bytes
    compressed: bytes
    content_type: str


@dataclass(frozen=True, slots=True)
class ConsoleFiles:
    """The files of the console at one time, which are only served together."""

    digest: str
    """Of the page and of all assets as they are sent; part of the assets' URLs."""
    page: bytes
    assets: Mapping[str, Asset]
    """By path, such as `main.js`."""

    @classmethod
    def of(cls, contents: Mapping[str, bytes]) -> ConsoleFiles:
        """Return the files with these contents by path, which contain the page."""
        sent = {name: content for name, content in contents.items() if name != _INDEX}
        digest = sha256(contents[_INDEX])
        for name, content in sorted(sent.items()):
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        base = f"{_ASSETS}/{digest.hexdigest()[:16]}"
        page = contents[_INDEX].replace(b"{{base}}", base.encode())
        assets = {
            name: Asset(content, gzip.compress(content, mtime=0), _CONTENT_TYPES[Path(name).suffix])
            for name, content in sent.items()
        }
        return cls(base.rpartition("/")[2], page, assets)


class _Folder:
    """The folder of the files, which are read again once one has changed: a reload of the page shows an edit."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[object, ConsoleFiles] | None = None

    async def with_digest(self, digest: str) -> ConsoleFiles:
        """Return the files with this digest; raises HTTPException 404 if these are others."""
        found = self._read[1] if self._read else await asyncio.to_thread(self.latest)
        if found.digest != digest:
            raise HTTPException(404)
        return found

    def latest(self) -> ConsoleFiles:
        """Return the files as they are now; raises HTTPException 404 if there are none."""
        version = sorted(_versions(self._path))
        if self._read is None or self._read[0] != version:
            built = has_current_build(self._path)
            folder = self._path / BUILT if built else self._path
            contents = {
                name: Path(path).read_bytes()
                for path, *_ in version
                if (name := os.path.relpath(path, folder).replace(os.sep, "/")) != SOURCES
                and not name.startswith(("../", f"{BUILT}/"))
            }
            if _INDEX not in contents:
                raise HTTPException(404)
            if not built:
                log.info(_NOT_BUILT)
            self._read = version, ConsoleFiles.of(contents)
        return self._read[1]


def console_routes(folder: Path | None = None) -> APIRouter:
    """Return the routes. They are 404 if there are no files.

    Args:
        folder: the files. Default: those of the package.
    """
    routes = APIRouter()
    console = _Folder(folder or Path(str(files("framework.console"))))

    @routes.api_route("/", methods=["GET", "HEAD"], response_class=Response)
    async def page(request: Request) -> Response:
        """Return the page, or 304 if the client has it already."""
        latest = await asyncio.to_thread(console.latest)
        headers = {**_PAGE_HEADERS, "etag": f'"{latest.digest}"'}
        if latest.digest in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(latest.page, media_type="text/html; charset=utf-8", headers=headers)

    @routes.api_route(_ASSETS + "/{digest}/{path:path}", methods=["GET", "HEAD"], response_class=Response)
    async def asset(digest: str, path: str, request: Request) -> Response:
        """Return an asset of the page with this digest. Its content never changes."""
        found = (await console.with_digest(digest)).assets.get(path)
        if found is None:
            raise HTTPException(404)
        headers = {**_ASSET_HEADERS, "content-type": found.content_type}
        if _GZIP.search(request.headers.get("accept-encoding", "")):
            return Response(found.compressed, headers={**headers, "content-encoding": "gzip"})
        return Response(found.content, headers=headers)

    return routes


def _versions(folder: str | Path) -> Iterator[tuple[str, int, int]]:
    """Yield the path, time and size of each file that is served. Fast, because each visit of the page looks."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _versions(entry.path)
            elif (entry.name == _INDEX or Path(entry.name).suffix in _CONTENT_TYPES) and entry.is_file():
                stat = entry.stat()  # editors leave broken links, too: these are no files
                yield entry.path, stat.st_mtime_ns, stat.st_size
