"""Waits for what only a look shows: a background task, another process or time changes it without an event."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

from framework.store.store import Store
from framework.types.report import Status
from framework.types.state import RunState

PATIENCE = 60.0
"""Seconds after which a wait fails: on a loaded machine, it takes many times as long as on an idle one."""
PAUSE = 0.01
"""Seconds between two looks."""


async def until(look: Callable[[], Any], what: str) -> Any:
    """Call `look`, which may be a coroutine function, until its result is true; return that.

    After `PATIENCE`, raises AssertionError that says `what` did not happen.
    """
    end = time.monotonic() + PATIENCE
    while True:
        found = look()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < end, f"not within {PATIENCE:g} s: {what}"
        await asyncio.sleep(PAUSE)


def wait_until(look: Callable[[], Any], what: str) -> Any:
    """Do the same as `until` where no event loop runs."""
    end = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < end, f"not within {PATIENCE:g} s: {what}"
        time.sleep(PAUSE)
    return found


async def until_status(store: Store, run_id: str, *statuses: Status) -> RunState:
    """Wait until a run that is changed in the background has one of these statuses; return its state."""

    async def look() -> RunState | None:
        state = await store.load_run(run_id)
        return state if state.status in statuses else None

    found: RunState = await until(look, f"{run_id} is {' or '.join(statuses)}")
    return found
