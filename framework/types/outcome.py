"""The table of a run's outcomes, from which its status, HTTP status, exit code and span error derive."""

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
    "budget",
    "length",
    "refused",
]
"""Limits that stop a run. The `finish_reason` of a stopped run is the key of the limit in the agent file."""

EXIT_NEGATIVE = 1
EXIT_USAGE = 2
EXIT_APPROVAL = 3
EXIT_CONFIG = 78
EXIT_CANCELLED = 130
EXIT_CODES: Mapping[int, str] = {
    0: "success: answered, allowed, all cases passed, no differences",
    EXIT_NEGATIVE: "failure: stopped by a limit, failed, denied, a case failed, differences found",
    EXIT_USAGE: "invalid command line, or it names something that does not exist",
    EXIT_APPROVAL: "a person must approve",
    EXIT_CONFIG: "invalid files or settings",
    EXIT_CANCELLED: "cancelled with Ctrl-C or `agentsd runs cancel`",
}
"""Exit codes of all commands and their meaning. docs/records.md contains the same table."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run as each interface reports it."""

    status: Status
    http_status: int
    exit_code: int
    span_error: str | None
    """`error.type` of the span; None leaves the span's status unset."""


OUTCOMES: dict[str, Outcome] = {
    "final": Outcome("completed", 200, 0, None),
    **{limit: Outcome("stopped", 200, EXIT_NEGATIVE, limit) for limit in get_args(Limit)},
    "confirmation": Outcome("paused", 202, EXIT_APPROVAL, None),
    "cancelled": Outcome("cancelled", 200, EXIT_CANCELLED, "cancelled"),
}
"""Outcomes by `finish_reason`. Any other reason is the code of an error: see `outcome_for`."""


def outcome_for(finish_reason: str, error_http_status: int = 500) -> Outcome:
    """Return the outcome for a finish reason. A reason without an entry is the code of an error: the run failed."""
    return OUTCOMES.get(finish_reason) or Outcome("failed", error_http_status, EXIT_NEGATIVE, finish_reason)


def exit_code_of(error: AgentsdError) -> int:
    """Return the exit code of a command that fails with this error."""
    match error:
        case ConfigError():
            return EXIT_CONFIG
        case ApprovalRequired():
            return EXIT_APPROVAL
        case RequestError():
            return EXIT_USAGE
    return EXIT_NEGATIVE
