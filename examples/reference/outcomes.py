"""Error codes, exit codes and outcomes, from the tables of `framework/types`."""

from __future__ import annotations

from collections.abc import Iterator

from examples.reference.markdown import code, table
from framework.cli import config as config_command
from framework.server import agui, openai_api, openai_request, process, startup
from framework.server import errors as server_errors
from framework.tools import a2a_client, arguments, http, json_schema, remote_sources
from framework.tools.openapi import source as api_source
from framework.types import errors
from framework.types.errors import EXIT_CODES, OUTCOMES, AgentsdError, outcome_for
from framework.types.report import WARNINGS

MODULES = (
    *(errors, arguments, json_schema, http, remote_sources, api_source, a2a_client),
    *(server_errors, agui, openai_request, openai_api, process, startup, config_command),
)
"""Where errors are defined: those of runs and tools first, then those of the server and of commands."""
_OPENING = """\
What each error code means and what to do about it, and what the end of a run means for HTTP
clients, scripts and traces.
"""


def outcomes_page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Errors and outcomes\n"
    yield _OPENING
    yield "## Error codes\n"
    yield "The exit code is that of a command. A run that fails has the code as its `finish_reason`.\n"
    heads = ("code", "HTTP, class", "cause and fix")
    rows = [(code(kind.code), f"{kind.http_status}, {code(kind.__name__)}", _text(kind)) for kind in error_classes()]
    yield from table(heads, rows)
    yield "\n## Outcomes of runs\n"
    columns = ("`finish_reason`", "`status`", "HTTP", "exit code")
    ends: dict[tuple[str, str, str], list[str]] = {}
    for reason, end in OUTCOMES.items():
        ends.setdefault((code(end.status), str(end.http_status), str(end.exit_code)), []).append(code(reason))
    failed = outcome_for("")
    others = ("any error code", code(failed.status), "of the error", str(failed.exit_code))
    yield from table(columns, [*((", ".join(reasons), *end) for end, reasons in ends.items()), others])
    yield "\n## Exit codes\n"
    yield from table(("exit code", "meaning"), [(code(str(number)), text) for number, text in EXIT_CODES.items()])
    yield "\n## Warnings\n"
    yield "A warning is an event of a run that continues.\n"
    yield from table(("code", "meaning"), [(code(name), text) for name, text in WARNINGS.items()])


def error_classes() -> list[type[AgentsdError]]:
    """Return all classes of errors, in the order of their modules."""
    return [
        kind
        for module in MODULES
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, AgentsdError) and kind is not AgentsdError
        if kind.__module__ == module.__name__
    ]


def _text(kind: type[AgentsdError]) -> str:
    """Return the docstring of an error up to its arguments."""
    return (kind.__doc__ or "").split("Args:")[0]
