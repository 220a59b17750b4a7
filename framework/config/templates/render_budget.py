"""Counts the work of rendering a template, and measures values.

Work is counted in units of roughly a third of a microsecond. The count depends only on the values, never on a clock, so
a template that renders on one machine renders on every other.
"""

from __future__ import annotations

from collections.abc import ItemsView, KeysView, ValuesView
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

MAX_UNITS = 100_000
"""Units that rendering one template may take: about 30 ms."""
MAX_VALUE_SIZE = 1_000_000
"""Characters, bytes or items of a value that a template makes."""
MAX_INTEGER_BITS = 16_384
"""Bits of an integer that a template makes; Python prints 14,284 at most."""
CHARS_PER_UNIT = 64
"""Characters that a function of C handles in one unit."""
LIMIT_HINT = "bound what it repeats, such as `range([n, 100] | min)`"
VIEW_TYPES = (range, KeysView, ValuesView, ItemsView)
TEXT_TYPES = (str, bytes)
COLLECTION_TYPES = (list, tuple, set, frozenset)


class TemplateWorkError(Exception):
    """A template needs more time or memory than a prompt may take."""


@dataclass(slots=True)
class _Budget:
    """Units that one rendering may still take."""

    left: int = MAX_UNITS


_budget: ContextVar[_Budget | None] = ContextVar("agentsd_template_work", default=None)


def begin() -> None:
    """Count the work of this thread or task from zero."""
    _budget.set(_Budget())


def charge(units: int) -> None:
    """Count units of the current rendering before they are spent; raises TemplateWorkError if too few are left."""
    work = _budget.get()
    if work is None:
        return  # Jinja computes constants when it compiles a template
    work.left -= units
    if work.left < 0:
        raise TemplateWorkError(f"takes more than the {MAX_UNITS} steps that a prompt may take: {LIMIT_HINT}")


def require_size(size: int, *, most: int = MAX_VALUE_SIZE) -> None:
    """Count the work of making a value; raises TemplateWorkError if it would get too large."""
    if size > most:
        raise TemplateWorkError(f"makes a value of the size {size}; at most {most}: {LIMIT_HINT}")
    charge(max(size, 0) // CHARS_PER_UNIT)


def count_items(value: Any) -> int:
    """Items or characters of a value; 1 of any other."""
    return len(value) if isinstance(value, (*TEXT_TYPES, *COLLECTION_TYPES, *VIEW_TYPES, dict)) else 1


def shallow_units(value: Any) -> int:
    """Units of a pass over a value that leaves its items alone."""
    if isinstance(value, TEXT_TYPES):
        return 1 + len(value) // CHARS_PER_UNIT
    return 1 + len(value) if isinstance(value, (*COLLECTION_TYPES, *VIEW_TYPES)) else 1


def measure(value: Any) -> tuple[int, int]:
    """Units of a pass over a value and all that it contains, and how deep it nests."""
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
    """Count a pass over a value and all that it contains."""
    charge(1 + len(value) // CHARS_PER_UNIT if type(value) is str else measure(value)[0])
