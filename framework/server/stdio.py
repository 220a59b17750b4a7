"""Standard input and output as the connection to one client, while nothing else is printed there."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_STDIN, _STDOUT, _STDERR = 0, 1, 2


@contextmanager
def protocol_streams() -> Iterator[tuple[int, int]]:
    """Yield descriptors of standard input and output.

    Meanwhile, what plugins and child processes print goes to standard error, and their standard input is empty.
    """
    sys.stdout.flush()
    source, target = os.dup(_STDIN), os.dup(_STDOUT)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, _STDIN)
    os.dup2(_STDERR, _STDOUT)
    os.close(empty)
    try:
        yield source, target
    finally:
        sys.stdout.flush()
        os.dup2(source, _STDIN)
        os.dup2(target, _STDOUT)


@contextmanager
def ended_by_signals(end: Callable[[], None]) -> Iterator[None]:
    """Call `end` on SIGTERM or Ctrl-C, as if the client had left. A second signal ends the process at once."""
    loop = asyncio.get_running_loop()

    def end_once() -> None:
        remove()
        end()

    def remove() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end_once)
    try:
        yield
    finally:
        remove()
