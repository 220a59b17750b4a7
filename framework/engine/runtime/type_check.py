"""Checks the types of values that a program passes to the Python API."""

from __future__ import annotations

from framework.types.errors import RequestError


def require_type(name: str, value: object, *types: type) -> None:
    """Raise RequestError unless the value has one of the types. The error names the value's type, not the value."""
    if not isinstance(value, types):
        expected = " or ".join(one.__name__ for one in types)
        raise RequestError(f"{name}: expected {expected}, got {type(value).__name__}", param=name)
