"""Stops a store's threads in the middle of a transaction, and connections between a transaction and the word of it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import sqlalchemy as sa

from framework.store.sql.store import SqlStore

PATIENCE = 20
"""Seconds, for what should take none."""


class Halt:
    """A place where a transaction stands still."""

    def __init__(self) -> None:
        self._reached, self._go = threading.Event(), threading.Event()

    async def reached(self) -> None:
        """Wait until a transaction stands there."""
        assert await asyncio.to_thread(self._reached.wait, PATIENCE)

    def go(self) -> None:
        """Let it go on, and others pass."""
        self._go.set()

    def stand(self) -> None:
        """Be a transaction that stands there."""
        self._reached.set()
        assert self._go.wait(PATIENCE)


@contextmanager
def halted(store: SqlStore, statement: str) -> Iterator[Halt]:
    """A store's transactions stand still before a statement that begins so."""
    database = store._database
    halt, engine = Halt(), (database._reader if statement.startswith("SELECT") else database._writer).engine

    def stand(_: Any, __: Any, text: str, *___: Any) -> None:
        if text.startswith(statement):
            halt.stand()

    sa.event.listen(engine, "before_cursor_execute", stand)
    try:
        yield halt
    finally:
        sa.event.remove(engine, "before_cursor_execute", stand)


class Cutter:
    """Stands between a store and PostgreSQL; once told to, it cuts a connection whose COMMIT was carried out."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._cut = threading.Event()
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_next(self) -> None:
        """Nobody hears that the next transaction was committed."""
        self._cut.set()

    @property
    def has_cut(self) -> bool:
        """It was told to, and did."""
        return not self._cut.is_set()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                ours, _ = self._listener.accept()
                theirs = socket.create_connection(self._server)
                committing = threading.Event()
                for source, target, upwards in ((ours, theirs, True), (theirs, ours, False)):
                    arguments = (source, target, committing, upwards)
                    threading.Thread(target=self._pass_on, args=arguments, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, committing: threading.Event, up: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if up and b"COMMIT" in data and self._cut.is_set():
                    committing.set()
                elif not up and committing.is_set():
                    self._cut.clear()
                    break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
