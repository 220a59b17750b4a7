"""What a trace tells where nothing is to be told."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Untold:
    """A part of the work of which nothing is told: entering and leaving it does nothing, and exceptions pass."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None
