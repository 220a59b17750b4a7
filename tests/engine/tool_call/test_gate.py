"""The gate: the only place of the path of a tool call where the policy is evaluated."""

from __future__ import annotations

import ast

from tests.support.paths import ROOT

CALLS = ROOT / "framework/engine/tool_call"


def test_the_policy_is_evaluated_in_one_function_of_the_path_of_a_call() -> None:
    places = {
        f"{path.name}: {function.name}"
        for path in CALLS.glob("*.py")
        for function in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and node.attr == "evaluate"
    }
    assert places == {
        "call.py: evaluate_call",
        "call.py: explain_call",
    }  # the second one explains calls that are not made
