"""Leases: which process holds a run, and whether it is alive."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import sqlalchemy as sa

from framework.store.database import Database, Work
from framework.store.schema import insert_into, is_claimed_or_running, processes, runs, storable
from framework.store.types import ProcessInfo

_NAMESPACES = (Path("/proc/self/ns/pid"), Path("/proc/self/ns/time"))
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ALIVE_LEASE_FACTOR = 10
"""A process on this machine that is alive keeps its leases this many times longer without a heartbeat: it may be
suspended, or waiting for a locked file. For processes elsewhere, only the lease shows whether they are alive."""


class RunLease:
    """The exclusive right to write one run, until it is released or the lease of the process expires."""

    def __init__(self, name: str, ended: Callable[[str], object]) -> None:
        self.name = name
        self._ended = ended

    def end(self) -> None:
        """Mark the lease as released."""
        self._ended(self.name)


class RunLeases:
    """The leases that one store holds on its runs."""

    def __init__(self, *, local: bool) -> None:
        """Create the prefix of the names of these leases.

        Args:
            local: whether other holders may be processes of this machine, whose liveness can be checked directly.
        """
        self._local, self._machine = local, _machine_id()
        self._boot = _boot_id() if local else ""
        self.name = f"{self._machine} {self._boot}/{os.getpid()}:{_start_time(os.getpid())}/{uuid4().hex}"
        """Common prefix of the names of these leases, which identifies the process."""
        self._numbers = count(1)
        self._alive: set[str] = set()

    def new(self) -> RunLease:
        """Return a lease with a new name."""
        name = f"{self.name}.{next(self._numbers)}"
        self._alive.add(name)
        return RunLease(name, self.end)

    def end(self, name: str) -> None:
        """Mark a lease as released."""
        self._alive.discard(name)

    def alive(self) -> frozenset[str]:
        """Return the names of the leases that were not released."""
        return frozenset(self._alive.copy())

    def boot_lease(self, lease_seconds: float) -> float | None:
        """Return when the lease of this process expires on the machine's monotonic clock, in seconds.

        None if other processes do not share that clock.
        """
        return time.monotonic() + lease_seconds * _ALIVE_LEASE_FACTOR if self._boot else None

    def seconds_since_renewal(self, name: str, boot_lease: float | None, lease_seconds: float) -> float | None:
        """Return how long ago a living process of this machine renewed its lease; None for any other process.

        Args:
            name: the name of the process.
            boot_lease: when its lease expires on the machine's monotonic clock, if known.
            lease_seconds: how long its lease lasts.
        """
        if boot_lease is None or not self.is_held(name, boot_lease, leased=False):
            return None
        return time.monotonic() - (boot_lease - lease_seconds * _ALIVE_LEASE_FACTOR)

    def is_abandoned(self, name: str | None) -> bool:
        """Return whether the holder of a lease is known to be gone. Always False for processes on other machines.

        Args:
            name: the name of a lease or of a process.
        """
        if name is None:
            return False
        if name.startswith(f"{self.name}."):
            return name not in self._alive
        process = self._process(name)
        return process is not None and not _process_exists(*process)

    def is_held(self, name: str | None, boot_lease: float | None, *, leased: bool) -> bool:
        """Return whether a process is alive, and holds its run.

        Args:
            name: the name of the lease in the run's row, or of the process.
            boot_lease: when the lease of the process expires on the machine's monotonic clock, if known.
            leased: whether the lease of the process is valid by the database's clock. Used only if nothing better is
                known, because a machine's time of day may be wrong by an hour.
        """
        if name is None or self.is_abandoned(name):
            return False
        if boot_lease is None or self._process(name) is None:
            return leased
        return time.monotonic() < boot_lease

    def _process(self, name: str) -> tuple[int, str] | None:
        """Return the id and start time of a holder on this machine in its current boot; None for any other holder."""
        machine, process, _ = name.rsplit("/", 2)
        if not self._local or machine != f"{self._machine} {self._boot}":
            return None
        number, _, started = process.partition(":")
        return int(number), started


def _process_exists(process: int, started: str) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    now = _start_time(process)
    return not (started and now) or now == started  # a different start time: the id was reused by another process


def _start_time(process: int) -> str:
    """Return when a process started, in ticks since boot; "dead" for a zombie, "" if unknown."""
    with suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return "dead" if fields[0] in "ZX" else fields[19]
    return ""


def _boot_id() -> str:
    with suppress(OSError):
        return _BOOT_ID.read_text("ascii").strip()
    return ""


def _machine_id() -> str:
    """Return an id of the scope in which process ids and clocks are comparable: a machine, or one of its containers."""
    parts = [socket.gethostname()]
    for namespace in _NAMESPACES:
        with suppress(OSError):
            parts.append(str(namespace.readlink()))
    return " ".join(parts)


T = TypeVar("T")

KEPT_SECONDS = 3600.0
"""How long the row of a process is kept that does not renew its lease and holds no run."""


class ProcessLease:
    """The lease of this process, in a row of its own."""

    def __init__(self, database: Database, leases: RunLeases, seconds: float) -> None:
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        """Name that lists show."""
        self.seconds = seconds
        self._database, self._leases = database, leases
        self._renewed: tuple[float, float] | None = None
        """When the lease was last renewed: on the monotonic clock, which may stop in a suspended machine, and in Unix
        time, which may be set."""

    async def write(
        self,
        work: Work[T],
        committed: Work[T | None] | None = None,
        *,
        renew: bool = False,
        is_request: bool = False,
    ) -> T:
        """Execute work that takes runs, in a transaction in which the lease is renewed if it is older than a third.

        Args:
            work: the function to execute, as for `Database.write`.
            committed: as for `Database.write`.
            renew: renew the lease in any case.
            is_request: as for `Database.write`.
        """
        now = time.monotonic(), time.time()
        if not renew and self._is_fresh(now):
            return await self._database.write(work, committed, is_request=is_request)

        def renewing(connection: sa.Connection) -> T:
            self._renew(connection)  # first, so that processes lock rows in the same order
            return work(connection)

        result = await self._database.write(renewing, committed, is_request=is_request)
        self._renewed = now
        return result

    async def keep_alive(self, name: str, info: Mapping[str, Any], then: Work[object]) -> None:
        """Renew the lease, save what the process reports about itself, and execute work in the same transaction."""
        self.name, body = name, json.dumps(dict(info))

        def work(connection: sa.Connection) -> None:
            update = sa.update(processes).where(processes.c.id == self._leases.name)
            connection.execute(update.values(name=storable(name), info=body))
            then(connection)

        await self.write(work, renew=True)

    async def leave(self) -> None:
        """Delete the row of this process, unless a run names it. Without retries: others delete it after an hour."""
        if self._renewed is not None:
            own = sa.delete(processes).where(processes.c.id == self._leases.name, ~_holds_a_run())
            await self._database.write_once(lambda connection: connection.execute(own))
            self._renewed = None

    def _is_fresh(self, now: tuple[float, float]) -> bool:
        if self._renewed is None:
            return False
        return all(abs(clock - then) < self.seconds / 3 for clock, then in zip(now, self._renewed, strict=True))

    def _renew(self, connection: sa.Connection) -> None:
        lease = {
            "seen_at": self._database.now,
            "lease_until": self._database.now + self.seconds,
            "lease_boot": self._leases.boot_lease(self.seconds),
        }
        if self._renewed is None:
            delete_old(connection, self._database)
        row = {"id": self._leases.name, "name": storable(self.name), "started_at": self._database.now, **lease}
        insert = insert_into(processes, connection.dialect.name).values(row)
        renewed = insert.on_conflict_do_update(index_elements=["id"], set_=lease).returning(processes.c.seen_at)
        seen_at = connection.execute(renewed).scalar_one()
        if not self._database.is_sqlite:
            self._database.clock.set(seen_at)


def set_clock(connection: sa.Connection, database: Database, leases: RunLeases) -> None:
    """Set the clock of this process to that of PostgreSQL, or to that of the other processes of a SQLite file.

    The first process of a file has only the time of its machine. As long as it lives, all others use the same time.
    """
    if not database.is_sqlite:
        database.clock.set(connection.execute(sa.select(database.now)).scalar_one())
        return
    columns = (processes.c.id, processes.c.seen_at, processes.c.lease_boot, processes.c.lease_until)
    for row in connection.execute(sa.select(*columns).order_by(processes.c.seen_at.desc())):
        ago = leases.seconds_since_renewal(row.id, row.lease_boot, row.lease_until - row.seen_at)
        if ago is not None:
            database.clock.set(row.seen_at + ago)
            return


def is_leased(database: Database) -> sa.ColumnElement[bool]:
    """Return the SQL condition that the lease of a process is valid by the database's clock."""
    return (processes.c.lease_until > database.now).label("leased")


def find_dead(connection: sa.Connection, database: Database, leases: RunLeases) -> list[str]:
    """Return the ids of the processes that are dead, as far as can be determined."""
    select = sa.select(processes.c.id, processes.c.lease_boot, is_leased(database))
    if not database.is_sqlite:  # otherwise a process with a valid lease may be known to have ended
        select = select.where(processes.c.lease_until <= database.now)
    return [row.id for row in connection.execute(select) if not _is_alive(leases, row)]


def lock_dead(connection: sa.Connection, database: Database, leases: RunLeases, ids: Collection[str]) -> list[str]:
    """Return those of the processes that are still dead. They cannot renew their leases until the transaction ends.

    A process whose lease is being renewed is alive, so nothing waits for it.
    """
    select = sa.select(processes.c.id, processes.c.lease_boot, is_leased(database)).where(processes.c.id.in_(ids))
    rows = connection.execute(select.with_for_update(read=True, skip_locked=True))
    return [row.id for row in rows if not _is_alive(leases, row)]


def _is_alive(leases: RunLeases, row: Any) -> bool:
    return leases.is_held(row.id, row.lease_boot, leased=bool(row.leased))


def held_runs(connection: sa.Connection, process_id: str) -> Sequence[Any]:
    """Return id, owner and cancel request of the runs that a process holds."""
    columns = (runs.c.id, runs.c.owner, runs.c.cancel_requested)
    return connection.execute(sa.select(*columns).where(_is_held_by(process_id))).all()


def is_held_under(process_id: str, lease_names: Collection[str]) -> sa.ColumnElement[bool]:
    """Return the condition that a process holds a run under one of these leases."""
    return sa.and_(_is_held_by(process_id), runs.c.owner.in_(lease_names))


def _is_held_by(process_id: str) -> sa.ColumnElement[bool]:
    return sa.and_(is_claimed_or_running(), runs.c.process == process_id)


def find_unfinished(connection: sa.Connection, database: Database, dead: Collection[str]) -> Sequence[str]:
    """Return those of the dead processes that hold runs, or whose rows are old."""
    is_unfinished = sa.or_(_is_old(database), _holds_a_run())
    return connection.execute(sa.select(processes.c.id).where(processes.c.id.in_(dead), is_unfinished)).scalars().all()


def delete_old(connection: sa.Connection, database: Database) -> None:
    """Delete the rows that are old. A process that holds no run, and is alive after all, inserts its row again."""
    connection.execute(sa.delete(processes).where(_is_old(database), ~_holds_a_run()))


def _is_old(database: Database) -> sa.ColumnElement[bool]:
    return processes.c.seen_at < database.now - KEPT_SECONDS


def _holds_a_run() -> sa.ColumnElement[bool]:
    return sa.exists().where(is_claimed_or_running(), runs.c.process == processes.c.id)


def list_processes(connection: sa.Connection, database: Database, leases: RunLeases) -> list[ProcessInfo]:
    """Return the processes, in the order in which they started."""
    held = sa.select(sa.func.count()).where(is_claimed_or_running(), runs.c.process == processes.c.id)
    columns = (*processes.c, is_leased(database), held.scalar_subquery().label("holds"))
    return [
        ProcessInfo(
            id=row.id,
            name=row.name,
            started_at=row.started_at,
            seen_at=row.seen_at,
            is_alive=_is_alive(leases, row),
            holds=row.holds,
            info=json.loads(row.info),
        )
        for row in connection.execute(sa.select(*columns).order_by(processes.c.started_at, processes.c.id))
    ]


@dataclass(frozen=True, slots=True)
class RunOwner:
    """The holder of a run, as named in its row."""

    name: str
    process: str | None
    """The process, if it has a row."""
    is_held: bool
    """Whether the process is alive and works on the run, as far as can be determined."""


def find_owner(connection: sa.Connection, database: Database, leases: RunLeases, run_id: str) -> RunOwner | None:
    """Return the owner of a run; None if it has none, or the run does not exist."""
    columns = (runs.c.owner, processes.c.id, processes.c.lease_boot, is_leased(database))
    owners = sa.select(*columns).outerjoin_from(runs, processes, runs.c.process == processes.c.id)
    row = connection.execute(owners.where(runs.c.id == run_id)).one_or_none()
    if row is None or row.owner is None:
        return None
    return RunOwner(row.owner, row.id, leases.is_held(row.owner, row.lease_boot, leased=bool(row.leased)))
