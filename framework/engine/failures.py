"""What plugins raise, told apart from what ends their run."""

from __future__ import annotations

import asyncio


def is_failure(error: BaseException) -> bool:
    """Whether it is the plugin's own failure, and neither the run's end nor the process's.

    `sys.exit` ends no process that other runs are in; and a cancellation is none where nobody cancels this task: it
    came out of something that the plugin had waited for.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and not task.cancelling()
    return isinstance(error, (Exception, SystemExit))
