"""Parses arithmetic with Python's own parser."""

from __future__ import annotations

import ast

_ATTEMPTS = 10
"""Attempts to parse an expression, each of which another thread can disturb."""


def parse_expression(source: str) -> ast.expr:
    """Return the syntax tree of an expression.

    Raises:
        SyntaxError, ValueError, MemoryError, RecursionError: it is no expression, or too deeply nested.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return ast.parse(source, mode="eval").body
        except SystemError:  # CPython before 3.11.8 and 3.12.2, if the garbage collector lets another thread parse
            continue
    return ast.parse(source, mode="eval").body
