"""Signals through PostgreSQL: NOTIFY in transactions, and the one connection of a process that listens.

A process that does not hear, because its connection is cut or a pooler in transaction mode lies between, polls.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from contextvars import Context
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from framework.store.database import Database
from framework.store.schema import storable
from framework.store.types import FOLLOWED_SECONDS, MISSED, Signal, SignalCallback
from framework.types.errors import StoreError

log = logging.getLogger(__name__)


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
                self._begin_hearing()

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

    def _begin_hearing(self) -> None:
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
        """Send signals when a transaction is committed."""
        if self._listener is not None:
            notify(connection, *signals)

    async def _stop_listening(self) -> None:
        """Close the connection that receives signals."""
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
