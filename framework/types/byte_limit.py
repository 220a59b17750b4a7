"""Counts the bytes of an HTTP body, so that no server can fill the memory of this process."""

from __future__ import annotations


class ByteLimit:
    """The size of a body, or of its current line, beside its limit.

    Args:
        limit: maximum number of bytes.
        per_line: count each line for itself, because readers buffer a line until its end and copy it with every piece.
    """

    def __init__(self, limit: int, *, per_line: bool = False) -> None:
        self._limit, self._per_line = limit, per_line
        self._size = 0

    def is_exceeded_by(self, piece: bytes) -> bool:
        """Add the next piece of the body; return whether the limit is exceeded."""
        end = piece.rfind(b"\n") if self._per_line else -1
        self._size = self._size + len(piece) if end < 0 else len(piece) - end - 1
        return self._size > self._limit
