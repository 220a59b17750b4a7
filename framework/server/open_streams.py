"""The open event streams of a server, which end when it stops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class OpenStreams:
    """The open streams of a server. `close` ends them, so that their clients reconnect, to another process."""

    def __init__(self) -> None:
        self._ends: set[Callable[[], object]] = set()
        self._is_closed = False

    @contextmanager
    def add(self, end: Callable[[], object]) -> Iterator[None]:
        """Have `close` call `end` while the context is open; call it now if it was called before."""
        self._ends.add(end)
        if self._is_closed:
            end()
        try:
            yield
        finally:
            self._ends.discard(end)

    def close(self) -> None:
        """End the open streams, and those that open later."""
        self._is_closed = True
        for end in [*self._ends]:
            end()
