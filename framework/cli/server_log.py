"""The log of commands that serve until a signal stops them: as text, or as JSON for log collectors."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import click

from framework.config.settings import LogFormat
from framework.telemetry.json_log import JsonFormatter
from framework.types.errors import AgentsdError, exit_code_of

log = logging.getLogger("agentsd.server")

LOG_OPTION = click.option(
    "--log", "log_format", type=click.Choice(["text", "json"]), help="Format of the log on stderr. Default: log."
)
_LOGGERS = (
    "framework.config.generations.catalog",
    "framework.server",
    "framework.engine.work",
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
