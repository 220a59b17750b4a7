"""The spans that a tool can add to the trace."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol


class ToolSpan(Protocol):
    """A span of a tool."""

    def set_attribute(self, name: str, value: Any, /) -> None:
        """Set an attribute. Do not include text of users or models."""
        ...

    def fail(self, error_type: str, /) -> None:
        """Mark the span as failed. `error_type` is one of a small set of values, never a message."""
        ...


class StartSpan(Protocol):
    """Starts a span."""

    def __call__(
        self, name: str, attributes: Mapping[str, Any] | None = None, *, client: bool = False
    ) -> AbstractContextManager[ToolSpan]:
        """Start a span with a constant name. Set `client` if it is a call to another service."""
        ...


class _NoopSpan:
    def set_attribute(self, name: str, value: Any, /) -> None:
        """Nothing is recorded."""

    def fail(self, error_type: str, /) -> None:
        """Nothing is recorded."""


def noop_span(
    name: str,  # noqa: ARG001 - the signature is StartSpan's
    attributes: Mapping[str, Any] | None = None,  # noqa: ARG001 - the signature is StartSpan's
    *,
    client: bool = False,  # noqa: ARG001 - the signature is StartSpan's
) -> AbstractContextManager[ToolSpan]:
    """Return a no-op span, used when nothing is recorded."""
    return nullcontext(_NoopSpan())
