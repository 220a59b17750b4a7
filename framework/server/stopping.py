"""Stops a process that serves until a signal: in order at the first SIGTERM or Ctrl-C, at once at the second."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopping:
    """Signal handlers: the first signal begins an orderly stop, each further one cancels the task without waiting."""

    def __init__(self) -> None:
        self.requested = False
        task = asyncio.current_task()
        assert task is not None
        self._cancel = task.cancel
        self._stops: Sequence[Callable[[], object]] = (task.cancel,)

    def call_on_stop(self, *stops: Callable[[], object]) -> None:
        """Set the functions that the first signal calls at once."""
        self._stops = stops

    def __enter__(self) -> Stopping:
        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number in _SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)

    def _on_signal(self) -> None:
        first, self.requested = not self.requested, True
        for stop in self._stops if first else (self._cancel,):
            stop()
