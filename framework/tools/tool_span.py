"""The parts of a tool's work that it shows in the trace."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol


class ToolSpan(Protocol):
    """A part of a tool's work in the trace."""

    def set_attribute(self, name: str, value: Any, /) -> None:
        """Add what is known of it: never what a user or a model said."""
        ...

    def fail(self, error_type: str, /) -> None:
        """Mark it as failed: one of few words, never a message."""
        ...


class StartSpan(Protocol):
    """Opens such a part."""

    def __call__(
        self, name: str, attributes: Mapping[str, Any] | None = None, *, client: bool = False
    ) -> AbstractContextManager[ToolSpan]:
        """Open it under a constant name; `client`: another service is called."""
        ...


class _NoopSpan:
    def set_attribute(self, name: str, value: Any, /) -> None:
        """Nothing is recorded."""

    def fail(self, error_type: str, /) -> None:
        """Nothing is recorded."""


def noop_span(
    name: str,  # noqa: ARG001 - the signature is OpenSpan's
    attributes: Mapping[str, Any] | None = None,  # noqa: ARG001 - the signature is OpenSpan's
    *,
    client: bool = False,  # noqa: ARG001 - the signature is OpenSpan's
) -> AbstractContextManager[ToolSpan]:
    """No-op span, used where nothing is recorded."""
    return nullcontext(_NoopSpan())
