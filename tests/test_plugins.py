"""A plugin file is executed as it stands, alone, afresh; what it breaks is its own."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.config.catalog import Catalog
from framework.tools.plugins import PLUGIN_PACKAGE, Plugin, PluginError, PluginLoader
from framework.tools.tool import ToolContext
from framework.types.problem import Problem
from tests.cases import cases
from tests.projects import write

TWO_TOOLS = """
    from framework import tool

    @tool
    def lookup(order: str) -> str:
        "Look an order up."
        return f"order {order}"

    @tool(risk="high", name="refund_money")
    async def refund(order: str, amount: float = 1.0) -> str:
        "Give money back."
        return f"{amount} for {order}"
"""


def load(source: str | bytes, path: str = "plugins/orders.py", loader: PluginLoader | None = None) -> Plugin:
    data = source if isinstance(source, bytes) else dedent(source).encode()
    return (loader or PluginLoader()).load(path, data)


def refused(source: str | bytes, path: str = "plugins/orders.py") -> Problem:
    with pytest.raises(PluginError) as caught:
        load(source, path)
    return caught.value.problem


def call(plugin: Plugin, name: str, **arguments: Any) -> Any:
    """Call a tool as a run does: checked arguments, a coroutine awaited, anything else in a thread."""
    tool = next(tool for tool in plugin.tools if tool.name == name)
    context = ToolContext(run_id="r", call_id="c", agent="a", base_path=Path())
    with ThreadPoolExecutor(1) as threads:
        return asyncio.run(tool.invoke(tool.bind(arguments), context, threads))


def loaded_modules() -> set[str]:
    return {name for name in sys.modules if name.startswith(PLUGIN_PACKAGE)}


def test_tools_are_named_after_the_file_and_the_function() -> None:
    plugin = load(TWO_TOOLS)
    assert [(tool.name, tool.risk, tool.source) for tool in plugin.tools] == [
        ("orders.lookup", "medium", "plugin"),
        ("orders.refund_money", "high", "plugin"),
    ]
    assert call(plugin, "orders.lookup", order="7") == "order 7"
    assert call(plugin, "orders.refund_money", order="7", amount=2.5) == "2.5 for 7"


def test_a_file_in_a_folder_is_named_after_itself_alone() -> None:
    assert load(TWO_TOOLS, "plugins/shop/orders.v2.py").tools[0].name == "orders.v2.lookup"


def test_a_tool_keeps_its_place_under_two_names_only_once() -> None:
    assert [tool.name for tool in load(dedent(TWO_TOOLS) + "again = lookup\n").tools] == [
        "orders.lookup",
        "orders.refund_money",
    ]


def test_imported_tools_are_not_adopted() -> None:
    source = """
        from framework import tool
        from framework.tools.builtin import calculator, echo
        from framework.tools.builtin.files import read_file as reader

        @tool
        def own() -> str:
            "Its own."
            return "own"
    """
    assert [tool.name for tool in load(source).tools] == ["orders.own"]


def test_a_file_without_tools_is_fine() -> None:
    assert load("").tools == ()
    assert load(b"\xef\xbb\xbfx = 1\r\n").tools == ()


@pytest.mark.parametrize(
    ("source", "line", "excerpt", "message"),
    [
        (b"a = 1\nb = (\n", 2, "b = (", "'(' was never closed"),
        (b"def f():\nreturn 1\n", 2, "return 1", "expected an indented block"),
        (b"a = 1\nraise RuntimeError('no database')\n", 2, "raise RuntimeError('no database')", "no database"),
        (b"def connect():\n    1 / 0\n\nconnect()\n", 2, "1 / 0", "ZeroDivisionError while it is loaded"),
        (b"import sys\nsys.exit(3)\n", 2, "sys.exit(3)", "calls sys.exit() while it is loaded"),
        (b"\nraise KeyboardInterrupt\n", 2, "raise KeyboardInterrupt", "KeyboardInterrupt while it is loaded"),
        (b"\n\nimport no_such_package\n", 3, "import no_such_package", "No module named 'no_such_package'"),
        (b"from framework import tol\n", 1, "from framework import tol", "cannot import name 'tol'"),
        (b"from . import helpers\n", 1, "from . import helpers", "no known parent package"),
        (b"a = 1\n# caf\xe9\n", 2, None, "not UTF-8: byte 0xe9"),
        (b"from framework import tool\n\n@tool\ndef f(a):\n    'Doc.'\n", 3, "@tool", "'a' needs a type"),
        (b"from framework import tool\n\n@tool\ndef f() -> int:\n    return 1\n", 3, "@tool", "needs a docstring"),
        (
            b"from framework import tool\n\n@tool\ndef f(a: Nope) -> int:\n    'D'\n",
            4,
            "def f",
            "'Nope' is not defined",
        ),
    ],
)
def test_what_is_broken_is_told_with_its_line(source: bytes, line: int, excerpt: str | None, message: str) -> None:
    problem = refused(source)
    assert (problem.path, problem.line) == ("plugins/orders.py", line)
    assert message in problem.message
    assert excerpt is None or (problem.excerpt or "").startswith(excerpt)


@pytest.mark.parametrize("source", [b"a\0b", b"x = " + b"-" * 100_000 + b"1", b"x = " + b"(" * 500 + b")" * 500])
def test_what_the_compiler_stumbles_over_is_a_problem(source: bytes) -> None:
    assert refused(source).path == "plugins/orders.py"


@pytest.mark.parametrize("path", ["plugins/my orders.py", "plugins/订单.py"])
def test_a_file_name_that_no_provider_takes_as_a_tools_name_is_refused(path: str) -> None:
    assert "only letters, digits" in refused(TWO_TOOLS, path).message


@cases(100)
@given(source=st.binary(max_size=80))
def test_any_bytes_are_a_plugin_or_a_problem(source: bytes) -> None:
    code = b"if 0:\n  " + source.replace(b"\n", b"\n  ")  # compiled, never executed
    with suppress(PluginError):
        assert load(code).tools == ()


def test_a_failed_load_leaves_nothing_behind() -> None:
    gc.collect()
    before = loaded_modules()
    refused("raise RuntimeError")
    refused("import sys; sys.exit()")
    gc.collect()
    assert loaded_modules() <= before


def test_each_load_is_a_module_of_its_own() -> None:
    loader = PluginLoader()
    source = """
        from framework import tool

        calls = []

        @tool
        def count() -> int:
            "Count the calls."
            calls.append(1)
            return len(calls)
    """
    first, second = load(source, loader=loader), load(source, loader=loader)
    assert [call(first, "orders.count"), call(first, "orders.count"), call(second, "orders.count")] == [1, 2, 1]
    assert first.module is not second.module


def test_an_edit_of_the_same_size_in_the_same_second_runs_the_new_code(tmp_path: Path) -> None:
    """Python's own import would take the compiled file of the old source for that of the new one."""
    source = 'from framework import tool\n\n\n@tool\ndef f() -> int:\n    "Doc."\n    return {}\n'

    async def outputs() -> list[int]:
        catalog = Catalog(tmp_path, tools=[], executors=["react"], models=["offline"])
        found = []
        for number in (1, 2, 3):
            write(tmp_path, {"plugins/p.py": source.format(number)})
            os.utime(tmp_path / "plugins/p.py", (1_700_000_000, 1_700_000_000))
            found.append((await catalog.reload()).tools["p.f"].function())
        return found

    assert asyncio.run(outputs()) == [1, 2, 3]
    assert not list(tmp_path.rglob("*.pyc"))


MODELS = """
    from __future__ import annotations

    from dataclasses import dataclass
    from enum import Enum

    from pydantic import BaseModel

    from framework import ToolContext, tool


    class Colour(Enum):
        RED = "red"


    @dataclass
    class Size:
        width: int
        height: int = 1


    class Order(BaseModel):
        items: list[Item]
        colour: Colour = Colour.RED


    class Item(BaseModel):
        name: str
        size: Size | None = None


    @tool
    async def total(order: Order, extra: Size, context: ToolContext) -> str:
        "Add up an order."
        widths = sum(item.size.width for item in order.items if item.size)

        @dataclass
        class Local:
            sum: int
            size: Size

        return f"{Local(widths, extra)} {order.colour.name} {type(extra) is Size} {context.agent}"


    class Lazy(BaseModel):
        later: list[Later] = []


    class Later(BaseModel):
        n: int


    @tool
    def lazy() -> int:
        "Use a model that no tool takes."
        return Lazy(later=[{"n": 2}]).later[0].n
"""


def test_tools_take_the_plugins_own_models_whatever_their_order_and_annotations() -> None:
    plugin = load(MODELS)
    items = [{"name": "x", "size": {"width": 2}}, {"name": "y"}]
    output = call(plugin, "orders.total", order={"items": items, "colour": "red"}, extra={"width": 3})
    assert output == "total.<locals>.Local(sum=2, size=Size(width=3, height=1)) RED True a"
    assert call(plugin, "orders.lazy") == 2
    schema = next(tool.definition.parameters for tool in plugin.tools if tool.name == "orders.total")
    assert schema["required"] == ["order", "extra"]
    assert set(schema["$defs"]) == {"Order", "Item", "Size", "Colour"}


def test_a_tool_of_a_replaced_load_goes_on_with_its_own_code() -> None:
    plugin = load(MODELS, "plugins/replaced.py")
    tools, name = {tool.name: tool for tool in plugin.tools}, plugin.module.__name__
    assert name in sys.modules
    del plugin
    gc.collect()
    assert name not in sys.modules
    assert tools["replaced.lazy"]() == 2


def test_a_module_leaves_with_the_plugin() -> None:
    loader = PluginLoader()
    plugins = [load(TWO_TOOLS, "plugins/leaving.py", loader) for _ in range(20)]
    names = {plugin.module.__name__ for plugin in plugins}
    assert len(names) == 20
    assert names <= loaded_modules()
    assert sys.modules[plugins[3].module.__name__].__dict__ is plugins[3].module.__dict__
    plugins.clear()
    gc.collect()
    assert names.isdisjoint(loaded_modules())


def test_a_traceback_shows_the_source_that_ran() -> None:
    loader = PluginLoader()
    source = 'from framework import tool\n\n\n@tool\ndef f() -> int:\n    "Doc."\n    raise ValueError("{}")  # {}\n'
    first = load(source.format("one", "the first"), loader=loader)
    second = load(source.format("two", "the second"), loader=loader)
    assert _last_line(first) == 'raise ValueError("one")  # the first'
    assert _last_line(second) == 'raise ValueError("two")  # the second'


def _last_line(plugin: Plugin) -> str | None:
    try:
        plugin.tools[0]()
    except ValueError as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        assert frame.filename.startswith("plugins/orders.py@")
        return frame.line
    return None
