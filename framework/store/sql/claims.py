"""The queued runs that this process has claimed, and has not begun yet."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from framework.store.sql.database import Database
from framework.store.sql.leases import RunLease, RunLeases
from framework.store.sql.offering import RunOffers
from framework.store.sql.processes import ProcessLease, find_dead, is_held_under, lock_dead
from framework.store.sql.queue import claim_ready, claimed_by, find_claims, select_ready
from framework.store.sql.slots import block_run
from framework.store.work import RunLimits, WorkScope
from framework.types.run_request import RunRequest


class Claims:
    """Claims queued runs of a store, each under a lease."""

    def __init__(self, database: Database, leases: RunLeases, process: ProcessLease, offers: RunOffers) -> None:
        self._database, self._leases, self._process, self._offers = database, leases, process, offers
        self._claimed: dict[str, RunLease] = {}
        """The leases, by run id."""

    def lease(self, run_id: str) -> RunLease | None:
        """Return the lease of a claimed run."""
        return self._claimed.get(run_id)

    def drop(self, run_id: str, lease: RunLease) -> None:
        """Forget a claimed run that has begun or was lost, unless it was claimed again since, under another lease."""
        if self._claimed.get(run_id) is lease:
            del self._claimed[run_id]

    async def claim(self, limit: int, run_id: str | None, scope: WorkScope) -> Sequence[RunRequest]:
        """Claim runs that are ready, in one transaction. Those that dead processes have claimed are released first."""
        if run_id is None and self._database.is_sqlite and not await self._may_find(scope):
            return []
        leases: dict[str, RunLease] = {}

        def work(connection: sa.Connection) -> list[tuple[str, RunRequest]]:
            self._release_dead(connection)
            claimed = []
            for number in select_ready(connection, limit, scope, run_id, lock=True):
                lease = self._leases.new()
                leases[lease.name] = lease
                if request := claim_ready(connection, number, lease, self._leases.name):
                    claimed.append((lease.name, request))
            return claimed

        def committed(connection: sa.Connection) -> list[tuple[str, RunRequest]] | None:
            return list(claimed_by(connection, leases)) or None

        try:
            claimed = await self._process.write(work, committed)
        except BaseException:
            claimed = []
            raise
        finally:
            self._claimed.update({request.run_id: leases.pop(name) for name, request in claimed})
            for unused in leases.values():
                unused.end()
        return [request for _, request in claimed]

    async def unclaim(self, run_ids: Collection[str]) -> None:
        """Release claims, and offer their runs, in one transaction."""
        claims = [self._claimed.pop(run_id) for run_id in set(run_ids) & self._claimed.keys()]
        is_claimed = is_held_under(self._leases.name, [lease.name for lease in claims])
        try:
            if claims:
                await self._database.write(lambda connection: self._offers.release(connection, is_claimed))
        finally:
            for lease in claims:
                lease.end()

    async def block(self, run_id: str, limits: RunLimits) -> None:
        """Release a claim whose run waits for one of these limits."""
        lease = self._claimed.pop(run_id, None)  # first: once it is released, this process may claim it again
        if lease is None:
            return
        is_claimed = is_held_under(self._leases.name, [lease.name])
        try:
            await self._database.write(lambda c: block_run(c, self._offers, self._database, is_claimed, limits))
        finally:
            lease.end()

    async def _may_find(self, scope: WorkScope) -> bool:
        """Return whether there may be a run to claim, without locking the file: processes look every second."""

        def work(connection: sa.Connection) -> bool:
            if select_ready(connection, 1, scope):
                return True
            dead = find_dead(connection, self._database, self._leases)
            return bool(dead and find_claims(connection, dead))

        return await self._database.read(work)

    def _release_dead(self, connection: sa.Connection) -> None:
        """Release the runs of dead processes that have claimed queued ones."""
        dead = find_dead(connection, self._database, self._leases)
        if dead and find_claims(connection, dead):
            self._offers.release_dead(connection, lock_dead(connection, self._database, self._leases, dead))
