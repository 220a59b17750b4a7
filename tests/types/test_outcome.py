"""The table of run outcomes."""

from __future__ import annotations

import pytest

from framework.types.errors import OUTCOMES, outcome_for
from framework.types.spec import Limits

LIMIT_REASONS = [reason for reason, row in OUTCOMES.items() if row.status == "stopped"]


@pytest.mark.parametrize(
    ("reason", "status", "http", "code", "span"),
    [
        ("final", "completed", 200, 0, None),
        ("max_steps", "stopped", 200, 1, "max_steps"),
        ("timeout", "stopped", 200, 1, "timeout"),
        ("confirmation", "paused", 202, 3, None),
        ("cancelled", "cancelled", 200, 130, "cancelled"),
        ("model_error", "failed", 500, 1, "model_error"),
    ],
)
def test_each_finish_reason_has_one_meaning_on_every_interface(
    reason: str, status: str, http: int, code: int, span: str | None
) -> None:
    row = outcome_for(reason)
    assert (row.status, row.http_status, row.exit_code, row.span_error) == (status, http, code, span)


def test_a_limit_is_named_by_its_key_in_the_agent_file() -> None:
    later = {"max_replans", "context_full", "length", "budget", "refused"}
    assert {reason for reason in LIMIT_REASONS if reason not in Limits.model_fields} == later
