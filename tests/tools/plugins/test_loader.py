"""Each load executes a plugin file in a new module; a failing plugin affects no other."""

from __future__ import annotations

import asyncio
import builtins
import gc
import linecache
import os
import sys
import threading
import traceback
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import Runtime
from framework.config.generations.catalog import Catalog
from framework.tools.builtin import BUILTIN_TOOLS
from framework.tools.plugins import PLUGIN_PACKAGE, Plugin, PluginError, PluginLoader, plugins_of
from framework.tools.tool import ToolContext
from framework.types.problem import Problem
from tests.support.cases import cases
from tests.support.projects import agent, write

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
        return asyncio.run(tool.invoke(tool.bind(arguments), lambda: context, threads))


def loaded_modules() -> set[str]:
    return {name for name in sys.modules if name.startswith(PLUGIN_PACKAGE)}


def test_a_tool_has_the_name_of_its_file_unless_it_declines() -> None:
    short = TWO_TOOLS.replace("@tool\n", "@tool(prefix=False)\n")
    assert [tool.name for tool in load(short).tools] == ["lookup", "orders.refund_money"]
    assert [tool.name for tool in load(TWO_TOOLS, "plugins/lookup.py").tools] == [
        "lookup.lookup",
        "lookup.refund_money",
    ]


@pytest.mark.parametrize(
    ("options", "reason"),
    [("prefix=1", "must be True or False"), ('prefix=False, name="a.b"', "must not contain dots")],
)
def test_an_invalid_prefix_is_a_problem_of_the_file(options: str, reason: str) -> None:
    assert reason in refused(TWO_TOOLS.replace("@tool\n", f"@tool({options})\n")).message


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


def test_imported_tools_are_not_registered() -> None:
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
        (b"def connect():\n    1 / 0\n\nconnect()\n", 2, "1 / 0", "ZeroDivisionError while loading"),
        (b"import sys\nsys.exit(3)\n", 2, "sys.exit(3)", "calls sys.exit() while loading"),
        (b"\nraise KeyboardInterrupt\n", 2, "raise KeyboardInterrupt", "KeyboardInterrupt while loading"),
        (b"\n\nimport no_such_package\n", 3, "import no_such_package", "No module named 'no_such_package'"),
        (b"from framework import tol\n", 1, "from framework import tol", "cannot import name 'tol'"),
        (b"from . import helpers\n", 1, "from . import helpers", "cannot import name 'helpers' from 'plugins'"),
        (b"a = 1\n# caf\xe9\n", 2, None, "not UTF-8: byte 0xe9"),
        (
            b"from framework import tool\n\n@tool\ndef f(a):\n    'Doc.'\n",
            3,
            "@tool",
            "'a' needs a type annotation",
        ),
        (b"from framework import tool\n\n@tool\ndef f() -> int:\n    return 1\n", 3, "@tool", "needs a docstring"),
        (
            b"from framework import tool\n\n@tool\ndef f(a: Nope) -> int:\n    'D'\n",
            4,
            "def f",
            "'Nope' is not defined",
        ),
    ],
)
def test_an_invalid_file_is_reported_with_its_line(source: bytes, line: int, excerpt: str | None, message: str) -> None:
    problem = refused(source)
    assert (problem.path, problem.line) == ("plugins/orders.py", line)
    assert message in problem.message
    assert excerpt is None or (problem.excerpt or "").startswith(excerpt)


@pytest.mark.parametrize("source", [b"a\0b", b"x = " + b"-" * 100_000 + b"1", b"x = " + b"(" * 500 + b")" * 500])
def test_source_that_does_not_compile_is_a_problem(source: bytes) -> None:
    assert refused(source).path == "plugins/orders.py"


@pytest.mark.parametrize("path", ["plugins/my orders.py", "plugins/订单.py"])
def test_a_file_name_that_is_no_valid_tool_name_is_rejected(path: str) -> None:
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


def test_each_load_creates_a_separate_module() -> None:
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


@pytest.mark.conformance(35)
def test_an_edit_of_the_same_size_in_the_same_second_runs_the_new_code(tmp_path: Path) -> None:
    """Python's own import would reuse the bytecode of the old source for the new one."""
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


def test_tools_accept_the_plugins_models_in_any_order_and_with_any_annotations() -> None:
    plugin = load(MODELS)
    items = [{"name": "x", "size": {"width": 2}}, {"name": "y"}]
    output = call(plugin, "orders.total", order={"items": items, "colour": "red"}, extra={"width": 3})
    assert output == "total.<locals>.Local(sum=2, size=Size(width=3, height=1)) RED True a"
    assert call(plugin, "orders.lazy") == 2
    schema = next(tool.definition.parameters for tool in plugin.tools if tool.name == "orders.total")
    assert schema["required"] == ["order", "extra"]
    assert set(schema["$defs"]) == {"Order", "Item", "Size", "Colour"}


def test_a_tool_of_a_replaced_load_keeps_its_code_and_module() -> None:
    plugin = load(MODELS, "plugins/replaced.py")
    tools, name = {tool.name: tool for tool in plugin.tools}, plugin.module.__name__
    del plugin
    gc.collect()
    assert tools["replaced.lazy"]() == 2
    assert name in sys.modules  # unpickling, or resolving an annotation later, may need the module
    tools.clear()
    gc.collect()
    assert name not in sys.modules


def test_modules_are_removed_with_their_plugin() -> None:
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


# --- helpers


SHOP = {
    "plugins/_rates.py": "RATE = 2\n\n\ndef rate() -> int:\n    return RATE\n",
    "plugins/shop/_prices.py": "from .._rates import rate\n\n\ndef price(n: int) -> int:\n    return n * rate()\n",
    "plugins/shop/orders.py": """
        from framework import tool

        from ._prices import price

        @tool
        def total(n: int) -> int:
            "Add up."
            return price(n)
        """,
    "plugins/_lib/__init__.py": "from .text import shout\n",
    "plugins/_lib/text.py": "def shout(text: str) -> str:\n    return text.upper()\n",
    "plugins/other.py": "from framework import tool\n",
}


def load_from(files: dict[str, str], path: str, loader: PluginLoader | None = None) -> Plugin:
    encoded = {name: dedent(text).encode() for name, text in files.items()}
    return (loader or PluginLoader()).load(path, encoded[path], encoded)


def refused_from(files: dict[str, str], path: str) -> tuple[Problem, ...]:
    with pytest.raises(PluginError) as caught:
        load_from(files, path)
    return caught.value.problems


def plugin_text(imports: str, body: str) -> str:
    return f"{imports}\nfrom framework import tool\n\n@tool\ndef f() -> object:\n    'Doc.'\n    {body}\n"


def test_helpers_are_imported_relatively_from_helpers_and_from_folders_above() -> None:
    plugin = load_from(SHOP, "plugins/shop/orders.py")
    assert call(plugin, "orders.total", n=3) == 6
    made_from = {path for path, source in plugin.files.items() if source is not None}
    assert made_from == {"plugins/shop/orders.py", "plugins/shop/_prices.py", "plugins/_rates.py"}


@pytest.mark.parametrize(
    ("imports", "body", "result"),
    [
        ("from ._rates import RATE", "return RATE", 2),
        ("from . import _rates", "return _rates.RATE", 2),
        ("from . import _rates as r, _lib", "return r.rate(), _lib.shout('x')", (2, "X")),
        ("from ._lib import shout", "return shout('x')", "X"),
        ("from ._lib.text import shout", "return shout('x')", "X"),
        ("from ._lib import text", "return text.shout('x')", "X"),
        ("", "from ._rates import RATE; return RATE", 2),
        ("import sys", "from . import _rates; return sys.modules[_rates.__name__].RATE", 2),
    ],
)
def test_a_helper_can_be_imported_in_every_relative_form(imports: str, body: str, result: object) -> None:
    plugin = load_from({**SHOP, "plugins/p.py": plugin_text(imports, body)}, "plugins/p.py")
    assert call(plugin, "p.f") == result


def test_a_helper_in_a_folder_without_init_can_be_imported() -> None:
    files = {"plugins/_a/b/c.py": "X = 5\n", "plugins/p.py": plugin_text("from ._a.b.c import X", "return X")}
    assert call(load_from(files, "plugins/p.py"), "p.f") == 5


def test_a_helper_imported_when_the_tool_runs_is_the_one_of_its_load() -> None:
    files = {"plugins/_v.py": "V = 1\n", "plugins/p.py": plugin_text("", "from ._v import V; return V")}
    loader = PluginLoader()
    first = load_from(files, "plugins/p.py", loader)
    second = load_from({**files, "plugins/_v.py": "V = 2\n"}, "plugins/p.py", loader)
    tools = first.tools, second.tools
    del first, second
    gc.collect()
    assert [tool() for (tool,) in tools] == [1, 2]


@pytest.mark.hostile(31)
def test_helpers_are_never_read_from_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"plugins/_rates.py": "RATE = 'disk'", "_rates.py": "RATE = 'path'"})
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path / "plugins"))
    files = {**SHOP, "plugins/p.py": plugin_text("from ._rates import RATE", "return RATE")}
    assert call(load_from(files, "plugins/p.py"), "p.f") == 2
    del files["plugins/_rates.py"]
    assert refused_from(files, "plugins/p.py")[0].message.startswith("no helper plugins/_rates.py")


def test_each_plugin_has_its_own_copy_of_a_helper() -> None:
    counter = "n = [0]\n\n\ndef up() -> int:\n    n[0] += 1\n    return n[0]\n"
    files = {"plugins/_c.py": counter} | {
        f"plugins/{name}.py": plugin_text("from ._c import up", "return up()") for name in "ab"
    }
    loader = PluginLoader()
    a, b = (load_from(files, f"plugins/{name}.py", loader) for name in "ab")
    assert [call(a, "a.f"), call(a, "a.f"), call(b, "b.f")] == [1, 2, 1]


def test_tools_of_helpers_are_not_registered() -> None:
    files = {
        "plugins/_t.py": plugin_text("", "return 1"),
        "plugins/p.py": "from ._t import f\nfrom framework import tool\n",
    }
    assert load_from(files, "plugins/p.py").tools == ()


@pytest.mark.parametrize(
    ("helper", "line", "own_line", "message"),
    [
        ("x = (\n", 1, 2, "'(' was never closed"),
        ("\n1 / 0\n", 2, 2, "ZeroDivisionError while loading: division by zero"),
        ("import sys\nsys.exit()\n", 2, 2, "calls sys.exit() while loading"),
        ("\n\nfrom ._gone import x\n", 3, 2, "no helper plugins/_gone.py"),
        ("def f():\n    raise ValueError('no')\n", 2, 3, "ValueError while loading: no"),
    ],
)
def test_an_error_in_a_helper_is_reported_there_and_at_its_import(
    helper: str, line: int, own_line: int, message: str
) -> None:
    files = {"plugins/_h.py": helper, "plugins/p.py": "\nfrom . import _h\n_h.f()\n"}
    own, cause = refused_from(files, "plugins/p.py")
    assert (cause.path, cause.line) == ("plugins/_h.py", line)
    assert message in cause.message
    assert (own.path, own.line) == ("plugins/p.py", own_line)
    assert own.message.startswith(f"helper failed: {cause.place}: ")


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("from ._rate import x", "no helper plugins/_rate.py; did you mean plugins/_rates.py", True),
        ("from . import _rate", "cannot import name '_rate' from 'plugins'", True),
        ("from ._rates import gone", "cannot import name 'gone' from 'plugins._rates'", True),
        ("from .other import x", "plugins/other.py is a plugin: plugins cannot import each other", True),
        ("import _rates", "ModuleNotFoundError while loading: No module named '_rates'", True),
        ("from _lib.text import x", "ModuleNotFoundError while loading: No module named '_lib'", True),
        ("from ..._rates import x", "attempted relative import beyond top-level package", True),
        ("import no_such_package", "No module named 'no_such_package'", False),
    ],
)
def test_a_failed_import_is_reported_with_how_helpers_are_imported(line: str, message: str, hint: bool) -> None:
    (problem,) = refused_from({**SHOP, "plugins/p.py": line}, "plugins/p.py")
    assert message in problem.message
    assert ("from ._name import" in (problem.hint or "")) is hint
    assert (problem.line, problem.excerpt) == (1, line)


def test_a_plugin_is_reloaded_when_an_optional_helper_appears() -> None:
    source = "try:\n    from ._local import X\nexcept ImportError:\n    X = 0"
    files = {"plugins/p.py": plugin_text(source, "return X")}
    without = load_from(files, "plugins/p.py")
    assert (call(without, "p.f"), without.files["plugins/_local.py"]) == (0, None)
    assert call(load_from({**files, "plugins/_local.py": "X = 7"}, "plugins/p.py"), "p.f") == 7


def test_circular_imports_of_helpers_behave_as_in_python() -> None:
    files = {
        "plugins/_a.py": "from . import _b\n\n\ndef a() -> int:\n    return _b.b()\n",
        "plugins/_b.py": "from . import _a\n\n\ndef b() -> int:\n    return 3 if _a else 0\n",
        "plugins/p.py": plugin_text("from ._a import a", "return a()"),
    }
    assert call(load_from(files, "plugins/p.py"), "p.f") == 3


def test_models_and_dataclasses_of_a_helper_can_be_tool_arguments() -> None:
    helper = """
        from __future__ import annotations
        from dataclasses import dataclass
        from pydantic import BaseModel

        class Order(BaseModel):
            items: list[Item]

        class Item(BaseModel):
            size: Size

        @dataclass
        class Size:
            width: int
        """
    source = """
        from __future__ import annotations
        from framework import tool
        from ._models import Order

        @tool
        def width(order: Order) -> int:
            "Width of an order."
            return sum(item.size.width for item in order.items)
        """
    plugin = load_from({"plugins/_models.py": helper, "plugins/p.py": source}, "plugins/p.py")
    assert call(plugin, "p.width", order={"items": [{"size": {"width": 4}}]}) == 4


def test_concurrent_loaders_do_not_share_modules() -> None:
    plugins = [load_from(SHOP, "plugins/shop/orders.py", PluginLoader()) for _ in range(3)]
    assert len({plugin.module.__name__ for plugin in plugins}) == 3
    del plugins[0]
    gc.collect()
    assert all(sys.modules[plugin.module.__name__].__dict__ is plugin.module.__dict__ for plugin in plugins)
    assert [call(plugin, "orders.total", n=1) for plugin in plugins] == [2, 2]


@cases(60)
@given(data=st.data())
def test_a_plugin_consists_of_exactly_the_files_it_imports(data: st.DataObject) -> None:
    """For any graph of helpers, loading runs exactly `files`, so an edit of another file has no effect."""
    names = [f"_h{n}" for n in range(5)]
    graph = {name: data.draw(st.lists(st.sampled_from(names), max_size=3, unique=True)) for name in ["p", *names]}
    files = {f"plugins/{name}.py": "".join(f"from . import {to}\n" for to in graph[name]) for name in graph}
    plugin = load_from(files, "plugins/p.py")
    ran = {module.__name__.rpartition(".")[2] for module in plugin.package.modules.values()} - {plugin.package.name}
    assert {f"plugins/{name}.py" for name in ran} == {
        path for path, source in plugin.files.items() if source is not None
    }


# --- time limits of loading


def hasty() -> PluginLoader:
    return PluginLoader(load_seconds=0.1, import_seconds=1.0)


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


@pytest.mark.hostile(31)
@pytest.mark.conformance(34)
def test_an_endless_loop_is_reported_with_its_line_and_its_thread_ends() -> None:
    with pytest.raises(PluginError) as caught:
        load("x = 1\nwhile True:\n    x += 1\n", loader=hasty())
    problem = caught.value.problem
    assert problem.message == "not finished after 0.1 s while loading"
    assert problem.line in (2, 3)
    assert "setup(context)" in (problem.hint or "")
    assert "agentsd-load" not in threads()


def test_the_work_of_declaring_many_tools_is_not_the_plugins_own() -> None:
    one = '@tool\ndef f{0}(name: str, number: int, labels: list[str] = []) -> str:\n    """Do {0}."""\n    return ""\n'
    source = "from agentsd import tool\n" + "".join(one.format(number) for number in range(600))
    assert len(load(source, loader=PluginLoader(load_seconds=0.25)).tools) == 600


def test_an_endless_loop_in_a_helper_is_reported_there_too() -> None:
    files = {"plugins/_h.py": "while True:\n    pass\n", "plugins/p.py": "\nfrom . import _h\n"}
    encoded = {name: text.encode() for name, text in files.items()}
    with pytest.raises(PluginError) as caught:
        hasty().load("plugins/p.py", encoded["plugins/p.py"], encoded)
    assert [(problem.path, problem.line in (1, 2)) for problem in caught.value.problems] == [
        ("plugins/p.py", True),
        ("plugins/_h.py", True),
    ]


def test_a_thread_that_cannot_be_stopped_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    waiting = threading.Event()
    source = "import builtins\nbuiltins._agentsd_test_event.wait()\n"
    vars(builtins)["_agentsd_test_event"] = waiting
    try:
        with pytest.raises(PluginError, match=r"not finished after 0\.1 s"):
            load(source, loader=hasty())
        assert "agentsd-load" in threads()
        assert "is still running in a thread of this process" in caplog.text
    finally:
        waiting.set()
        del vars(builtins)["_agentsd_test_event"]
    for thread in threading.enumerate():
        if thread.name == "agentsd-load":
            thread.join()
    assert "agentsd-load" not in threads()


def test_the_import_of_an_installed_package_may_take_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = "import time\nbegan = time.monotonic()\nwhile time.monotonic() - began < 0.4:\n    pass\nX = 1\n"
    write(tmp_path, {"slow_package_for_a_test.py": slow})
    monkeypatch.syspath_prepend(str(tmp_path))
    source = plugin_text("from slow_package_for_a_test import X", "return X")
    assert call(load(source, "plugins/p.py", hasty()), "p.f") == 1


def test_the_import_of_an_installed_package_has_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"endless_package_for_a_test.py": "while True:\n    pass\n"})
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PluginError, match=r"not finished after 1 s"):
        load("import endless_package_for_a_test\n", loader=hasty())
    assert "agentsd-load" not in threads()


# --- setup and teardown


LIVING = """
    from framework import tool

    async def setup(context):
        context.deps.append("up " + context.plugin)

    def teardown(context):
        context.deps.append("down " + context.plugin)

    @tool
    def f() -> int:
        "Doc."
        return 1
"""


def test_setup_and_teardown_are_not_tools() -> None:
    plugin = load(LIVING)
    assert plugin.setup is plugin.module.setup
    assert plugin.teardown is plugin.module.teardown
    assert [tool.name for tool in plugin.tools] == ["orders.f"]


@pytest.mark.parametrize(
    "source",
    ["", "setup = 3\n", "from os.path import join as setup\n", plugin_text("", "return 1").replace("f()", "setup()")],
)
def test_only_functions_named_setup_are_called(source: str) -> None:
    assert load(source).setup is None


def test_setup_may_come_from_a_helper() -> None:
    files = {"plugins/_db.py": "def setup(context):\n    pass\n", "plugins/p.py": "from ._db import setup\n"}
    assert load_from(files, "plugins/p.py").setup is not None


@pytest.mark.parametrize("signature", ["", "a, b", "*, a"])
def test_a_setup_without_a_context_parameter_is_rejected_with_its_line(signature: str) -> None:
    problem = refused(f"\ndef setup({signature}):\n    pass\n")
    assert (problem.line, problem.message) == (
        2,
        "setup() must accept one argument, a PluginContext",
    )


def test_the_plugins_of_tools_are_listed_without_duplicates() -> None:
    first, second = load(TWO_TOOLS), load(LIVING)
    assert plugins_of(tool.function for tool in [*first.tools, *BUILTIN_TOOLS, *second.tools]) == [first, second]


# --- unloading


HEAVY = """
    from __future__ import annotations

    import logging
    from dataclasses import dataclass
    from functools import lru_cache

    from pydantic import BaseModel

    from framework import tool

    from ._shared import Money

    log = logging.getLogger("plugins.heavy")

    class Item(BaseModel):
        name: str
        price: Money

    class Order(BaseModel):
        items: list[Item]

    @dataclass
    class Size:
        width: int

    @lru_cache
    def tax(n: int) -> int:
        return n * VERSION

    @tool
    def total(order: Order, size: Size | None = None) -> int:
        "Add up."
        log.debug("adding up")
        return tax(sum(item.price.cents for item in order.items))
"""
SHARED = "from pydantic import BaseModel\n\n\nclass Money(BaseModel):\n    cents: int\n"


@pytest.mark.conformance(37)
def test_a_dropped_plugin_leaves_nothing_behind() -> None:
    def reload(version: int) -> weakref.ref[ModuleType]:
        files = {"plugins/_shared.py": SHARED, "plugins/heavy.py": dedent(HEAVY) + f"\nVERSION = {version}\n"}
        plugin = load_from(files, "plugins/heavy.py", loader)
        assert call(plugin, "heavy.total", order={"items": [{"name": "x", "price": {"cents": 3}}]}) == 3 * version
        with suppress(ZeroDivisionError):  # its line is looked up for the traceback
            exec("1 / 0", plugin.module.__dict__)
        return weakref.ref(plugin.module)

    loader = PluginLoader()
    reload(1)
    gc.collect()
    before = set(sys.modules), set(linecache.cache), set(threading.enumerate()), len(gc.get_objects())
    modules = [reload(version) for version in range(50)]
    gc.collect()
    assert {module() for module in modules} == {None}
    assert not set(sys.modules) - before[0]
    assert not set(linecache.cache) - before[1]
    assert not set(threading.enumerate()) - before[2]
    assert len(gc.get_objects()) - before[3] < 50 * 10


def test_the_file_of_a_module_is_its_real_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the plugin, in its helpers, in the trial of a changed plugin, and wherever the process was started."""
    code = "from pathlib import Path\nFOUND = (Path(__file__).parent.parent / 'data.txt').read_text()\n"
    tool = (
        f'{code}from framework import tool\nfrom ._helper import FOUND as AGAIN\n\n@tool(risk="low")\ndef f() -> str:\n'
    )
    plugin = f'{tool}    "F."\n    return FOUND + AGAIN\n'
    write(tmp_path / "project", {"agents.d/a.yaml": agent("a", model="offline"), "data.txt": "found"})
    write(tmp_path / "project", {"plugins/p.py": plugin, "plugins/_helper.py": code})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        async with Runtime.open("project", watch=False) as runtime:
            monkeypatch.chdir(tmp_path / "elsewhere")
            assert (await runtime.call_tool("a", "p.f", {})).output == "foundfound"
            noted = f"with open({str(tmp_path / 'loads')!r}, 'a') as file:\n    file.write(__file__ + ' ')\n"
            write(tmp_path / "project", {"plugins/p.py": plugin + noted})
            await runtime.reload()
            assert runtime.catalog.current.errors == ()

    asyncio.run(main())
    assert (tmp_path / "loads").read_text().split() == 2 * [str(tmp_path / "project/plugins/p.py")]
