"""Jinja environment that limits the time and memory of rendering, for any values of the variables.

Callers choose the values of an agent's inputs, so `{{ 'x' * n }}` or a loop over `range(n)` could block every run of
the process. The sandbox counts the work: each loop body, macro and template counts its passes, and each operator,
filter and method computes its work before it runs.
"""

from __future__ import annotations

from collections.abc import Callable
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

from framework.config.templates import render_budget

_CHARGE_UNITS, _CHARGE_SHALLOW, _CHARGE_DEEP = "(pass)", "(own)", "(whole)"
"""Names of internal filters that count work. Templates cannot use them, because they are not identifiers."""
_CALL_UNITS = 6
"""Units of any call, in addition to its work."""
_EXPRESSIONS_PER_UNIT = 3
"""Expressions of a body that can be evaluated in one unit."""
_LITERALS = (nodes.Const, nodes.TemplateData)
_BUILTIN_TYPES = (str, bytes, int, float, list, tuple, dict, set, frozenset)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox that counts work; `render_budget.begin` starts a budget."""

    intercepted_binops = frozenset({"+", "*", "**", "%", "//"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, finalize=_output)
        self.filters.update(_filters())
        self.tests.update(_tests())

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        render_budget.charge_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as Jinja's
        render_budget.charge(_CALL_UNITS)
        owner = __obj.__self__ if isinstance(__obj, (BuiltinMethodType, MethodType)) else None
        if isinstance(owner, _BUILTIN_TYPES):
            render_budget.charge_method(__obj.__name__, owner, args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is None:
            return None
        text = value.__self__
        escaping = isinstance(text, Markup)
        formatter = _EscapeFormatter(self, escape=text.escape) if escaping else _Formatter(self)

        def wrapper(*args: Any, **kwargs: Any) -> str:
            render_budget.charge_deep(text)
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
        render_budget.charge_deep(value)
        render_budget.charge(_CALL_UNITS)
        render_budget.charge_field("", format_spec)
        text = super().format_field(value, format_spec)
        render_budget.charge_field(text, "")
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
        units = nodes.Const(
            1 + len(parts) // _EXPRESSIONS_PER_UNIT + text // render_budget.CHARS_PER_UNIT, lineno=node.lineno
        )
        node.body.insert(0, nodes.ExprStmt(self._charged(_CHARGE_UNITS, units), lineno=node.lineno))
        return node  # type: ignore[no-any-return]  # the syntax trees of Jinja are typed loosely

    def _charged(self, name: str, value: Any) -> nodes.Expr:
        if isinstance(value, _LITERALS) and name != _CHARGE_UNITS:
            return value
        charged = nodes.Filter(value, name, [], [], None, None, lineno=value.lineno)
        return charged.set_environment(self._environment)  # type: ignore[return-value]  # it returns itself


def _output(value: Any) -> Any:
    render_budget.charge_deep(value)
    return value


@pass_context  # else Jinja would call it once, when it compiles the template
def _charge_units(_: Context, units: int) -> None:
    render_budget.charge(units)


@pass_context
def _charge_shallow(_: Context, value: Any) -> Any:
    render_budget.charge(render_budget.shallow_units(value))
    return value


@pass_context
def _charge_deep(_: Context, value: Any) -> Any:
    render_budget.charge_deep(value)
    return value


@cache
def _filters() -> dict[str, Any]:
    bounded = {name: _bounded_filter(name, function) for name, function in FILTERS.items()}
    return {**bounded, _CHARGE_UNITS: _charge_units, _CHARGE_SHALLOW: _charge_shallow, _CHARGE_DEEP: _charge_deep}


@cache
def _tests() -> dict[str, Any]:
    return {name: _bounded_test(function) for name, function in TESTS.items() if name in render_budget.COMPARING_TESTS}


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    passed = getattr(getattr(function, "jinja_pass_arg", None), "name", "")

    def bounded(context: Context, value: Any = None, *args: Any, **kwargs: Any) -> Any:
        value = render_budget.charge_filter(name, value, args, kwargs)
        if not passed:
            return function(value, *args, **kwargs)
        own = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}[passed]
        return function(own, value, *args, **kwargs)

    return pass_context(update_wrapper(bounded, function))


def _bounded_test(function: Any) -> Callable[..., Any]:
    def bounded(_: Context, *args: Any) -> Any:
        render_budget.charge_test(args)
        return function(*args)

    return pass_context(bounded)
