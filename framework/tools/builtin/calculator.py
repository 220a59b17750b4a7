"""The tool `calculator`; `arithmetic` evaluates its expressions."""

from __future__ import annotations

from framework.tools.builtin.arithmetic import evaluate_expression, to_result
from framework.tools.tool import tool


@tool(risk="low", idempotent=True)
def calculator(expression: str) -> int | float | str:
    """Calculate an arithmetic expression exactly.

    Supports + - * / // % ** and ( ); sum, mean, median, min, max and count of a list or of plain arguments; abs(x),
    sqrt(x) and round(x, digits), which rounds halves to the even digit. Whole results are exact, others have at most 15
    significant digits; results too large or too small for a floating-point number are returned as text.

    Args:
        expression: For example (3 + 4.5) * 2, mean([3, 5, 10]) or round(100 * 1.035 ** 10, 2). No variables, units or
            thousands separators; power is **.
    """
    return to_result(evaluate_expression(expression))
