"""The span that plugins use; its attributes are validated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from framework.telemetry.spans import TraceSpan
from framework.types.trace import AttributeValue

_MAX_TEXT_CHARS = 4096
"""Length to which texts are cut."""
_INT_LIMIT = 2**63


class PluginSpan:
    """A span for part of a tool's work."""

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
        """Set an attribute of the span."""
        self._span.set_attributes(attributes({name: value}))

    def fail(self, error_type: str, /) -> None:
        """Mark the span as failed."""
        self._span.fail(_text(error_type))


def attributes(values: Mapping[Any, Any]) -> dict[str, AttributeValue | None]:
    """Convert a plugin's values to attributes: strings, numbers, booleans, string lists; anything else as a string."""
    return {_text(name): _attribute(value) for name, value in values.items()}


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
