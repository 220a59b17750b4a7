"""Processes that share a store: their leases, what they report of themselves, and the signals between them."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

import sqlalchemy as sa

from framework.store.database import Database, Work
from framework.store.schema import (
    insert_into,
    is_claimed_or_running,
    processes,
    runs,
)
from framework.store.types import FOLLOWED_SECONDS, MISSED, ProcessInfo, Signal, SignalCallback
from framework.types.errors import StoreError
from framework.types.text import storable

log = logging.getLogger(__name__)


_NAMESPACES = (Path("/proc/self/ns/pid"), Path("/proc/self/ns/time"))
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ALIVE_LEASE_FACTOR = 10
"""A process on this machine that is alive keeps its leases this many times longer without a heartbeat: it may be
suspended, or waiting for a locked file. For processes elsewhere, only the lease shows whether they are alive."""


class RunLeases:
    """The leases that one store holds on its runs."""

    def __init__(self, *, local: bool) -> None:
        """Create the prefix of the names of these leases.

        `local`: other holders may be processes of this machine, whose liveness can be checked directly.
        """
        self._local, self._machine = local, _machine_id()
        self._boot = _boot_id() if local else ""
        self.name = f"{self._machine} {self._boot}/{os.getpid()}:{_start_time(os.getpid())}/{uuid4().hex}"
        """Common prefix of the names of these leases, which identifies the process."""
        self._numbers = count(1)
        self._alive: set[str] = set()

    def new(self) -> str:
        """Return the name of a new lease: the exclusive right to write one run, until `end` or until ours expires."""
        name = f"{self.name}.{next(self._numbers)}"
        self._alive.add(name)
        return name

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
        """Return how long ago a living process of this machine renewed its lease; None for any other process."""
        if boot_lease is None or not self.is_held(name, boot_lease, leased=False):
            return None
        return time.monotonic() - (boot_lease - lease_seconds * _ALIVE_LEASE_FACTOR)

    def is_abandoned(self, name: str | None) -> bool:
        """Return whether the holder of a lease is known to be gone. Always False for processes on other machines."""
        if name is None:
            return False
        if name.startswith(f"{self.name}."):
            return name not in self._alive
        process = self._process(name)
        return process is not None and not _process_exists(*process)

    def is_held(self, name: str | None, boot_lease: float | None, *, leased: bool) -> bool:
        """Return whether a process is alive, and holds its run.

        `leased`, whether its lease is valid by the database's clock, is used only if nothing better is known, because
        a machine's time of day may be wrong by an hour.
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

        With `renew`, it is renewed in any case. The other options are those of `Database.write`.
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
        if self._renewed is None and not self._database.is_in_memory:
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


class RunOwner(NamedTuple):
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


# A process that does not hear, because its connection is cut or a pooler in transaction mode lies between, polls.


CHANNEL = "agentsd"
MAX_PAYLOAD_BYTES = 7900
"""PostgreSQL accepts payloads of less than 8000 bytes."""
TEST_SECONDS = 3.0
"""How long to wait for the notification that tests a new connection."""
_POOLED_RETRY_SECONDS = 60.0
_RETRY_SECONDS, _MAX_RETRY_SECONDS = 0.1, 5.0
_NOTIFY = "SELECT pg_notify(%s, payload) FROM unnest(%s::text[]) AS payload"


class SignalListener:
    """Receives the signals of a database, from the first `add` on, and knows which runs other processes follow."""

    def __init__(self, database: Database) -> None:
        self.hears = False
        """Whether signals arrive now."""
        self._database = database
        self._callbacks: list[SignalCallback] = []
        self._task: asyncio.Task[None] | None = None
        self._followed: dict[str, float] = {}
        """When each followed run stops to count as followed, by run id, on the clock of the event loop."""
        self._next_purge = 0.0
        self._is_reported = False
        """Whether the log says why signals do not arrive."""

    def add(self, callback: SignalCallback) -> Callable[[], None]:
        """Pass each signal to a callback until the returned function is called.

        `MISSED` is among them whenever signals start to arrive, at first or again.
        """
        self._callbacks.append(callback)
        if self._task is None:
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._listen(), name="signals", context=Context())  # outside any trace
        elif self.hears:
            asyncio.get_running_loop().call_soon(callback, MISSED)

        def stop() -> None:
            with suppress(ValueError):  # stopped already
                self._callbacks.remove(callback)

        return stop

    def is_followed(self, run_id: str) -> bool:
        """Return whether a process has announced within `FOLLOWED_SECONDS` that it follows the run.

        While no signals arrive, the last answer remains: the followers cannot be heard, but may still listen.
        """
        until = self._followed.get(run_id)
        if until is None:
            return False
        if self.hears and until < asyncio.get_running_loop().time():
            del self._followed[run_id]
            return False
        return True

    async def close(self) -> None:
        """Close the connection. No signals arrive from now on."""
        self._callbacks.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _listen(self) -> None:
        delay = _RETRY_SECONDS
        while True:
            try:
                await self._receive()
            except StoreError as error:
                delay = _RETRY_SECONDS if self.hears else min(2 * delay, _MAX_RETRY_SECONDS)
                self._report(f"signals of other processes do not arrive: {error.message}")
            except TimeoutError:
                delay = _POOLED_RETRY_SECONDS
                self._report(
                    f"signals of other processes do not arrive: store {self._database.name} delivers no notifications, "
                    "probably because a pooler in transaction mode lies between; set store.url to the server itself, "
                    "or let the pooler work in session mode"
                )
            finally:
                self.hears = False
            await asyncio.sleep(delay)

    async def _receive(self) -> None:
        """Listen until the connection is cut.

        Raises:
            StoreError: it was cut, or could not be opened.
            TimeoutError: the notification that tests it did not arrive, although it was sent.
        """
        test, loop = uuid4().hex, asyncio.get_running_loop()
        sending: list[asyncio.Task[None]] = []

        def receive(payload: str) -> None:
            if payload != test:
                self._deliver(_decoded(payload))
            elif not self.hears:
                limit.reschedule(None)
                self._start_hearing()

        try:
            async with asyncio.timeout(None) as limit:
                await self._database.listen(
                    CHANNEL, lambda: sending.append(loop.create_task(self._send_test(test, limit))), receive
                )
        finally:
            for task in sending:
                task.cancel()
                await asyncio.wait([task])

    async def _send_test(self, test: str, limit: asyncio.Timeout) -> None:
        """Send the notification that tests the connection, through another one, and set the time limit for it."""
        with suppress(StoreError):  # then the listening connection fails as well
            await self._database.write(lambda connection: _send(connection, [test]))
            await asyncio.sleep(0)  # where a cancellation during the write is delivered: the limit may be over
            if not self.hears:
                limit.reschedule(asyncio.get_running_loop().time() + TEST_SECONDS)

    def _start_hearing(self) -> None:
        self.hears = True
        until = asyncio.get_running_loop().time() + FOLLOWED_SECONDS
        self._followed = dict.fromkeys(self._followed, until)
        if self._is_reported:
            self._is_reported = False
            log.info("signals of other processes arrive again")
        self._deliver([MISSED])

    def _deliver(self, signals: Sequence[Signal]) -> None:
        loop = asyncio.get_running_loop()
        for signal in signals:
            if signal.kind == "listen":
                self._note_follower(signal.run_id, loop.time())
            for callback in self._callbacks:
                loop.call_soon(callback, signal)

    def _note_follower(self, run_id: str, now: float) -> None:
        if now >= self._next_purge:
            self._next_purge = now + FOLLOWED_SECONDS
            self._followed = {run_id: until for run_id, until in self._followed.items() if until >= now}
        self._followed[run_id] = now + FOLLOWED_SECONDS

    def _report(self, problem: str) -> None:
        """Log once why this process polls."""
        if not self._is_reported:
            self._is_reported = True
            log.warning("%s; until they do, this process polls the store", problem)


class StoreSignals:
    """The signals of a durable store. In SQLite there are none: the processes that share a file look at it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._listener = None if database.is_sqlite else SignalListener(database)

    @property
    def hears(self) -> bool:
        """Whether signals of other processes arrive. If not, look at the store from time to time."""
        return self._listener is not None and self._listener.hears

    async def listen(self, callback: SignalCallback) -> Callable[[], None]:
        """Pass signals to a callback until the returned function is called.

        The first call opens the connection that receives them. `MISSED` comes whenever signals start to arrive, at
        first or again.
        """
        return self._listener.add(callback) if self._listener else lambda: None

    def is_followed(self, run_id: str) -> bool:
        """Return whether another process may follow the run now, so that its events are worth a signal."""
        return self._listener is not None and self._listener.is_followed(run_id)

    async def signal(self, *signals: Signal) -> None:
        """Send signals; raises StoreError. Those that are too large are left out."""
        if self._listener is not None and signals:
            await self._database.write(lambda connection: notify(connection, *signals))

    def _notify(self, connection: sa.Connection, *signals: Signal) -> None:
        if self._listener is not None:
            notify(connection, *signals)

    async def _stop_listening(self) -> None:
        if self._listener is not None:
            await self._listener.close()


def notify(connection: sa.Connection, *signals: Signal) -> None:
    """Send signals when the transaction is committed. One that is too large for a notification is left out."""
    _send(connection, list(_encoded(signals)))


def notification(parameter: str) -> sa.ColumnElement[Any]:
    """Return an SQL expression that sends a payload when the transaction is committed, and nothing if it is null."""
    value = sa.bindparam(parameter, type_=sa.Text)
    sent = sa.cast(sa.func.pg_notify(sa.literal_column(f"'{CHANNEL}'"), value), sa.Text)
    return sa.case((value.is_not(None), sent))


def payload(signal: Signal) -> str:
    """Return the payload with one signal that is small enough."""
    return next(_encoded([signal]))


def _send(connection: sa.Connection, payloads: Sequence[str]) -> None:
    if payloads:
        connection.exec_driver_sql(_NOTIFY, (CHANNEL, payloads))


def _encoded(signals: Iterable[Signal]) -> Iterator[str]:
    """Yield payloads: JSON arrays with as many signals as fit, without the fields that are empty at their ends."""
    parts: list[str] = []
    size = 2
    for signal in signals:
        fields: list[str | int] = [signal.kind, signal.run_id, signal.seq, signal.body]
        while not fields[-1]:
            fields.pop()
        part = storable(json.dumps(fields, ensure_ascii=False, separators=(",", ":")))
        length = len(part.encode()) + 1
        if length + 2 > MAX_PAYLOAD_BYTES:
            continue
        if size + length > MAX_PAYLOAD_BYTES:
            yield f"[{','.join(parts)}]"
            parts, size = [], 2
        parts.append(part)
        size += length
    if parts:
        yield f"[{','.join(parts)}]"


def _decoded(payload: str) -> Sequence[Signal]:
    """Return the signals of a payload; none if it is not one of `notify`."""
    try:
        return [Signal(*fields) for fields in json.loads(payload)]
    except (ValueError, TypeError):
        return ()
