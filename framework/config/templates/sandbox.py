"""Jinja environment that limits the time and memory of rendering, for any values of the variables.

Callers choose the values of an agent's inputs, so `{{ 'x' * n }}` or a loop over `range(n)` could block every run of
the process. The sandbox counts the work: each loop body, macro and template counts its passes, and each operator,
filter and method computes its work before it runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, update_wrapper
from types import BuiltinMethodType, CodeType, MethodType
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.filters import FILTERS
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.tests import TESTS
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

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


def start_budget() -> None:
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


_MAX_PRECISION = 1_000
_COPIED_BYTES_PER_UNIT = 4_096
"""Bytes that can be copied in one unit."""
_BASE_UNITS = 2
"""Units of any filter, operator or test, in addition to its work."""
_NUMBER = re.compile(r"\d+")


def charge_operator(operator: str, left: Any, right: Any) -> None:
    """Count the work of a binary operator; raise TemplateWorkError if it exceeds a limit."""
    charge(_BASE_UNITS)
    if operator == "%" and isinstance(left, TEXT_TYPES):
        charge_format(left, right if isinstance(right, tuple) else (right,))
    elif operator == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(value, (*TEXT_TYPES, list, tuple)) and isinstance(times, int):
                require_size(len(value) * max(times, 0))
    elif (
        operator == "+"
        and isinstance(left, (*TEXT_TYPES, list, tuple))
        and isinstance(right, (*TEXT_TYPES, list, tuple))
    ):
        require_size(len(left) + len(right))
    if isinstance(left, int) and isinstance(right, int):
        _charge_integers(operator, left.bit_length(), right)


def _charge_integers(operator: str, bits: int, right: int) -> None:
    size = bits + right.bit_length()
    if operator == "**":
        size = bits * max(right, 0) if bits > 1 else 1
    if size > MAX_INTEGER_BITS:
        raise TemplateWorkError(f"creates a number of {size} bits; the limit is {MAX_INTEGER_BITS}: {LIMIT_HINT}")
    charge((size // 512) ** 2)


def charge_format(template: str | bytes, values: Sequence[Any]) -> None:
    """Count the work of `template % values`; raise TemplateWorkError if it exceeds a limit."""
    text = template if isinstance(template, str) else template.decode("latin-1")
    fields = text.count("%")
    widths = sum(_width(digits) for digits in _NUMBER.findall(text))
    widths += sum(abs(value) for value in values if isinstance(value, int)) if "*" in text else 0
    largest = max((measure(value)[0] for value in _format_values(values)), default=0)
    require_size(len(text) + widths + fields * largest * CHARS_PER_UNIT)


def _format_values(values: Sequence[Any]) -> list[Any]:
    return [part for value in values for part in (value.values() if isinstance(value, Mapping) else (value,))]


def _width(digits: str) -> int:
    return int(digits) if len(digits) < 10 else MAX_VALUE_SIZE + 1


def charge_field(text: str, specification: str) -> None:
    """Count the work of one field of `str.format`."""
    require_size(len(text) + sum(_width(digits) for digits in _NUMBER.findall(specification)))


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _length(value: Any) -> int:
    return len(value) if isinstance(value, TEXT_TYPES) else 4 * measure(value)[0]


def _padded(value: Any, width: Any = 80, *_: Any) -> None:
    require_size(_length(value) + _number(width))


def _indented(value: Any, width: Any = 4, *_: Any, **__: Any) -> None:
    lines = value.count("\n") + 1 if isinstance(value, str) else 1
    require_size(_length(value) + lines * (len(width) if isinstance(width, str) else _number(width)))


def _replaced(value: Any, old: Any, new: Any, count: Any = None, *_: Any) -> None:
    if isinstance(value, TEXT_TYPES) and isinstance(old, type(value)):
        occurrences = value.count(old)  # type: ignore[arg-type]  # both are of the same type
        times = min(occurrences, count) if isinstance(count, int) and count >= 0 else occurrences
        require_size(len(value) + times * _length(new))


def _joined(items: Any, separator: Any = "", *_: Any, **__: Any) -> None:
    if isinstance(items, (*COLLECTION_TYPES, *VIEW_TYPES, *TEXT_TYPES, dict)):
        between = len(items) * _length(separator)
        require_size(between + (4 * len(items) if isinstance(items, TEXT_TYPES) else sum(map(_length, items))))


def _joined_by(separator: Any, items: Any = (), *_: Any) -> None:
    _joined(items, separator)


def _filled(_: Any, count: Any, *__: Any, **___: Any) -> None:
    require_size(abs(_number(count)))
    charge(abs(_number(count)))


def _translated(value: Any, table: Any, *_: Any) -> None:
    longest = max(map(_length, table.values()), default=1) if isinstance(table, Mapping) else 1
    require_size(_length(value) * max(longest, 1))


def _with_tabs(value: Any, width: Any = 8, *_: Any) -> None:
    if isinstance(value, TEXT_TYPES):
        tabs = value.count("\t" if isinstance(value, str) else b"\t")  # type: ignore[arg-type]  # chosen by its type
        require_size(len(value) + tabs * _number(width))


def _sized(_: Any, length: Any = 1, *__: Any, **___: Any) -> None:
    require_size(_number(length))


def _searched(value: Any, pattern: Any = "", *_: Any) -> None:
    if isinstance(value, TEXT_TYPES) and isinstance(pattern, (*TEXT_TYPES, tuple)):
        charge(len(value) * max(_length(pattern), 1) // 1024)


def _rounded(_: Any, precision: Any = 0, *__: Any, **___: Any) -> None:
    if abs(_number(precision)) > _MAX_PRECISION:
        raise TemplateWorkError(f"rounds to {precision} digits; the limit is {_MAX_PRECISION}: {LIMIT_HINT}")


def _formatted(value: Any, *args: Any, **kwargs: Any) -> None:
    if isinstance(value, TEXT_TYPES):
        charge_format(value, (*args, *kwargs.values()))


def _summed(items: Any, attribute: Any = None, start: Any = 0) -> None:
    del attribute
    if isinstance(start, (*COLLECTION_TYPES, *TEXT_TYPES)) and isinstance(items, (*COLLECTION_TYPES, *VIEW_TYPES)):
        require_size(len(items) * measure(items)[0])


def _as_json(value: Any, indent: Any = None, *_: Any) -> None:
    if indent is not None:
        units, depth = measure(value)
        require_size(units * depth * max(_number(indent), len(indent) if isinstance(indent, str) else 1))


def _pretty(value: Any, *_: Any) -> None:
    units, depth = measure(value)
    charge(units * depth // 2)


def _links(value: Any, *args: Any, **kwargs: Any) -> None:
    text = value if isinstance(value, str) else ""
    longest = max(map(len, text.split()), default=0)
    charge(longest * longest // CHARS_PER_UNIT)
    words = text.count(".") + text.count("@") + text.count(":")
    require_size(_length(value) + words * sum(len(item) for item in (*args, *kwargs.values()) if isinstance(item, str)))


def _without_tags(value: Any, *_: Any) -> None:
    if isinstance(value, str):
        charge(len(value) * value.count("<") // _COPIED_BYTES_PER_UNIT)


def _wrapped(value: Any, width: Any = 79, break_long_words: Any = True, wrapstring: Any = None, *_: Any) -> None:
    del break_long_words
    if isinstance(value, str):
        lines = len(value) // max(_number(width), 1) + value.count("\n") + 1
        longest = max(map(len, value.split()), default=0)
        charge(longest * longest // max(_number(width), 1) // _COPIED_BYTES_PER_UNIT)
        require_size(len(value) + lines * _length(wrapstring or "\n"))


_GROWING_FILTERS: Mapping[str, Callable[..., None]] = {
    "batch": _filled,
    "center": _padded,
    "format": _formatted,
    "indent": _indented,
    "join": _joined,
    "pprint": _pretty,
    "replace": _replaced,
    "round": _rounded,
    "slice": _filled,
    "striptags": _without_tags,
    "sum": _summed,
    "tojson": _as_json,
    "trim": _searched,
    "urlize": _links,
    "wordwrap": _wrapped,
}
"""Filters whose result or work can be many times larger than their input."""
_GROWING_METHODS: Mapping[str, Callable[..., None]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _padded),
    **dict.fromkeys(("strip", "lstrip", "rstrip", "rfind", "rindex", "rsplit", "rpartition"), _searched),
    "expandtabs": _with_tabs,
    "join": _joined_by,
    "replace": _replaced,
    "to_bytes": _sized,
    "translate": _translated,
}
"""Methods of built-in types whose result or work can be many times larger than their input."""
_CONSTANT_FILTERS = frozenset(
    {"abs", "attr", "count", "d", "default", "filesizeformat", "first", "float", "last", "length"}
)
_CONSTANT_FILTERS |= {"random"}
"""Filters that do not read their whole input."""
_PER_ITEM_FILTERS = frozenset({"items", "map", "reject", "rejectattr", "select", "selectattr"})
"""Filters that evaluate an expression or test for each item."""
_COPYING_FILTERS = frozenset({"batch", "list", "reverse", "slice"})
"""Filters that copy references to the items."""
_COMBINING_FILTERS = frozenset({"groupby", "join", "max", "min", "sort", "sum", "unique"})
"""Filters that read a whole iterator before they return."""
_FILTER_FACTORS: Mapping[str, int] = {
    **dict.fromkeys(("dictsort", "groupby", "sort", "unique", "xmlattr"), 4),
    **dict.fromkeys(("pprint", "striptags", "title", "urlencode", "urlize", "wordcount", "wordwrap"), 16),
}
"""Work of slow filters, as a multiple of a pass in C."""
COMPARING_TESTS = frozenset({"in", "lower", "upper", "==", "eq", "equalto", "!=", "ne", ">", "gt", "greaterthan", "ge"})
COMPARING_TESTS |= {">=", "<", "lt", "lessthan", "<=", "le"}
"""Tests that read their whole operands."""


def charge_filter(name: str, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Count the work of a filter; return its input, as a list if it is an iterator that is read whole."""
    if name in _COMBINING_FILTERS and isinstance(value, Iterator):
        value = list(value)
    charge(_BASE_UNITS)
    if (args or kwargs) and name not in _CONSTANT_FILTERS:
        texts = sum(len(one) // CHARS_PER_UNIT for one in (*args, *kwargs.values()) if isinstance(one, TEXT_TYPES))
        charge(texts * (1 if isinstance(value, TEXT_TYPES) and name in _GROWING_FILTERS else count_items(value)))
    if name in _PER_ITEM_FILTERS:
        charge(shallow_units(value))
    elif name in _COPYING_FILTERS:
        charge(1 + shallow_units(value) // 16)
    elif name not in _CONSTANT_FILTERS:
        charge(4 * count_items(value) if name in _COMBINING_FILTERS else 0)
        charge(
            (1 + len(value) // CHARS_PER_UNIT if type(value) is str else measure(value)[0])
            * _FILTER_FACTORS.get(name, 1)
        )
    if grows := _GROWING_FILTERS.get(name):
        grows(value, *args, **kwargs)
    return value


def charge_method(name: str, owner: Any, args: Iterable[Any], kwargs: Mapping[str, Any]) -> None:
    """Count the work of a method of a string, number or collection."""
    charge(shallow_units(owner) if isinstance(owner, TEXT_TYPES) else 0)
    if grows := _GROWING_METHODS.get(name):
        grows(owner, *args, **kwargs)


def charge_test(operands: Iterable[Any]) -> None:
    """Count the work of a test."""
    charge(_BASE_UNITS + sum(measure(operand)[0] for operand in operands))


_CHARGE_UNITS, _CHARGE_SHALLOW, _CHARGE_DEEP = "(pass)", "(own)", "(whole)"
"""Names of internal filters that count work. Templates cannot use them, because they are not identifiers."""
_CALL_UNITS = 6
"""Units of any call, in addition to its work."""
_EXPRESSIONS_PER_UNIT = 3
"""Expressions of a body that can be evaluated in one unit."""
_LITERALS = (nodes.Const, nodes.TemplateData)
_BUILTIN_TYPES = (str, bytes, int, float, list, tuple, dict, set, frozenset)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox that counts work; `start_budget` starts a budget."""

    intercepted_binops = frozenset({"+", "*", "**", "%", "//"})

    def __init__(self, finalize: Callable[[Any], Any] | None = None, **options: Any) -> None:
        """Create the environment. `finalize` is applied to each value that a template inserts."""
        super().__init__(**options, finalize=(lambda value: finalize(_output(value))) if finalize else _output)
        self.filters.update(_filters())
        self.tests.update(_tests())

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        charge_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as Jinja's
        charge(_CALL_UNITS)
        owner = __obj.__self__ if isinstance(__obj, (BuiltinMethodType, MethodType)) else None
        if isinstance(owner, _BUILTIN_TYPES):
            charge_method(__obj.__name__, owner, args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is None:
            return None
        text = value.__self__
        escaping = isinstance(text, Markup)
        formatter = _EscapeFormatter(self, escape=text.escape) if escaping else _Formatter(self)

        def wrapper(*args: Any, **kwargs: Any) -> str:
            charge_deep(text)
            mapped = value.__name__ == "format_map" and len(args) == 1
            formatted: str = type(text)(formatter.vformat(text, *(((), args[0]) if mapped else (args, kwargs))))
            return formatted

        return update_wrapper(wrapper, value)

    def compile(  # type: ignore[override]  # not the overload for `raw`, which returns the code as text
        self, source: str | nodes.Template, name: str | None = None, filename: str | None = None, **options: Any
    ) -> CodeType:
        tree = self.parse(source, name, filename) if isinstance(source, str) else source
        _ChargeInserter(self).visit(tree)
        code: CodeType = super().compile(tree, name, filename, **options)
        return code


class _Formatter(SandboxedFormatter):
    """`str.format` that counts the work of each field."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        charge_deep(value)
        charge(_CALL_UNITS)
        charge_field("", format_spec)
        text = super().format_field(value, format_spec)
        charge_field(text, "")
        return text


class _EscapeFormatter(_Formatter, SandboxedEscapeFormatter):
    """The same formatter for text that is marked as safe."""


class _ChargeInserter(NodeTransformer):
    """Inserts the counting of passes, and of values that compiled operators read, into a syntax tree."""

    def __init__(self, environment: BoundedEnvironment) -> None:
        self._environment = environment

    def visit_Template(self, node: nodes.Template) -> nodes.Node:  # noqa: N802 - as Jinja calls them
        return self._with_charge(node)

    visit_Block = visit_Macro = visit_CallBlock = visit_Template  # noqa: N815 - as Jinja calls them

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - as Jinja calls them
        self._with_charge(node)
        if node.test is not None:  # it is also evaluated for items that do not reach the body
            node.iter = self._charged(_CHARGE_SHALLOW, node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - as Jinja calls them
        self.generic_visit(node)
        node.nodes = [self._charged(_CHARGE_DEEP, item) for item in node.nodes]
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802 - as Jinja calls them
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = self._charged(_CHARGE_SHALLOW, node.node)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802 - as Jinja calls them
        self.generic_visit(node)
        if not isinstance(node.expr, _LITERALS) and not any(isinstance(op.expr, _LITERALS) for op in node.ops):
            node.expr = self._charged(_CHARGE_DEEP, node.expr)
        for op in node.ops:
            if op.op in ("in", "notin"):
                op.expr = self._charged(_CHARGE_SHALLOW, op.expr)
        return node

    def _with_charge(self, node: Any) -> nodes.Node:
        parts = [part for inner in node.body for part in (inner, *inner.find_all(nodes.Expr))]
        text = sum(len(part.data) for part in parts if isinstance(part, nodes.TemplateData))
        self.generic_visit(node)
        units = nodes.Const(1 + len(parts) // _EXPRESSIONS_PER_UNIT + text // CHARS_PER_UNIT, lineno=node.lineno)
        node.body.insert(0, nodes.ExprStmt(self._charged(_CHARGE_UNITS, units), lineno=node.lineno))
        return node  # type: ignore[no-any-return]  # the syntax trees of Jinja are typed loosely

    def _charged(self, name: str, value: Any) -> nodes.Expr:
        if isinstance(value, _LITERALS) and name != _CHARGE_UNITS:
            return value
        charged = nodes.Filter(value, name, [], [], None, None, lineno=value.lineno)
        return charged.set_environment(self._environment)  # type: ignore[return-value]  # it returns itself


def _output(value: Any) -> Any:
    charge_deep(value)
    return value


@pass_context  # else Jinja would call it once, when it compiles the template
def _charge_units(_: Context, units: int) -> None:
    charge(units)


@pass_context
def _charge_shallow(_: Context, value: Any) -> Any:
    charge(shallow_units(value))
    return value


@pass_context
def _charge_deep(_: Context, value: Any) -> Any:
    charge_deep(value)
    return value


@cache
def _filters() -> dict[str, Any]:
    bounded = {name: _bounded_filter(name, function) for name, function in FILTERS.items()}
    return {**bounded, _CHARGE_UNITS: _charge_units, _CHARGE_SHALLOW: _charge_shallow, _CHARGE_DEEP: _charge_deep}


@cache
def _tests() -> dict[str, Any]:
    return {name: _bounded_test(function) for name, function in TESTS.items() if name in COMPARING_TESTS}


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    passed = getattr(getattr(function, "jinja_pass_arg", None), "name", "")

    def bounded(context: Context, value: Any = None, *args: Any, **kwargs: Any) -> Any:
        value = charge_filter(name, value, args, kwargs)
        if not passed:
            return function(value, *args, **kwargs)
        own = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}[passed]
        return function(own, value, *args, **kwargs)

    return pass_context(update_wrapper(bounded, function))


def _bounded_test(function: Any) -> Callable[..., Any]:
    def bounded(_: Context, *args: Any) -> Any:
        charge_test(args)
        return function(*args)

    return pass_context(bounded)
