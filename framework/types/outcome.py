"""How a run can end, in one table: every surface (Python, HTTP, exit code, span) derives from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from framework.types.errors import AgentsdError, ApprovalRequired, ConfigError, RequestError
from framework.types.status import Status

Limit = Literal[
    "max_steps",
    "max_tool_calls",
    "max_total_tokens",
    "max_cost_usd",
    "timeout",
    "max_repeated_calls",
    "max_corrections",
    "max_replans",
    "context_full",
    "refused",
]
"""A `finish_reason` of a stopped run is the key of the limit in the agent file: no second vocabulary."""

EXIT_NEGATIVE = 1
EXIT_USAGE = 2
EXIT_APPROVAL = 3
EXIT_CONFIG = 78
EXIT_CANCELLED = 130
EXIT_CODES: Mapping[int, str] = {
    0: "it worked: answered, allowed, all cases passed, nothing differs",
    EXIT_NEGATIVE: "it did not: stopped by a limit, failed, denied, a case failed, something differs",
    EXIT_USAGE: "the command line is wrong, or names something that does not exist",
    EXIT_APPROVAL: "a human must approve",
    EXIT_CONFIG: "files or settings cannot be used",
    EXIT_CANCELLED: "cancelled with Ctrl-C or `agentsd runs cancel`",
}
"""Of every command, with their meaning; docs/records.md has the same table."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row: what the end of a run means on each surface."""

    status: Status
    http_status: int
    exit_code: int
    span_error: str | None
    """The span's `error.type`; none leaves its status unset."""


OUTCOMES: dict[str, Outcome] = {
    "final": Outcome("completed", 200, 0, None),
    **{limit: Outcome("stopped", 200, EXIT_NEGATIVE, limit) for limit in get_args(Limit)},
    "confirmation": Outcome("paused", 202, EXIT_APPROVAL, None),
    "cancelled": Outcome("cancelled", 200, EXIT_CANCELLED, "cancelled"),
}
"""By `finish_reason`. Any other reason is the code of an error: see `outcome`."""


def outcome_for(finish_reason: str, error_http_status: int = 500) -> Outcome:
    """Look a finish reason up; an unknown one is an error's code, and the run has failed."""
    return OUTCOMES.get(finish_reason) or Outcome("failed", error_http_status, EXIT_NEGATIVE, finish_reason)


def exit_code_of(error: AgentsdError) -> int:
    """The exit code of a command that ends with this error."""
    match error:
        case ConfigError():
            return EXIT_CONFIG
        case ApprovalRequired():
            return EXIT_APPROVAL
        case RequestError():
            return EXIT_USAGE
    return EXIT_NEGATIVE
