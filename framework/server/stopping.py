"""Stops a process that serves until a signal: in order at the first SIGTERM or Ctrl-C, at once at the second.

A process that does not do its work any more stops too, with an error, so that its supervisor starts another.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

from framework.engine.runtime.background import ESSENTIAL
from framework.telemetry.redact import places
from framework.types.errors import AgentsdError

log = logging.getLogger(__name__)

_END_SECONDS = 30.0
"""Time after which a process that failed ends in any case: without memory, it may not manage to stop in order."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class ProcessFailed(AgentsdError):
    """The process does not do its work any more. The message says why; start another one."""

    code = "process_failed"


class Stopping:
    """Signal handlers: the first signal begins an orderly stop, each further one cancels the task without waiting."""

    def __init__(self) -> None:
        self.requested = False
        self._failure = ""
        task = asyncio.current_task()
        assert task is not None
        self._cancel = task.cancel
        self._stops: Sequence[Callable[[], object]] = (task.cancel,)

    def call_on_stop(self, *stops: Callable[[], object]) -> None:
        """Set the functions that the first signal calls at once."""
        self._stops = stops

    def check(self) -> None:
        """Raise ProcessFailed if the process stops because something ended that it needs."""
        if self._failure:
            raise ProcessFailed(f"{self._failure}; the process ends, so that its supervisor starts another")

    def __enter__(self) -> Stopping:
        loop = asyncio.get_running_loop()
        self._handler = loop.get_exception_handler()
        loop.set_exception_handler(self._on_error)
        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().set_exception_handler(self._handler)
        for number in _SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if ESSENTIAL not in context and not isinstance(error, MemoryError):
            if self._handler is None:
                loop.default_exception_handler(context)
            else:
                self._handler(loop, context)
        elif not self.requested and error is not None:
            loop.call_later(_END_SECONDS, os._exit, 1)
            self._failure = "no memory is left"
            if not isinstance(error, MemoryError):
                self._failure = f"{context['message']}: {error if isinstance(error, AgentsdError) else places(error)}"
            log.error("%s", self._failure)
            self._on_signal()

    def _on_signal(self) -> None:
        first, self.requested = not self.requested, True
        for stop in self._stops if first else (self._cancel,):
            stop()
