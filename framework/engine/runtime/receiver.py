"""Receives the signals of other processes, from when a runtime needs them."""

from __future__ import annotations

from collections.abc import Callable

from framework.store.signals import Signal, SignalCallback, Signals


class SignalReceiver:
    """Passes the signals of a store to the parts of one runtime."""

    def __init__(self, store: Signals) -> None:
        self._store = store
        self._handlers: list[SignalCallback] = []
        self._is_open = self._is_closed = False
        self._stop: Callable[[], None] = lambda: None

    def add(self, handler: SignalCallback) -> None:
        """Pass each signal to a handler, once `open` was called."""
        self._handlers.append(handler)

    async def open(self) -> None:
        """Receive signals from now on. Idempotent."""
        if not (self._is_open or self._is_closed):
            self._is_open = True
            try:
                self._stop = await self._store.listen(self._deliver)
            except BaseException:
                self._is_open = False
                raise

    def close(self) -> None:
        """Receive no more signals."""
        self._is_closed = True
        self._stop()

    def _deliver(self, signal: Signal) -> None:
        if not self._is_closed:
            for handler in self._handlers:
                handler(signal)
