"""A span as plugins get it: whatever they say of it, backends and stores can take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from framework.telemetry.span import TraceSpan
from framework.types.trace import AttributeValue

_MAX_TEXT_CHARS = 4096
"""Of a text."""
_INT_LIMIT = 2**63


class PluginSpan:
    """A part of a tool's work in the trace."""

    __slots__ = ("_span",)

    def __init__(self, span: TraceSpan) -> None:
        self._span = span

    def __enter__(self) -> Self:
        self._span.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._span.__exit__(kind, error, traceback)

    def set_attribute(self, name: str, value: Any, /) -> None:
        """Add what is known of it."""
        self._span.set_attributes(attributes({name: value}))

    def fail(self, error_type: str, /) -> None:
        """Mark it as failed."""
        self._span.fail(_text(error_type))


def attributes(given: Mapping[Any, Any]) -> dict[str, AttributeValue | None]:
    """What a plugin gave, as attributes: texts, numbers, truth values and lists of texts; anything else as its text."""
    return {_text(name): _attribute(value) for name, value in given.items()}


def _attribute(value: Any) -> AttributeValue | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and -_INT_LIMIT <= value < _INT_LIMIT:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, (list, tuple)):
        return [_text(item) for item in value]
    return _text(value)


def _text(value: object) -> str:
    return str(value)[:_MAX_TEXT_CHARS].encode("utf-8", "replace").decode()
