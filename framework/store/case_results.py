"""SQL of the results of test cases, and of stored runs that were scored."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import uuid4

import sqlalchemy as sa

from framework.store.database import Database
from framework.store.schema import case_results, insert_into
from framework.store.types import CaseResult
from framework.types.text import storable, to_sql_text

_KEPT_SECONDS = 180 * 86400.0
"""How long a result is kept."""


def delete_old_case_results(connection: sa.Connection, now: float) -> None:
    """Delete results that nobody compares with any more."""
    connection.execute(sa.delete(case_results).where(case_results.c.at < now - _KEPT_SECONDS))


def delete_case_results_of(connection: sa.Connection, run_ids: Sequence[str]) -> None:
    """Delete the results of stored runs: why one failed quotes it."""
    connection.execute(sa.delete(case_results).where(case_results.c.id.in_(run_ids)))


class StoredCaseResults:
    """The results of cases in a store, which all of its processes share."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, results: Sequence[CaseResult]) -> None:
        """Save results, as of now. That of a stored run replaces its earlier one."""
        now = self._database.clock()
        rows = [
            {
                "id": storable(one.run_id or uuid4().hex),
                "agent": one.agent,
                "at": now,
                "body": to_sql_text(one.model_dump_json(exclude={"at"})),
            }
            for one in results
        ]

        def insert(connection: sa.Connection) -> None:
            added = insert_into(case_results, connection.dialect.name)
            values = {name: added.excluded[name] for name in ("agent", "at", "body")}
            connection.execute(added.on_conflict_do_update(index_elements=["id"], set_=values), rows)

        if rows:
            await self._database.write(insert)

    async def latest(self, agent: str, limit: int = 1000) -> Sequence[CaseResult]:
        """Return the newest results of an agent's cases, the newest first."""
        columns = (case_results.c.body, case_results.c.at)
        select = sa.select(*columns).where(case_results.c.agent == agent)
        select = select.order_by(case_results.c.at.desc(), case_results.c.id).limit(limit)

        def select_results(connection: sa.Connection) -> list[CaseResult]:
            found = connection.execute(select)
            read = ((CaseResult.model_validate_json(body), datetime.fromtimestamp(at, UTC)) for body, at in found)
            return [result.model_copy(update={"at": at}) for result, at in read]

        return await self._database.read(select_results)
