"""Expressions are parsed even while another thread parses."""

from __future__ import annotations

import ast
import gc

import pytest

from framework.tools.builtin.data import parse_expression


def test_an_expression_is_parsed_although_another_parse_interrupts_it() -> None:
    """Old versions of CPython fail if a garbage collection, which may switch threads, parses in between."""
    interrupted: list[ast.Expression] = []

    def parse(phase: str, info: object) -> None:
        gc.callbacks.remove(parse)
        interrupted.append(ast.parse("1 + 1", mode="eval"))

    threshold = gc.get_threshold()
    gc.callbacks.append(parse)
    gc.set_threshold(20, 1, 1)
    try:
        tree = parse_expression("+".join(["1"] * 50))
    finally:
        gc.set_threshold(*threshold)
        if parse in gc.callbacks:
            gc.callbacks.remove(parse)
    assert isinstance(tree, ast.BinOp)
    assert interrupted


@pytest.mark.parametrize("source", ["", "1 +", "x = 1", "1\0"])
def test_other_text_is_an_error(source: str) -> None:
    with pytest.raises((SyntaxError, ValueError)):
        parse_expression(source)
