"""SQL for the counters of shared budgets: add, load, delete."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from framework.store.sql.database import Database
from framework.store.sql.prepared_statement import PreparedInsert, PreparedStatement, driver_cursor
from framework.store.sql.schema import budget_counters
from framework.store.sql.texts import conversation_key
from framework.store.sql.upserts import insert_into
from framework.types.budget import BudgetUse, CounterKey

_KEY = [column.name for column in budget_counters.primary_key]
_USE = [budget_counters.c[name] for name in (*_KEY, "tokens", "cost_usd")]


class CounterStatements:
    """The prepared statements of counters, compiled once per database."""

    def __init__(self, database: Database) -> None:
        insert = insert_into(budget_counters, database.dialect)
        sums = {name: budget_counters.c[name] + insert.excluded[name] for name in ("tokens", "cost_usd")}
        upsert = insert.on_conflict_do_update(index_elements=_KEY, set_=sums)
        select = sa.select(*_USE).where(*(budget_counters.c[name] == sa.bindparam(name) for name in _KEY))
        self._add = PreparedInsert(upsert, database.dialect)
        self._load = PreparedStatement(select, database.dialect)

    def add(self, connection: sa.Connection, uses: Sequence[BudgetUse]) -> None:
        """Add each use to its counter, in the order of their keys: two transactions then never wait for each other."""
        if uses:
            rows = [_row(use) for use in sorted(uses, key=lambda use: use.key)]
            self._add.execute(driver_cursor(connection), rows)

    def load(self, connection: sa.Connection, keys: Collection[CounterKey]) -> list[BudgetUse]:
        """Return the counters with these keys that exist."""
        cursor = driver_cursor(connection)
        rows = (self._load.execute(cursor, dict(zip(_KEY, key, strict=True))) for key in keys)
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


def _row(use: BudgetUse) -> tuple[object, ...]:
    """Return the row of a counter, in the order of the table's columns."""
    owner = use.owner and _owner(*use.owner)
    return *use.key, owner, use.tokens, use.cost_usd, use.resets_at and use.resets_at.timestamp()


def _owner(kind: str, one: str, tenant: str | None, user: str | None) -> str:
    return f"{kind}:{one if kind == 'run' else conversation_key(one, tenant, user)}"


def _use(budget: str, scope: str, period: str, tokens: int, cost_usd: float) -> BudgetUse:
    return BudgetUse(budget=budget, scope=scope, period=period, tokens=tokens, cost_usd=cost_usd)
