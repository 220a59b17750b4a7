"""What plugins raise, told apart from what ends their run."""

from __future__ import annotations

import asyncio
import dis
from collections.abc import Iterator

from framework.types.errors import Paused
from framework.types.state import Confirmation

_RAISE = dis.opmap["RAISE_VARARGS"]


def is_failure(error: BaseException) -> bool:
    """Whether it is the plugin's own failure, and neither the run's end nor the process's.

    `sys.exit` ends no process that other runs are in, nor does the panic of a library in another language. And a
    cancellation is none where nobody cancels this task: it came out of something that the plugin had waited for.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and not task.cancelling()
    if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
        return _is_raised_by_statement(error)
    return not isinstance(error, Paused)


def _is_raised_by_statement(error: BaseException) -> bool:
    """Whether a `raise` of the plugin's is where it comes from.

    A user's Ctrl-C and the closing of a coroutine appear between any two instructions, or inside asyncio, which raises
    KeyboardInterrupt at the second Ctrl-C: both must end what they are meant to end.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] in ("asyncio", "signal"):
        return False
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == _RAISE


def questions_in(error: BaseException) -> Iterator[Confirmation]:
    """What a plugin asks a human, also from tasks of its own."""
    if isinstance(error, Paused):
        yield from error.confirmations
    elif isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from questions_in(inner)
