"""`agentsd worker`: executes runs that wait in a store, next to any number of other workers."""

from __future__ import annotations

import asyncio
from functools import partial

import click

from framework.cli.exporting import SERVER_EXIT_SECONDS, exporting
from framework.cli.location import locate
from framework.cli.options import project_path
from framework.cli.serve import EMPTY_OPTION, LOG_OPTION, ServerLog, server_log, tune_memory
from framework.cli.show import counted
from framework.config.settings import LogFormat, Settings
from framework.engine.runtime.presence import default_name
from framework.engine.runtime.runtime import Runtime
from framework.server.worker import run_worker
from framework.store.types import WorkScope
from framework.store.url import shown_url
from framework.tools.child_processes import forbid_inspection
from framework.types.errors import RequestError


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
def command(
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
        capacity, scope = concurrency or settings.work.concurrency, _scope(agents, queues)
        forbid_inspection()
        tune_memory()
        with exporting(settings, exit_seconds=SERVER_EXIT_SECONDS):
            name = name or default_name()
            started = partial(_announce, log, settings, name)
            working = run_worker(location.root, settings, capacity, scope, started, name, allow_empty=allow_empty)
            stopped = asyncio.run(working)
        runs = f"; {counted(stopped, 'run')} in progress" if stopped else ""
        log.announce(f"agentsd worker {name} has stopped{runs}")
    return 0


def _scope(agents: str | None, queues: str | None) -> WorkScope:
    return WorkScope(_names("--agents", agents), _names("--queues", queues))


def _names(option: str, text: str | None) -> frozenset[str] | None:
    """Parse a list of names; raises RequestError if one is empty."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise RequestError(f"{option}: an empty name in {text!r}: write names with commas between them, such as a,b")
    return frozenset(names)


def _announce(log: ServerLog, settings: Settings, name: str, runtime: Runtime) -> None:
    scope, current = runtime.work.scope, runtime.catalog.current
    parts = [
        f"{counted(len(scope.agents or current.agents), 'agent')} of {runtime.root.name or runtime.root}",
        f"{runtime.work.capacity} at once",
        f"queues {', '.join(sorted(scope.queues))}" if scope.queues else "all queues" if scope.agents is None else "",
        f"store {shown_url(settings.store.url.get_secret_value())}",
    ]
    shown = "; ".join(part for part in parts if part)
    log.announce(f"agentsd worker {name} executes runs: {shown} (generation {current.number}; Ctrl-C ends it)")
