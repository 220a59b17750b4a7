"""`agentsd serve`, `worker`, `mcp` and `acp`: serve a project until a signal, or until the client leaves."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import click

from framework.cli.location import locate, project_path
from framework.cli.project import SERVER_EXIT_SECONDS, refresh_schemas, trace_export
from framework.cli.show import counted
from framework.config.overlay import environment_in
from framework.config.settings import LogFormat, Settings
from framework.engine.runtime.presence import default_name
from framework.engine.runtime.runtime import Runtime
from framework.server.startup import run_worker
from framework.store import shown_url
from framework.store.types import WorkScope
from framework.telemetry.setup import collect_metrics
from framework.telemetry.spans import JsonFormatter
from framework.tools.child_processes import forbid_inspection
from framework.types.errors import AgentsdError, ConfigError, RequestError, exit_code_of
from framework.types.installation import install_command
from framework.types.spec import RISKS, Risk

log = logging.getLogger("agentsd.server")
LOG_OPTION = click.option(
    "--log", "log_format", type=click.Choice(["text", "json"]), help="Format of the log on stderr. Default: log."
)
_LOGGERS = (
    "framework.config.generations.catalog",
    "framework.server",
    "framework.engine.procrastinate",
    "agentsd.runs",
    log.name,
)
_QUIET = ("procrastinate", "psycopg.pool")
"""Loggers of packages whose errors are logged by those of this package, in one line instead of a traceback."""
_REQUESTS = "agentsd.requests"


class ServerLog:
    """The log of a command: reloads, runs and events of the server and, in JSON, each HTTP request."""

    def __init__(self) -> None:
        self._handlers = [(handler, handler.formatter) for handler in logging.getLogger().handlers]
        self.is_json = False

    def use(self, log_format: LogFormat) -> None:
        """Change the format of all further records."""
        self.is_json = log_format == "json"
        for handler, formatter in self._handlers:
            handler.setFormatter(JsonFormatter() if self.is_json else formatter)
        logging.getLogger(_REQUESTS).setLevel(logging.INFO if self.is_json else logging.WARNING)
        logging.captureWarnings(self.is_json)

    def announce(self, text: str) -> None:
        """Print a line on standard output or, in JSON, log it, so that the output has no other lines."""
        if self.is_json:
            log.info("%s", text)
        else:
            click.echo(text)


@contextmanager
def server_log(log_format: LogFormat | None) -> Iterator[ServerLog]:
    """Yield the log, which has this format from the start, or text. In JSON, an error that ends the command is logged.

    Raises:
        click.exceptions.Exit: such an error was logged.
    """
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.INFO)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    started = ServerLog()
    started.use(log_format or "text")
    try:
        yield started
    except AgentsdError as error:
        if not started.is_json:
            raise
        log.error("%s", error, extra={"agentsd": {"error": error.code}})
        raise click.exceptions.Exit(exit_code_of(error)) from None
    finally:
        started.use("text")


_MALLOC_OPTIONS = (
    ("MALLOC_MMAP_THRESHOLD_", -3, 128 * 1024),  # glibc's initial default, in bytes, before it adapts the value
    ("MALLOC_ARENA_MAX", -8, 2),
)
"""Environment variable, parameter of `mallopt` in <malloc.h>, and value."""
EMPTY_OPTION = click.option(
    "--allow-empty", is_flag=True, help="Start without any valid agent, and take those that are added or corrected."
)


@click.command("serve")
@project_path
@click.option("--host", metavar="HOST", help="Address to listen at. Default: server.host.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Port to listen at; 0: any free one. Default: server.port.",
)
@click.option("--no-work", is_flag=True, help="Accept, decide and follow runs only: `agentsd worker` executes them.")
@EMPTY_OPTION
@LOG_OPTION
def command(path: str, log_format: LogFormat | None, no_work: bool, allow_empty: bool, **given: Any) -> int:
    """Serve the project at PATH (default: this folder) over HTTP. Edits of its files take effect while it runs.

    SIGTERM or Ctrl-C ends it after the open requests.
    Exit codes: 0 ended normally, 1 cannot listen at the address, 78 invalid files or settings, or no valid agent.
    """
    with server_log(log_format) as log:
        location = locate(path)
        settings = location.settings()
        log.use(log_format or settings.log)
        listen = settings.server.model_copy(update={name: value for name, value in given.items() if value is not None})
        _serve(
            location.root,
            settings.model_copy(update={"server": listen}),
            log,
            works=not no_work,
            allow_empty=allow_empty,
        )
    return 0


def _serve(root: Path, settings: Settings, log: ServerLog, **options: bool) -> None:
    try:
        from framework.server.process import serve
    except ModuleNotFoundError as missing:
        if missing.name in {"fastapi", "uvicorn"}:
            needed = f"`agentsd serve` needs FastAPI and uvicorn: {install_command('agentsd[serve]')}"
            raise ConfigError(needed) from None
        raise
    forbid_inspection()
    tune_memory()
    with (
        trace_export(settings, exit_seconds=SERVER_EXIT_SECONDS),
        collect_metrics(settings.telemetry.service_name) as scrape,
    ):
        asyncio.run(serve(root, settings, partial(_announce, log), scrape, **options))


def tune_memory() -> None:
    """Tune memory for a long-running process with many threads and edits.

    Objects of imported modules live as long as the process, so garbage collections, which stop everything, skip them.
    glibc's mmap threshold is fixed: otherwise freeing a large block raises it, and each edit leaves some kilobytes of
    gaps in the heap. Two arenas are enough for threads of which one executes at a time: otherwise each thread reserves
    64 MB of addresses, and a process whose addresses are limited has none left. The operator's MALLOC_MMAP_THRESHOLD_
    and MALLOC_ARENA_MAX have precedence; other C libraries are not changed.
    """
    gc.collect()
    gc.freeze()
    for variable, parameter, value in _MALLOC_OPTIONS:
        if variable not in os.environ:
            with suppress(AttributeError, OSError):
                ctypes.CDLL(None).mallopt(parameter, value)


def _announce(log: ServerLog, url: str, runtime: Runtime) -> None:
    refresh_schemas(runtime)
    current = runtime.catalog.current
    agents = counted(len(current.agents), "agent")
    accepts = "serves" if runtime.work.capacity else "accepts runs of"
    name = environment_in(current.files)
    about = f"{f'environment {name}; ' if name else ''}generation {current.number}; Ctrl-C ends it"
    console = " and the console" if current.settings.server.console else ""
    log.announce(f"agentsd {accepts} {agents}{console} at {url} ({about})")


@click.command("worker")
@project_path
@click.option(
    "--concurrency",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Number of runs to execute at once. Default: work.concurrency.",
)
@click.option("--agents", metavar="A,B", help="Execute only runs of these agents. Default: all.")
@click.option("--queues", metavar="Q,R", help="Execute only runs that name one of these queues.")
@click.option(
    "--name", metavar="NAME", help="Name of this worker in the log and in lists. Default: the host and the process id."
)
@EMPTY_OPTION
@LOG_OPTION
def worker_command(
    path: str,
    concurrency: int | None,
    agents: str | None,
    queues: str | None,
    name: str | None,
    log_format: LogFormat | None,
    allow_empty: bool,
) -> int:
    """Execute the runs that wait in the store of the project at PATH (default: this folder).

    Any number of workers may use one store: PostgreSQL, or a SQLite file on this machine. `agentsd serve --no-work`
    accepts their runs. SIGTERM or Ctrl-C releases the runs in progress, which other workers continue.
    Exit codes: 0 ended normally, 1 the store cannot be opened, 78 invalid files or settings, or no valid agent.
    """
    with server_log(log_format) as log:
        location = locate(path)
        settings = location.settings()
        log.use(log_format or settings.log)
        capacity, scope = (
            concurrency or settings.work.concurrency,
            WorkScope(_names("--agents", agents), _names("--queues", queues)),
        )
        forbid_inspection()
        tune_memory()
        with trace_export(settings, exit_seconds=SERVER_EXIT_SECONDS):
            name = name or default_name()
            started = partial(_announce_worker, log, settings, name)
            working = run_worker(location.root, settings, capacity, scope, started, name, allow_empty=allow_empty)
            stopped = asyncio.run(working)
        runs = f"; {counted(stopped, 'run')} in progress" if stopped else ""
        log.announce(f"agentsd worker {name} has stopped{runs}")
    return 0


def _names(option: str, text: str | None) -> frozenset[str] | None:
    """Parse a list of names; raises RequestError if one is empty."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise RequestError(f"{option}: an empty name in {text!r}: write names with commas between them, such as a,b")
    return frozenset(names)


def _announce_worker(log: ServerLog, settings: Settings, name: str, runtime: Runtime) -> None:
    scope, current = runtime.work.scope, runtime.catalog.current
    parts = [
        f"{counted(len(scope.agents or current.agents), 'agent')} of {runtime.root.name or runtime.root}",
        f"{runtime.work.capacity} at once",
        f"queues {', '.join(sorted(scope.queues))}" if scope.queues else "all queues" if scope.agents is None else "",
        f"store {shown_url(settings.store.url.get_secret_value())}",
    ]
    shown = "; ".join(part for part in parts if part)
    log.announce(f"agentsd worker {name} executes runs: {shown} (generation {current.number}; Ctrl-C ends it)")


_Announce = Callable[[Runtime], None]


def _serve_stdio(
    path: str, protocol: str, hint: str, agents: tuple[str, ...], serve: Callable[[Path, Settings, _Announce], Any]
) -> int:
    """Serve a project over standard input and output until the client leaves; return the exit code.

    `protocol` is also the name of the extra with its SDK, which `serve` imports. A person who starts the command in a
    terminal reads the hint.
    """
    location = locate(path)
    for name in ("framework.config.generations.catalog", "agentsd.runs"):
        logging.getLogger(name).setLevel(logging.INFO)
    settings = location.settings()

    def announce(runtime: Runtime) -> None:
        refresh_schemas(runtime)
        current = runtime.catalog.current
        for name in agents:
            current.agent(name)
        offered = counted(len(agents) or len(current.agents), "agent")
        click.echo(f"agentsd offers {offered} over {protocol} (generation {current.number})", err=True)
        if sys.stdin.isatty():
            click.echo(hint, err=True)

    extra = protocol.lower()
    try:
        serving = serve(location.root, settings, announce)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] in {extra, f"{extra}_types"}:
            needed = f"`agentsd {extra}` needs the {protocol} SDK: {install_command(f'agentsd[{extra}]')}"
            raise ConfigError(needed) from None
        raise
    forbid_inspection()
    with trace_export(settings):
        asyncio.run(serving)
    return 0


_MCP_HINT = (
    "it speaks MCP with a program, not with people: add `agentsd mcp` to a client, see docs/serving-protocols.md"
)


@click.command("mcp")
@project_path
@click.option(
    "-a", "--agent", "agents", multiple=True, metavar="AGENT", help="Offer only this agent; repeatable. Default: all."
)
def mcp_command(path: str, agents: tuple[str, ...]) -> int:
    """Serve the agents of the project at PATH (default: this folder) as MCP tools, over standard input and output.

    MCP clients such as Claude Code, Cursor and Zed start it. Edits of the project's files take effect while it runs.
    Exit codes: 0 the client has closed the connection, 78 invalid files or settings.
    """

    def serve(root: Path, settings: Settings, announce: _Announce) -> Any:
        from framework.server.mcp import serve_stdio

        return serve_stdio(root, settings, agents or None, announce)

    return _serve_stdio(path, "MCP", _MCP_HINT, agents, serve)


_NOTHING = "none"
_ACP_HINT = "it speaks ACP with an editor, not with people: see docs/how-to/use-an-editor.md"


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
def acp_command(path: str, agent: str | None, decides: str) -> int:
    """Serve the agents of the project at PATH (default: this folder) to an editor, over standard input and output.

    Editors such as Zed, JetBrains and Neovim start it. Edits of the project's files take effect while it runs. The
    folder and the tool servers that the editor sends are not used.
    Exit codes: 0 the editor has closed the connection, 78 invalid files or settings.
    """

    def serve(root: Path, settings: Settings, announce: _Announce) -> Any:
        from framework.server.acp import serve_acp

        return serve_acp(root, settings, agent, None if decides == _NOTHING else cast("Risk", decides), announce)

    return _serve_stdio(path, "ACP", _ACP_HINT, (agent,) if agent else (), serve)
