"""The open event streams of a server, which end when it stops, and what they hold for clients that do not read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

MAX_HELD_BYTES = 64 * 1024 * 1024
"""Limit of the events that clients have not read yet, in all streams together; what several read counts once."""


class EncodedEvent:
    """An event as it is sent, which all of its readers share while one of them has not read it."""

    __slots__ = ("__weakref__", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data


class OpenStreams:
    """The open streams of a server. `close` ends them, so that their clients reconnect, to another process."""

    def __init__(self, max_held_bytes: int = MAX_HELD_BYTES) -> None:
        self._ends: set[Callable[[], object]] = set()
        self._is_closed = False
        self._max_held_bytes = max_held_bytes
        self._sending: dict[object, tuple[bytes, Callable[[], object]]] = {}
        """What is being sent, and how to end its stream; those that wait longest for their client first."""
        self._copies: Counter[int] = Counter()
        """Number of streams that send the same bytes, by the identity of these."""
        self.held_bytes = 0
        """Size of what is being sent."""
        self.encoded = WeakValueDictionary[tuple[str, int], EncodedEvent]()
        """Events that are being sent, by run and number."""

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

    @contextmanager
    def sending(self, data: bytes, end: Callable[[], object]) -> Iterator[None]:
        """Count what a stream sends while the context is open.

        Beyond the limit, `end` is called for the streams whose clients have not read for longest: they reconnect.
        """
        key = object()
        self._sending[key] = (data, end)
        self._copies[id(data)] += 1
        self.held_bytes += len(data) if self._copies[id(data)] == 1 else 0
        while self.held_bytes > self._max_held_bytes and len(self._sending) > 1:
            oldest = next(iter(self._sending))
            self._sending[oldest][1]()
            self._forget(oldest)
        try:
            yield
        finally:
            self._forget(key)

    def _forget(self, key: object) -> None:
        data, _ = self._sending.pop(key, (b"", None))
        if data:
            self._copies[id(data)] -= 1
            if not self._copies[id(data)]:
                del self._copies[id(data)]
                self.held_bytes -= len(data)

    def close(self) -> None:
        """End the open streams, and those that open later."""
        self._is_closed = True
        for end in [*self._ends]:
            end()
