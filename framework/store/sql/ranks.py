"""SQL for the rank of a queued run: its place among runs of one priority, so that tenants begin runs in turn.

Ranks are the start times of start-time fair queueing: a tenant's runs are one apart, and its first one begins at the
rank that is served now. So the thousandth run of one tenant waits behind the first run of another.
"""

from __future__ import annotations

import sqlalchemy as sa

from framework.store.sql.schema import CLAIM_ORDER, has_status, runs


def next_rank(connection: sa.Connection, tenant: str | None, priority: int) -> float:
    """Return the rank of a run that is added now, by indexes. Runs without a tenant are ranked as those of one."""
    same = sa.select(runs.c.rank).where(has_status("queued"), runs.c.priority == priority)
    is_own = runs.c.tenant.is_(None) if tenant is None else runs.c.tenant == tenant
    own = same.where(is_own).order_by(runs.c.tenant.desc(), runs.c.priority.desc(), runs.c.rank.desc()).limit(1)
    ready = same.where(runs.c.ready).order_by(runs.c.status, *CLAIM_ORDER).limit(1)
    blocked = sa.select(sa.func.min(same.where(runs.c.blocked_by.is_not(None)).subquery().c.rank))
    served = sa.func.coalesce(ready.scalar_subquery(), blocked.scalar_subquery(), 0.0)  # blocked: only if none is ready
    row = connection.execute(sa.select(own.scalar_subquery().label("own"), served.label("served"))).one()
    return float(row.served) if row.own is None else max(row.own + 1.0, row.served)
