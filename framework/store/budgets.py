"""SQL for the counters of shared budgets: add, load, delete."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from framework.store.database import Database
from framework.store.schema import budget_counters, conversation_key, insert_into
from framework.types.budget import BudgetUse, CounterKey

_KEY = [column.name for column in budget_counters.primary_key]
_USE = [budget_counters.c[name] for name in (*_KEY, "tokens", "cost_usd")]


class CounterStatements:
    """The statements of counters, built once per database."""

    def __init__(self, database: Database) -> None:
        insert = insert_into(budget_counters, database.dialect)
        sums = {name: budget_counters.c[name] + insert.excluded[name] for name in ("tokens", "cost_usd")}
        upsert = insert.on_conflict_do_update(index_elements=_KEY, set_=sums)
        select = sa.select(*_USE).where(*(budget_counters.c[name] == sa.bindparam(name) for name in _KEY))
        self._add, self._load = upsert, select

    def add(self, connection: sa.Connection, uses: Sequence[BudgetUse]) -> None:
        """Add each use to its counter, in the order of their keys: two transactions then never wait for each other."""
        if uses:
            rows = [_row(use) for use in sorted(uses, key=lambda use: use.key)]
            connection.execute(self._add, rows)

    def load(self, connection: sa.Connection, keys: Collection[CounterKey]) -> list[BudgetUse]:
        """Return the counters with these keys that exist."""
        rows = (connection.execute(self._load, dict(zip(_KEY, key, strict=True))).one_or_none() for key in keys)
        return [_use(*row) for row in rows if row is not None]


def load_all(connection: sa.Connection) -> list[BudgetUse]:
    """Return all counters."""
    return [_use(*row) for row in connection.execute(sa.select(*_USE).order_by(*_USE[:3]))]


def delete_ended_counters(connection: sa.Connection, before: float) -> None:
    """Delete the counters of periods that ended before a Unix time."""
    connection.execute(sa.delete(budget_counters).where(budget_counters.c.ends_at < before))


def delete_counters(connection: sa.Connection, kind: str, ids: Collection[str]) -> None:
    """Delete the counters that belong to these runs, or to the conversations with these keys."""
    owners = [f"{kind}:{one}" for one in ids]
    connection.execute(sa.delete(budget_counters).where(budget_counters.c.owner.in_(owners)))


def _row(use: BudgetUse) -> dict[str, object]:
    """Return the row of a counter."""
    row = dict[str, object](zip(_KEY, use.key, strict=True), tokens=use.tokens, cost_usd=use.cost_usd)
    ends_at = use.resets_at and use.resets_at.timestamp()
    return {**row, "owner": use.owner and _owner(*use.owner), "ends_at": ends_at}


def _owner(kind: str, one: str, tenant: str | None, user: str | None) -> str:
    return f"{kind}:{one if kind == 'run' else conversation_key(one, tenant, user)}"


def _use(budget: str, scope: str, period: str, tokens: int, cost_usd: float) -> BudgetUse:
    return BudgetUse(budget=budget, scope=scope, period=period, tokens=tokens, cost_usd=cost_usd)
