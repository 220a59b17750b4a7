"""`calculator`, exact arithmetic on fractions, and `json_transform`, JMESPath expressions in a separate process."""

from __future__ import annotations

import ast
import json
import math
import operator
import re
import subprocess
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from fractions import Fraction
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from framework.tools.builtin.files import format_size
from framework.tools.child_processes import child_environment, isolated_python
from framework.tools.tool import ToolContext, tool
from framework.types.errors import ConfigError, ToolError
from framework.types.text import did_you_mean

# Only roots, fractional powers, and powers of fractions with too many digits are rounded, to 60 digits.


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


_MAX_CHARACTERS = 1_000
_MAX_DEPTH = 50
_MAX_BITS = 10_000
"""Maximum size of a numerator or denominator: about 3000 digits, which Python still converts to text."""
_MAX_ROUNDED_EXPONENT = 10**9
_MAX_DECIMAL_EXPONENT = 1_000
"""Maximum exponent of a literal such as 1e6, and maximum number of digits for `round`."""
_WORKING_DIGITS = 60
_RESULT_DIGITS = 15

_EXAMPLE = "an expression looks like (3 + 4.5) * 2 or mean([1, 2, 3])"
_TOKEN = re.compile(
    r"""\s+
    | (?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)(?:[eE][+-]?\d+)?(?![\w.])   # a number, not run together with a word
    | [A-Za-z_]\w*
    | [-+*/%(),\[\]]""",
    re.VERBOSE | re.ASCII,
)
_REPLACEMENTS: Mapping[str, str] = {"^": "**", "×": "*", "÷": "/", "−": "-", "√": "sqrt(x)", "{": "[", "}": "]"}

_Numbers = list[Fraction]


def evaluate_expression(expression: str) -> Fraction:
    """Return the value of an expression.

    Raises:
        ToolError: the expression is not arithmetic, is undefined, or its value is too large.
    """
    _check_characters(expression)
    source = expression.strip()
    try:
        tree = parse_expression(source)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ToolError(f"the expression is not valid arithmetic; {_EXAMPLE}") from None
    return _Expression(source).number(tree, 0)


def to_result(value: Fraction) -> int | float | str:
    """Return an int if the value is whole, else a float of at most 15 significant digits, or text if none fits."""
    if value.denominator == 1:
        return value.numerator
    digits = _decimal(value, _RESULT_DIGITS)
    nearest = float(digits)
    return nearest if Decimal(repr(nearest)) == digits else str(digits)


class _Expression(NamedTuple):
    """Evaluates the allowed part of Python's syntax tree; everything else is rejected."""

    source: str

    def number(self, node: ast.expr, depth: int) -> Fraction:
        value = self.value(node, depth)
        if isinstance(value, Fraction):
            return value
        raise ToolError(
            "a list is used as a number: pass it to sum, mean, median, min, max or count"
            " (a number has no thousands separators: 1000, not 1,000)"
        )

    def value(self, node: ast.expr, depth: int) -> Fraction | _Numbers:
        if depth > _MAX_DEPTH:
            raise ToolError(f"the expression is nested more than {_MAX_DEPTH} deep: calculate it in parts")
        match node:
            case ast.Constant():
                return self.literal(node)
            case ast.BinOp():
                return self.operations(node, depth)
            case ast.UnaryOp(op=ast.UAdd() | ast.USub()):
                operand = self.number(node.operand, depth + 1)
                return -operand if isinstance(node.op, ast.USub) else operand
            case ast.List() | ast.Tuple():
                return [self.number(item, depth + 1) for item in node.elts]
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return _checked(_call(name, [self.value(argument, depth + 1) for argument in arguments]))
            case ast.Name(id=name):
                raise ToolError(f"{name!r} has no value: write the number itself; {_EXAMPLE}")
        raise ToolError(f"only numbers, lists, + - * / // % ** and functions are supported; {_EXAMPLE}")

    def literal(self, node: ast.Constant) -> Fraction:
        if type(node.value) is int:
            return Fraction(node.value)
        if type(node.value) is not float:
            raise ToolError(f"only numbers are supported; {_EXAMPLE}")
        text = ast.get_source_segment(self.source, node) or ""
        exponent = text.lower().partition("e")[2]
        if exponent and abs(int(exponent)) > _MAX_DECIMAL_EXPONENT:
            raise ToolError(f"the number {text[:40]} is out of range")
        return _checked(Fraction(text))

    def operations(self, node: ast.BinOp, depth: int) -> Fraction:
        # The tree of `1 + 1 + 1 …` is as deep as the expression is long; a loop keeps it from counting as nesting.
        chain = [node]
        while isinstance(chain[-1].left, ast.BinOp):
            chain.append(chain[-1].left)
        value = self.number(chain[-1].left, depth + 1)
        for link in reversed(chain):
            value = _apply(link.op, value, self.number(link.right, depth + 1))
        return value


def _apply(sign: ast.operator, left: Fraction, right: Fraction) -> Fraction:
    if isinstance(sign, ast.Div | ast.FloorDiv | ast.Mod) and right == 0:
        raise ToolError("division by zero")
    match sign:
        case ast.Add():
            return _checked(left + right)
        case ast.Sub():
            return _checked(left - right)
        case ast.Mult():
            return _checked(left * right)
        case ast.Div():
            return _checked(left / right)
        case ast.FloorDiv():
            return Fraction(left // right)
        case ast.Mod():
            return _checked(left % right)
        case ast.Pow():
            return _checked(_power(left, right))
    raise ToolError(f"only the operators + - * / // % ** are supported; {_EXAMPLE}")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if base == 0 and exponent < 0:
        raise ToolError("division by zero: 0 has no negative power")
    if base in (0, 1):
        return base if exponent else Fraction(1)
    if exponent.denominator == 1:
        smallest_size = (max(base.numerator.bit_length(), base.denominator.bit_length()) - 1) * abs(exponent)
        if smallest_size <= _MAX_BITS:
            return Fraction(base ** int(exponent))
        if base.denominator == 1:
            raise _too_large()
    elif base < 0:
        raise ToolError("a negative number has no fractional power")
    return _rounded_power(base, exponent)


def _rounded_power(base: Fraction, exponent: Fraction) -> Fraction:
    if abs(exponent) > _MAX_ROUNDED_EXPONENT:
        raise _too_large()
    try:
        power = Context(prec=_WORKING_DIGITS, Emax=4_000, Emin=-4_000).power(
            _decimal(base, _WORKING_DIGITS), _decimal(exponent, _WORKING_DIGITS)
        )
    except ArithmeticError:
        raise _too_large() from None
    return Fraction(power)


def _square_root(value: Fraction) -> Fraction:
    if value < 0:
        raise ToolError("a negative number has no square root")
    root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
    if root * root == value:
        return root
    return Fraction(Context(prec=_WORKING_DIGITS).sqrt(_decimal(value, _WORKING_DIGITS)))


def _sum(numbers: _Numbers) -> Fraction:
    return reduce(lambda total, number: _checked(total + number), numbers, Fraction(0))


def _median(numbers: _Numbers) -> Fraction:
    ordered, middle = sorted(numbers), len(numbers) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


_LIST_FUNCTIONS: Mapping[str, Callable[[_Numbers], Fraction]] = {
    "sum": _sum,
    "count": lambda numbers: Fraction(len(numbers)),
    "mean": lambda numbers: _sum(numbers) / len(numbers),
    "median": _median,
    "min": min,
    "max": max,
}
_UNARY_FUNCTIONS: Mapping[str, Callable[[Fraction], Fraction]] = {"abs": operator.abs, "sqrt": _square_root}
_FUNCTIONS = tuple(sorted({*_LIST_FUNCTIONS, *_UNARY_FUNCTIONS, "round"}))


def _call(name: str, arguments: list[Fraction | _Numbers]) -> Fraction:
    if name not in _FUNCTIONS:
        raise ToolError(f"there is no function {name!r}{did_you_mean(name, _FUNCTIONS)}")
    plain = [argument for argument in arguments if isinstance(argument, Fraction)]
    if name in _LIST_FUNCTIONS:
        match arguments:
            case [list() as numbers]:
                return _call_list_function(name, numbers)
            case _ if len(plain) == len(arguments):
                return _call_list_function(name, plain)
        raise ToolError(f"{name} accepts one list or plain numbers: {name}([1, 2, 3]) or {name}(1, 2, 3)")
    if len(plain) != len(arguments) or not 1 <= len(plain) <= (2 if name == "round" else 1):
        usage = "round(x) or round(x, digits)" if name == "round" else f"{name}(x)"
        raise ToolError(f"{name} is used as {usage}, where x is one number")
    return _round(plain) if name == "round" else _UNARY_FUNCTIONS[name](plain[0])


def _call_list_function(name: str, numbers: _Numbers) -> Fraction:
    if not numbers and name not in ("sum", "count"):
        raise ToolError(f"{name} needs at least one number, for example {name}([1, 2, 3])")
    return _LIST_FUNCTIONS[name](numbers)


def _round(arguments: _Numbers) -> Fraction:
    digits = arguments[1] if len(arguments) == 2 else Fraction(0)
    if digits.denominator != 1 or abs(digits) > _MAX_DECIMAL_EXPONENT:
        raise ToolError(f"round(x, digits) needs a whole number of digits, at most {_MAX_DECIMAL_EXPONENT}")
    return Fraction(round(arguments[0], int(digits)))


def _check_characters(expression: str) -> None:
    if len(expression) > _MAX_CHARACTERS:
        raise ToolError(f"the expression has {len(expression)} characters; the limit is {_MAX_CHARACTERS}")
    if not expression.strip():
        raise ToolError(f"the expression is empty; {_EXAMPLE}")
    position = 0
    while position < len(expression):
        token = _TOKEN.match(expression, position)
        if token is None:
            char = expression[position]
            instead = f": write {_REPLACEMENTS[char]}" if char in _REPLACEMENTS else f"; {_EXAMPLE}"
            raise ToolError(f"{ascii(char) if ord(char) < 32 else repr(char)} is not allowed{instead}")
        position = token.end()


def _checked(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
        raise _too_large()
    return value


def _too_large() -> ToolError:
    return ToolError("the result is too large or has too many digits (the limit is about 3000)")


def _decimal(value: Fraction, digits: int) -> Decimal:
    return Context(prec=digits).divide(Decimal(value.numerator), Decimal(value.denominator))


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


MAX_DATA_BYTES = 10 * 1024 * 1024
_MAX_EXPRESSION_CHARS = 2_000
_MAX_SECONDS = 5.0
_WORKER = Path(__file__).with_name("jmespath_process.py")
_PROGRAM = "import runpy; runpy.run_path(sys.argv[1], run_name='__main__')"


@tool(risk="low", idempotent=True, paths="path")
def json_transform(expression: str, data: str | None = None, path: str | None = None, *, context: ToolContext) -> Any:
    """Select, filter and reshape JSON with a JMESPath expression. Give the JSON itself as data, or a file as path.

    Args:
        expression: JMESPath, such as items[?price > `10`].{name: name, cost: price} or length(items) or keys(@).
        data: The JSON text.
        path: A JSON file of up to 10 MB, relative to the base folder.
        context: The run.
    """
    if (data is None) == (path is None):
        raise ToolError("give either data or path")
    if not expression.strip() or len(expression) > _MAX_EXPRESSION_CHARS:
        raise ToolError(f"the expression must have 1 to {_MAX_EXPRESSION_CHARS} characters; @ is all of the data")
    text = data if data is not None else _content(context, path or "")
    if len(text) > MAX_DATA_BYTES:
        raise ToolError(f"the data is larger than {format_size(MAX_DATA_BYTES)}")
    result = evaluate_jmespath(expression, text)
    return "null: the expression matches nothing in the data" if result is None else result


def _content(context: ToolContext, path: str) -> str:
    with context.open(path) as file:
        content = file.read(MAX_DATA_BYTES + 1)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ToolError(f"the file is not UTF-8 text (at byte {error.start + 1})") from None


def check_jmespath(expression: str) -> None:
    """Raise ConfigError if an expression of the operator is invalid."""
    try:
        import_module("jmespath").compile(expression)  # takes 0.1 s to import
    except ValueError as error:
        raise ConfigError(f"not a JMESPath expression: {' '.join(str(error).split())}") from None


def evaluate_jmespath(expression: str, data: str) -> Any:
    """Return the result of an expression for JSON text, within limits; raise ToolError. Blocks until it is known."""
    request = json.dumps({"expression": expression, "data": data})
    try:
        process = subprocess.run(
            isolated_python(_PROGRAM, str(_WORKER)),
            input=request.encode(),
            capture_output=True,
            env=child_environment(),
            timeout=_MAX_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ToolError("evaluating the expression takes too long") from None
    if process.returncode < 0:  # killed by its CPU limit
        raise ToolError("evaluating the expression takes too long")
    if process.returncode > 0:
        reason = process.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise ToolError(f"the expression could not be evaluated: {reason}")
    answer: dict[str, str] = json.loads(process.stdout)
    if "error" in answer:
        raise ToolError(answer["error"])
    return json.loads(answer["result"])
