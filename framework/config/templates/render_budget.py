"""Counts units of rendering work and measures values.

A unit is about a third of a microsecond. The count depends only on the values, not on a clock, so that a template
renders either on every machine or on none.
"""

from __future__ import annotations

from collections.abc import ItemsView, KeysView, ValuesView
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

MAX_UNITS = 100_000
"""Limit for rendering one template, in units: about 30 ms."""
MAX_VALUE_SIZE = 1_000_000
"""Limit for a value that a template creates, in characters, bytes or items."""
MAX_INTEGER_BITS = 16_384
"""Limit for an integer that a template creates, in bits; Python prints at most 14,284."""
CHARS_PER_UNIT = 64
"""Characters that a C function processes in one unit."""
LIMIT_HINT = "limit the repetitions, for instance `range([n, 100] | min)`"
VIEW_TYPES = (range, KeysView, ValuesView, ItemsView)
TEXT_TYPES = (str, bytes)
COLLECTION_TYPES = (list, tuple, set, frozenset)


class TemplateWorkError(Exception):
    """Raised when a template exceeds its limits of time or memory."""


@dataclass(slots=True)
class _Budget:
    """The remaining units of one rendering."""

    left: int = MAX_UNITS


_budget: ContextVar[_Budget | None] = ContextVar("agentsd_template_work", default=None)


def begin() -> None:
    """Start a new budget for the current thread or task."""
    _budget.set(_Budget())


def charge(units: int) -> None:
    """Deduct units from the budget before they are spent; raise TemplateWorkError if too few remain."""
    work = _budget.get()
    if work is None:
        return  # Jinja evaluates constants while it compiles a template
    work.left -= units
    if work.left < 0:
        raise TemplateWorkError(f"exceeds the limit of {MAX_UNITS} rendering steps: {LIMIT_HINT}")


def require_size(size: int, *, limit: int = MAX_VALUE_SIZE) -> None:
    """Count the work of creating a value; raise TemplateWorkError if the value would be too large."""
    if size > limit:
        raise TemplateWorkError(f"creates a value of size {size}; the limit is {limit}: {LIMIT_HINT}")
    charge(max(size, 0) // CHARS_PER_UNIT)


def count_items(value: Any) -> int:
    """Return the number of items or characters of a value; 1 if it has neither."""
    return len(value) if isinstance(value, (*TEXT_TYPES, *COLLECTION_TYPES, *VIEW_TYPES, dict)) else 1


def shallow_units(value: Any) -> int:
    """Return the units of a pass over a value without its nested values."""
    if isinstance(value, TEXT_TYPES):
        return 1 + len(value) // CHARS_PER_UNIT
    return 1 + len(value) if isinstance(value, (*COLLECTION_TYPES, *VIEW_TYPES)) else 1


def measure(value: Any) -> tuple[int, int]:
    """Return the units of a pass over a value and all nested values, and the depth of nesting."""
    units, depth, layer = 0, 0, [value]
    while layer and units <= MAX_UNITS:
        depth, units = depth + 1, units + len(layer)
        inner: list[Any] = []
        for node in layer:
            kind = type(node)
            if kind is str:
                units += len(node) // CHARS_PER_UNIT
            elif isinstance(node, dict):
                inner += node
                inner += node.values()
            elif isinstance(node, COLLECTION_TYPES):
                inner += node
            elif kind is int:
                units += (node.bit_length() // 512) ** 2
            elif isinstance(node, (*TEXT_TYPES, *VIEW_TYPES)):
                units += len(node) // (CHARS_PER_UNIT if isinstance(node, TEXT_TYPES) else 1)
            if len(inner) > MAX_UNITS:
                return MAX_UNITS + 1, depth
        layer = inner
    return units, depth


def charge_deep(value: Any) -> None:
    """Count a pass over a value and all nested values."""
    charge(1 + len(value) // CHARS_PER_UNIT if type(value) is str else measure(value)[0])
