"""Halts a store's transactions, and cuts connections between a COMMIT and its reply."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import sqlalchemy as sa

from framework.store.store import Store

PATIENCE = 20
"""Timeout in seconds, for waits that should be short."""


class Halt:
    """A point at which a transaction waits."""

    def __init__(self) -> None:
        self._reached, self._go = threading.Event(), threading.Event()

    async def reached(self) -> None:
        """Wait until a transaction has reached this point."""
        assert await asyncio.to_thread(self._reached.wait, PATIENCE)

    def go(self) -> None:
        """Let this transaction and later ones continue."""
        self._go.set()

    def stand(self) -> None:
        """Block the calling transaction."""
        self._reached.set()
        assert self._go.wait(PATIENCE)


@contextmanager
def halted(store: Store, statement: str) -> Iterator[Halt]:
    """Halt a store's transactions before a statement that begins with `statement`."""
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
    """A proxy in front of PostgreSQL that, on request, cuts a connection after its COMMIT was executed."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._cut = threading.Event()
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_next(self) -> None:
        """Drop the reply to the next COMMIT."""
        self._cut.set()

    @property
    def has_cut(self) -> bool:
        """Whether the requested cut has happened."""
        return not self._cut.is_set()

    def close(self) -> None:
        """Accept no more connections."""
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
