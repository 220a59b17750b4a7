"""Metrics and attributes, from where the code creates them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import framework
from examples.reference.markdown import code, prose, table
from framework.telemetry import names

_OPENING = """\
Every metric with its unit, and every attribute of spans. [Traces, metrics,
logs](../tracing.md) says which spans and metrics have which attributes.
"""
_FACTORIES = {
    "create_histogram": "histogram",
    "create_counter": "counter",
    "create_gauge": "gauge",
    "create_up_down_counter": "up-down counter",
    "create_observable_gauge": "gauge",
    "create_observable_counter": "counter",
    "create_observable_up_down_counter": "up-down counter",
}


def telemetry_page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Metrics and attributes\n"
    yield _OPENING
    yield "## Metrics\n"
    yield from table(("metric", "kind", "meaning"), sorted(set(metrics())))
    yield "\n## Attributes\n"
    yield "Names that begin with `gen_ai.`, `error.` or `server.` are those of OpenTelemetry's conventions.\n"
    yield prose(", ".join(map(code, attributes())))


def metrics() -> Iterator[tuple[str, str, str]]:
    """Yield the name, the kind with its unit, and the description of each metric."""
    for path in sorted(Path(framework.__file__).parent.rglob("*.py")):
        text = path.read_text("utf-8")
        if not any(factory in text for factory in _FACTORIES):
            continue
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(func=ast.Attribute(attr=factory), args=[ast.Constant(value=str(name)), *_]) if (
                    factory in _FACTORIES
                ):
                    given = {one.arg: one.value.value for one in node.keywords if isinstance(one.value, ast.Constant)}
                    unit, meaning = str(given.get("unit", "")), str(given.get("description", ""))
                    kind = f"{_FACTORIES[factory]}, {code(unit)}" if unit else _FACTORIES[factory]
                    yield code(name), kind, meaning


def attributes() -> list[str]:
    """Return the names of all attributes of spans."""
    found = {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    return sorted(name for name in found if "." in name)
