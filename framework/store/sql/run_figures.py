"""SQL for the figures of single runs: tokens, cost, active time, tool calls, and the models that were called.

They have columns, which are written when a run pauses or ends. Runs in progress, and those that an earlier version
has stored, have them in their state only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter

from framework.store.sql.schema import runs
from framework.store.sql.texts import storable
from framework.types.messages import ModelUse
from framework.types.state import RunState

_PATHS: Mapping[str, tuple[str, ...]] = {
    "input_tokens": ("usage", "prompt_tokens"),
    "output_tokens": ("usage", "completion_tokens"),
    "cached_tokens": ("usage", "cached_tokens"),
    "cost_usd": ("usage", "cost_usd"),
    "elapsed_ms": ("elapsed_ms",),
    "tool_calls": ("tool_calls",),
}
"""Where a run's state contains the value of a column. The state leaves out what is 0."""
_MODEL_USES: TypeAdapter[dict[str, ModelUse]] = TypeAdapter(dict[str, ModelUse])
UNMEASURED = dict.fromkeys((*_PATHS, "unpriced_calls", "model_uses"))
"""The columns of a run in progress."""


def figure_columns(state: RunState) -> dict[str, Any]:
    """Return the columns of a run that pauses or ends."""
    usage, uses = state.usage, state.model_uses
    return {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "cost_usd": usage.cost_usd,
        "elapsed_ms": state.elapsed_ms,
        "tool_calls": state.tool_calls,
        "unpriced_calls": sum(use.unpriced_calls for use in uses.values()),
        "model_uses": _uses_json(uses) if uses else None,
    }


def _uses_json(uses: dict[str, ModelUse]) -> str:
    """Return JSON that PostgreSQL accepts, whatever the names of the models contain."""
    return storable(_MODEL_USES.dump_json(uses, exclude_defaults=True).decode()).replace("\\u0000", "\\ufffd")


def figure(name: str, dialect: str) -> sa.ColumnElement[Any]:
    """Return a figure of a run as a number, whether it is in its column or in its state."""
    value = _state(dialect)[_PATHS[name]].as_float()
    column = runs.c[name]
    return sa.func.coalesce(column, sa.cast(value, column.type), sa.literal_column("0"))


def has_unknown_cost(dialect: str) -> sa.ColumnElement[bool]:
    """Return the condition that a call of a run has an unknown price; without the column, a cost of 0 means that."""
    unpriced, is_free = runs.c.unpriced_calls, figure("cost_usd", dialect) == 0
    return sa.case((unpriced.is_not(None), unpriced > 0), else_=sa.and_(is_free, runs.c.tokens > 0))


def known_cost(dialect: str) -> sa.ColumnElement[Any]:
    """Return the cost of the calls of a run whose cost is known, or null if that is none of them."""
    cost, unpriced = figure("cost_usd", dialect), runs.c.unpriced_calls
    if dialect == "sqlite":
        kind: Any = sa.func.json_type(_valid_state(), "$.usage.cost_usd")
    else:
        kind = sa.func.json_typeof(_state(dialect)["usage", "cost_usd"])
    in_progress = sa.and_(unpriced.is_(None), sa.func.coalesce(kind, "") == "null")
    return sa.case((sa.or_(sa.and_(unpriced > 0, cost == 0), in_progress), None), else_=cost)


def model_uses(dialect: str) -> sa.ColumnElement[Any]:
    """Return what a run has used of each model as JSON, or null if that is unknown."""
    return sa.func.coalesce(runs.c.model_uses, _state(dialect)["model_uses"].as_string())


def _state(dialect: str) -> Any:
    if dialect == "sqlite":  # reads JSON from text; a damaged state must not hide the other runs
        return sa.type_coerce(_valid_state(), sa.JSON)
    return sa.cast(runs.c.state, sa.JSON)


def _valid_state() -> sa.ColumnElement[Any]:
    return sa.case((sa.func.json_valid(runs.c.state), runs.c.state))
