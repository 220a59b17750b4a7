"""Work on runs that nobody awaits: its errors are logged, and closing the runtime waits for its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

from framework.telemetry.redact import places
from framework.types.errors import AgentsdError, RequestError, StoreError, is_scarcity

log = logging.getLogger(__name__)

T = TypeVar("T")
ESSENTIAL = "agentsd_essential"
"""Key of the event loop's exception handler for errors after which a process does not do its work any more."""

MAX_LOGGED_ERRORS = 1000
"""Number of names whose last logged error is remembered, so that it is logged once."""


class BackgroundWork:
    """The background tasks of one runtime."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[Any]] = set()
        self._logged_errors: dict[str, str] = {}
        """Last logged error of work that failed, by name."""

    def start(self, name: str, work: Coroutine[Any, Any, None], context: Context | None = None) -> asyncio.Task[None]:
        """Start work in the background. An error is logged with `name`, but the same error in a row only once.

        Returns a task that ends with the work, without its error.

        Args:
            name: what the work concerns.
            work: the work.
            context: its context variables, such as the trace of a caller; by default a copy of the present ones.
        """
        task = asyncio.create_task(self._log_errors(name, work), name=f"{name} in the background", context=context)
        self.add(task)
        return task

    def add(self, task: asyncio.Future[Any]) -> None:
        """Let `close` wait for a task, which handles its errors itself."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait for all work to end."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _log_errors(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except AgentsdError as error:
            if len(self._logged_errors) >= MAX_LOGGED_ERRORS:
                self._logged_errors.clear()
            if self._logged_errors.get(name) != str(error):  # retried every few seconds
                self._logged_errors[name] = str(error)
                level = logging.INFO if isinstance(error, RequestError) else logging.WARNING
                log.log(level, "%s: %s", name, error)
        except Exception as error:  # noqa: BLE001 - logged; nobody awaits it
            log.error("%s failed: %s", name, places(error))
            if isinstance(error, MemoryError):
                _report(f"{name} in the background", error)
        else:
            self._logged_errors.pop(name, None)


def is_passing(error: BaseException) -> bool:
    """Return whether repeated work may succeed the next time: the store, open files or memory are unavailable now."""
    return isinstance(error, StoreError) or is_scarcity(error)


def essential(task: asyncio.Task[T]) -> asyncio.Task[T]:
    """Report to the event loop's exception handler if a task ends by an error: the process needs it."""
    task.add_done_callback(_report_end)
    return task


def _report_end(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _report(task.get_name(), error)


def _report(name: str, error: BaseException) -> None:
    context = {"message": f"{name} has ended", "exception": error, ESSENTIAL: True}
    asyncio.get_running_loop().call_exception_handler(context)
