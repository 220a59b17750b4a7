"""SQL of grants, and of the counts of calls per period."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from framework.store.database import Database
from framework.store.schema import call_counts, grants, insert_into, is_owned
from framework.store.types import GrantQuery
from framework.types.budget import CallRate
from framework.types.grant import Grant
from framework.types.text import to_sql_text

_STATE = ("revoked_at", "revoked_by", "uses", "last_used_at")
_KEPT_SECONDS = 30 * 86400.0
"""How long a grant is listed after it has expired."""


def insert_grants(connection: sa.Connection, new: Sequence[Grant]) -> None:
    """Insert grants. One whose id exists is left as it is, also if it was revoked."""
    for grant in new:
        row = {
            "id": grant.id,
            "tenant": to_sql_text(grant.tenant),
            "user_id": to_sql_text(grant.user),
            "agent": grant.agent,
            "tool": to_sql_text(grant.tool),
            "body": to_sql_text(grant.model_dump_json(exclude={*_STATE})),
            "created_at": grant.created_at,
            "expires_at": grant.expires_at,
        }
        insert = insert_into(grants, connection.dialect.name).values(row)
        connection.execute(insert.on_conflict_do_nothing(index_elements=["id"]))


def select_grants(connection: sa.Connection, query: GrantQuery) -> list[Grant]:
    """Return the grants that match, the newest first."""
    columns = (grants.c.body, *(grants.c[name] for name in _STATE))
    select = sa.select(*columns).order_by(grants.c.created_at.desc(), grants.c.id).limit(query.limit)
    equal = {"id": query.id, "tool": query.tool, "agent": query.agent}
    select = select.where(*(grants.c[name] == to_sql_text(value) for name, value in equal.items() if value is not None))
    select = select.where(*is_owned(query, grants))
    if query.among is not None:
        chain = sa.literal("/") + grants.c.agent + sa.literal("/")
        select = select.where(chain.contains(f"/{to_sql_text(query.among)}/", autoescape=True))
    if query.active_at is not None:
        select = select.where(grants.c.revoked_at.is_(None), grants.c.expires_at > query.active_at)
    found = []
    for body, *state in connection.execute(select):
        grant = Grant.model_validate_json(body)
        found.append(grant.model_copy(update=dict(zip(_STATE, state, strict=True))))
    return found


def count_calls(connection: sa.Connection, rates: Mapping[str, CallRate], now: float) -> str | None:
    """Count a call for each rate, all or none. Return the key of a rate that is used up; None if the call is counted.

    Keys are locked in their order, so that two transactions never wait for each other.
    """
    counted: list[tuple[str, str]] = []
    for key, rate in sorted(rates.items()):
        period, ends_at = rate.period(now)
        insert = insert_into(call_counts, connection.dialect.name).values(
            key=key, period=period, calls=1, ends_at=ends_at
        )
        counting = insert.on_conflict_do_update(
            index_elements=["key", "period"],
            set_={"calls": call_counts.c.calls + 1},
            where=call_counts.c.calls < rate.count,
        ).returning(call_counts.c.calls)
        if connection.execute(counting).one_or_none() is None:
            for one in counted:
                is_row = (call_counts.c.key == one[0], call_counts.c.period == one[1])
                connection.execute(sa.update(call_counts).where(*is_row).values(calls=call_counts.c.calls - 1))
            return key
        counted.append((key, period))
    return None


def delete_old_grants(connection: sa.Connection, now: float) -> None:
    """Delete grants that expired long ago, and counts of periods that have ended."""
    connection.execute(sa.delete(grants).where(grants.c.expires_at < now - _KEPT_SECONDS))
    connection.execute(sa.delete(call_counts).where(call_counts.c.ends_at < now))


class StoredGrants:
    """The grants of a store, which all of its processes share."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(self, query: GrantQuery) -> Sequence[Grant]:
        """Return the grants that match, the newest first."""
        return await self._database.read(lambda connection: select_grants(connection, query))

    async def revoke(self, grant_id: str, by: str | None) -> bool:
        """Revoke a grant at once, in all processes, unless it was revoked before. Return whether there is one."""
        values = {"revoked_at": self._database.clock(), "revoked_by": to_sql_text(by)}

        def revoke(connection: sa.Connection) -> bool:
            is_grant = grants.c.id == grant_id
            connection.execute(sa.update(grants).where(is_grant, grants.c.revoked_at.is_(None)).values(values))
            return connection.execute(sa.select(grants.c.id).where(is_grant)).one_or_none() is not None

        return await self._database.write(revoke, is_request=True)

    async def make_void(self, reasons: Mapping[str, str]) -> None:
        """Make grants void for good, in all processes, with what has changed since, by id."""

        def make_void(connection: sa.Connection) -> None:
            for grant_id, reason in reasons.items():
                for grant in select_grants(connection, GrantQuery(id=grant_id)):
                    body = grant.model_copy(update={"void": grant.void or reason}).model_dump_json(exclude={*_STATE})
                    connection.execute(sa.update(grants).where(grants.c.id == grant_id).values(body=to_sql_text(body)))

        if reasons:
            await self._database.write(make_void)

    async def use(self, grant: Grant) -> bool:
        """Count a use. Return False, and count nothing, if it is not active or `at_most` is used up."""
        rate = CallRate.parse(grant.at_most) if grant.at_most else None

        def use(connection: sa.Connection) -> bool:
            now, is_grant = self._database.clock(), grants.c.id == grant.id
            is_active = (is_grant, grants.c.revoked_at.is_(None), grants.c.expires_at > now)
            values = {"uses": grants.c.uses + 1, "last_used_at": now}
            # The update locks the grant, so that a revocation is either seen here or comes after this use.
            if connection.execute(sa.update(grants).where(*is_active).values(values)).rowcount != 1:
                return False
            if rate is None or not count_calls(connection, {f"grant {grant.id}": rate}, now):
                return True
            connection.execute(sa.update(grants).where(is_grant).values(uses=grants.c.uses - 1))
            return False

        return await self._database.write(use)

    async def count(self, rates: Mapping[str, CallRate]) -> str | None:
        """Count a call for each rate, all or none. Return the key of a rate that is used up, or None."""
        return await self._database.write(lambda c: count_calls(c, rates, self._database.clock()))
