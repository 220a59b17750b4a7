"""How a run can end, in one table: every surface (Python, HTTP, exit code, span) derives from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Status = Literal["running", "completed", "stopped", "paused", "cancelled", "failed"]
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

EXIT_USAGE = 2
EXIT_CONFIG = 78


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
    **{limit: Outcome("stopped", 200, 1, limit) for limit in get_args(Limit)},
    "confirmation": Outcome("paused", 202, 3, None),
    "cancelled": Outcome("cancelled", 200, 130, "cancelled"),
}
"""By `finish_reason`. Any other reason is the code of an error: see `outcome`."""


def outcome(finish_reason: str, error_http_status: int = 500) -> Outcome:
    """Look a finish reason up; an unknown one is an error's code, and the run has failed."""
    return OUTCOMES.get(finish_reason) or Outcome("failed", error_http_status, 1, finish_reason)
