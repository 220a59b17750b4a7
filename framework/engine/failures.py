"""What plugins raise, told apart from what ends their run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from framework.types.errors import Paused
from framework.types.state import Confirmation


def is_failure(error: BaseException) -> bool:
    """Whether it is the plugin's own failure, and neither the run's end nor the process's.

    `sys.exit` ends no process that other runs are in, nor does the panic of a library in another language. And a
    cancellation is none where nobody cancels this task: it came out of something that the plugin had waited for.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and not task.cancelling()
    return not isinstance(error, (Paused, KeyboardInterrupt, GeneratorExit))


def questions_in(error: BaseException) -> Iterator[Confirmation]:
    """What a plugin asks a human, also from tasks of its own."""
    if isinstance(error, Paused):
        yield from error.confirmations
    elif isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from questions_in(inner)
