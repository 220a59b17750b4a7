"""The clock of the event loop in tests: timeouts expire at the moment that a test chooses, however slow the machine is.

A test sets a long timeout, which no delay of the machine reaches, and skips it.
"""

from __future__ import annotations

import asyncio


def skip(seconds: float) -> None:
    """Move the clock of the running event loop forward. Timeouts that are due by then expire at its next iteration.

    Code that has kept the method `time` of the loop before does not notice.
    """
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds  # type: ignore[method-assign]  # until the loop is closed
