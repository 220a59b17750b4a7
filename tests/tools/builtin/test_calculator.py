"""The calculator is exact, rejects everything that is not arithmetic, and is never slow."""

from __future__ import annotations

import json
import operator
import time
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.tools.builtin import BUILTIN_TOOLS
from framework.tools.builtin.data import calculator, evaluate_expression
from framework.types.errors import ToolError
from tests.support.cases import cases, each

Calculation = tuple[str, Fraction]


@each(
    ("expression", "result"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("0.1 + 0.2", 0.3),
        ("1/3*3", 1),
        ("1/3", 0.333333333333333),
        ("10/4", 2.5),
        ("-2 ** 2", -4),
        ("2 ** -2", 0.25),
        ("2 ** 0.5", 1.4142135623731),
        ("7 // 2", 3),
        ("-7 // 2", -4),
        ("-7 % 3", 2),
        ("5.5 % 2", 1.5),
        ("1e6", 1_000_000),
        ("1_000 + .5 + 2.", 1002.5),
        (" 3 \n", 3),
        ("2 ** 100", 2**100),
        ("1.00000000000000000001 - 1", 1e-20),
        ("0 ** 0", 1),
        ("(-1) ** 10 ** 30", 1),
        ("+-+3", -3),
    ],
)
def test_arithmetic_is_exact(expression: str, result: float) -> None:
    answer = calculator(expression)

    assert answer == result
    assert type(answer) is type(result)


@each(
    ("expression", "result"),
    [
        ("mean([3, 5, 10])", 6),
        ("mean(0.1, 0.2)", 0.15),
        ("median([5, 1, 3])", 3),
        ("median(4, 1, 3, 2)", 2.5),
        ("sum([0.1] )", 0.1),
        ("sum([])", 0),
        ("min([3, 1, 2])", 1),
        ("max(1, 2, 3)", 3),
        ("max((1, 2, 3))", 3),
        ("count([4, 4, 4])", 3),
        ("count()", 0),
        ("abs(-3.5)", 3.5),
        ("sqrt(16)", 4),
        ("sqrt(0.25)", 0.5),
        ("sqrt(2)", 1.4142135623731),
        ("round(2.675, 2)", 2.68),
        ("round(2.5)", 2),
        ("round(1234, -2)", 1200),
        ("round(100 * 1.035 ** 10, 2)", 141.06),
        ("max([sqrt(9), 2 ** 2, mean(1, 2)]) - 1", 3),
    ],
)
def test_functions_accept_lists_or_plain_arguments(expression: str, result: float) -> None:
    assert calculator(expression) == result


def test_a_fraction_to_a_large_power_is_rounded_not_rejected() -> None:
    assert calculator("1.004166666667 ** 360") == pytest.approx(1.004166666667**360, rel=1e-12)


def test_results_outside_the_range_of_floats_are_text() -> None:
    assert calculator("1 / 10 ** 400") == "1E-400"
    assert calculator("10 ** 400 + 1/3") == "1.00000000000000E+400"


def test_a_long_sum_does_not_count_as_nesting() -> None:
    assert calculator("+".join(["1"] * 500)) == 500


@each(
    ("expression", "message"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("1 +", r"not valid arithmetic; an expression looks like"),
        ("007", "not valid arithmetic"),
        ("2 ^ 3", r"'\^' is not allowed: write \*\*"),
        ("2 × 3", r"write \*"),
        ("$5", r"'\$' is not allowed"),
        ("1\x002", r"'\\x00' is not allowed"),
        ("5 kg", "not valid arithmetic"),
        ("0xff", "'0' is not allowed"),
        ("1j", "'1' is not allowed"),
        ("'a' * 3", "is not allowed"),
        ("True + 1", "only numbers are supported"),
        ("x + 1", "'x' has no value"),
        ("1,000 + 1", "1000, not 1,000"),
        ("[1, 2] + 1", "a list is used as a number"),
        ("[[1]]", "a list is used"),
        ("1 / 0", "division by zero"),
        ("1 // 0", "division by zero"),
        ("1 % 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("(-8) ** 0.5", "negative number has no fractional power"),
        ("sqrt(-1)", "negative number has no square root"),
        ("mean([])", "mean needs at least one number"),
        ("max()", "max needs at least one number"),
        ("avg([1, 2])", "there is no function 'avg'"),
        ("maen([1, 2])", "did you mean mean"),
        ("sum([1], 2)", "sum accepts one list or plain numbers"),
        ("sum([1], [2])", "sum accepts one list or plain numbers"),
        ("abs([1])", r"abs is used as abs\(x\)"),
        ("sqrt(1, 2)", r"sqrt is used as sqrt\(x\)"),
        ("round()", r"round is used as round\(x\) or round\(x, digits\)"),
        ("round(1, 0.5)", "whole number of digits"),
        ("round(1, 10 ** 9)", "whole number of digits"),
        ("2(3)", "only numbers, lists"),
        ("max(*[1, 2])", "only numbers, lists"),
        ("1 if 1 else 2", "only numbers, lists"),
        ("1 @ 2", "is not allowed"),
        ("2 is 2", "only numbers, lists"),
        ("().__class__", "is not allowed"),
        ("__import__", "has no value"),
        ("eval(1)", "there is no function 'eval'"),
    ],
)
def test_rejections_name_the_problem(expression: str, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        calculator(expression)


@each(
    "expression",
    [
        "9 ** 9 ** 9",
        "9 ** 9 ** 9 ** 9",
        "2 ** (10 ** 9)",
        "2 ** -(10 ** 9)",
        "1.5 ** 10 ** 9",
        "1.5 ** 10 ** 300",
        "0.1 ** 1e999",
        "1e-999999999",
        "1e999999999",
        "10 ** 3000 * 10 ** 3000",
        "9" * 5000,
        "(" * 400 + "1" + ")" * 400,
        "[" * 150 + "]" * 150,
        "-" * 900 + "1",
        "abs(" * 100 + "1" + ")" * 100,
        "2 **" * 300 + "2",
        f"sum([{','.join(f'1/{base}**3000' for base in range(2, 70))}])",
    ],
)
def test_an_expensive_expression_is_rejected_immediately(expression: str) -> None:
    started = time.process_time()

    with pytest.raises(ToolError):
        calculator(expression)

    assert time.process_time() - started < 1


def test_the_tool_accepts_one_string_and_is_idempotent() -> None:
    named = {tool.name: tool for tool in BUILTIN_TOOLS}["calculator"]

    assert (named.risk, named.idempotent, named.source) == ("low", True, "builtin")
    assert named.definition.parameters["required"] == ["expression"]
    assert "mean([3, 5, 10])" in named.definition.parameters["properties"]["expression"]["description"]


def literals() -> st.SearchStrategy[Calculation]:
    whole = st.integers(0, 10**6).map(str)
    decimal = st.tuples(st.integers(0, 999), st.integers(0, 9999)).map(lambda pair: f"{pair[0]}.{pair[1]}")
    return (whole | decimal).map(lambda text: (text, Fraction(text)))


OPERATORS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": operator.mod,
    "//": lambda left, right: Fraction(left // right),
}


@st.composite
def operations(draw: st.DrawFn, operands: st.SearchStrategy[Calculation]) -> Calculation:
    (left, left_value), (right, right_value) = draw(operands), draw(operands)
    sign = draw(st.sampled_from(sorted(OPERATORS)))
    if sign in ("/", "//", "%") and right_value == 0:
        sign = "+"
    return f"({left}) {sign} ({right})", OPERATORS[sign](left_value, right_value)


@st.composite
def over_lists(draw: st.DrawFn, operands: st.SearchStrategy[Calculation]) -> Calculation:
    items = draw(st.lists(operands, min_size=1, max_size=4))
    inner, values = ", ".join(text for text, _ in items), [value for _, value in items]
    name, value = draw(
        st.sampled_from(
            [
                ("sum", sum(values, Fraction(0))),
                ("mean", sum(values, Fraction(0)) / len(values)),
                ("min", min(values)),
                ("max", max(values)),
            ]
        )
    )
    return (f"{name}([{inner}])" if draw(st.booleans()) else f"{name}({inner})"), value


CALCULATIONS = st.recursive(
    literals(),
    lambda inner: operations(inner) | over_lists(inner) | inner.map(lambda pair: (f"-({pair[0]})", -pair[1])),
    max_leaves=12,
).filter(lambda pair: len(pair[0]) <= 1000)


@cases(100)
@given(CALCULATIONS)
def test_the_calculator_agrees_with_fraction_arithmetic(calculation: Calculation) -> None:
    expression, value = calculation

    assert evaluate_expression(expression) == value


@cases(100)
@given(CALCULATIONS)
def test_results_are_json_numbers_with_fifteen_correct_digits(calculation: Calculation) -> None:
    expression, value = calculation

    answer = calculator(expression)

    assert isinstance(answer, int | float)
    assert json.loads(json.dumps(answer)) == answer
    assert abs(Fraction(str(answer)) - value) <= abs(value) * Fraction(1, 10**14)
    assert isinstance(answer, int) == (value.denominator == 1)


PIECES = st.sampled_from(
    [
        *"0123456789.eE_+-*/%()[],^ \n\t#=:'\"\\\0",
        *("**", "//", "9**9", "1e9", "sqrt(", "max(", "round(", "if", "or", "lambda", "not", "await", "f'{1}'"),
    ]
)


@cases(100)
@given(st.text() | st.lists(PIECES, max_size=60).map("".join))
def test_any_text_returns_a_number_or_raises_a_tool_error(text: str) -> None:
    started = time.process_time()

    with suppress(ToolError):
        assert json.dumps(calculator(text))

    assert time.process_time() - started < 1
