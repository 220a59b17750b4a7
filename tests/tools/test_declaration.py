"""An invalid plugin file affects only itself: reading files never raises, and the others take effect."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import ConfigError, Runtime, ToolError, tool
from framework.testing import ScriptedModel
from framework.testing import calls as scripted_calls
from framework.tools.declaration import OPTIONS as OPTION_NAMES
from framework.types.installation import install_command
from framework.types.problem import Problem
from tests.support.cases import cases, each
from tests.support.generations import GOOD_PLUGIN, build_generation
from tests.support.projects import agent, write

BAD = "from framework import tool\n\n{}\ndef pay(amount: int) -> str:\n    'Pay.'\n    return 'paid'\n"


def problem_with(decorator: str) -> Problem:
    found = [
        p
        for p in build_generation({"plugins/bad.py": BAD.format(decorator).encode()}).errors
        if p.path == "plugins/bad.py"
    ]
    assert len(found) == 1
    return found[0]


@each(
    ("declared", "message"),
    [
        ('risk="hihg"', "tool 'pay': unknown risk 'hihg'; did you mean high?"),
        ("risk=None", "tool 'pay': unknown risk None; there are: low, medium, high, critical"),
        ("risk=['low']", "tool 'pay': unknown risk ['low']; there are: low, medium, high, critical"),
        ("rsik='low'", "@tool has no option 'rsik'; did you mean risk?"),
        ("idempotent='no'", "tool 'pay': idempotent must be True or False: 'no'"),
        ("confirm=1", "tool 'pay': confirm must be True or False: 1"),
        ("timeout=0", "tool 'pay': timeout must be a positive number of seconds, or a duration such as"),
        ("timeout='soon'", "or a duration such as 500ms, 5s or 2m: 'soon'"),
        ("timeout=float('nan')", "or a duration such as 500ms, 5s or 2m: nan"),
        ("timeout=True", "or a duration such as 500ms, 5s or 2m: True"),
        ("retries=-1, idempotent=True", "tool 'pay': retries must be an integer, 0 or more: -1"),
        ("retries=2", "retries require idempotent=True"),
        ("rate='5'", "tool 'pay': invalid rate '5': write it as 5/s, 100/m or 1000/h"),
        ("rate=5", "tool 'pay': invalid rate 5: write it as 5/s, 100/m or 1000/h"),
        ("needs='yaml'", "tool 'pay': needs must be modules, each with what pip installs, such as {'yaml': 'pyyaml'}"),
        ("needs={'ya ml': 'pyyaml'}", "such as {'yaml': 'pyyaml'}: {'ya ml': 'pyyaml'}"),
        ("needs={'yaml': ' '}", "such as {'yaml': 'pyyaml'}: {'yaml': ' '}"),
        ("name='pay me'", "invalid tool name 'pay me': names contain only letters, digits"),
        ("name=7", "the name of a tool must be a string: 7"),
        ("description=7", "tool 'pay': description must be a string: 7"),
        ("'pay'", "@tool must decorate a function, with options as keywords: 'pay'"),
    ],
)  # fmt: skip
def test_a_wrong_declaration_is_a_problem_at_its_line(declared: str, message: str) -> None:
    found = problem_with(f"@tool({declared})")
    assert message in found.message
    assert found.line == 3


MANY = """
from framework import tool
from ._more import *


@tool(
    risk="hihg",
    timeout="5 sec",
    idempotent="no",
    rate="5/day",
    paths=["fiel"],
    retires=2,
)
def pay(file: str) -> str:
    "Pay."
    return file


@tool(risk="loww")
def refund(amount: float) -> str:
    return ""


@tool(risk="low")
def good(amount: float) -> str:
    "Good."
    return "é"


"é"; late = tool(risk="lo")(good.function)
1 / 0
"""
HELPER = "from framework import tool\n\n@tool\ndef more(x):\n    'More.'\n"


def test_every_mistake_in_the_declarations_of_a_file_is_reported_at_its_option() -> None:
    generation = build_generation({"plugins/bad.py": MANY.encode(), "plugins/_more.py": HELPER.encode()})
    found = [
        (p.path.removeprefix("plugins/"), p.line, p.column, p.message.partition(";")[0]) for p in generation.errors
    ]
    assert found == [
        ("_more.py", 3, None, "tool 'more': parameter 'x' needs a type annotation"),
        ("bad.py", 3, None, "helper failed: plugins/_more.py:3: tool 'more': parameter 'x' needs a type annotation"),
        ("bad.py", 7, 10, "tool 'pay': unknown risk 'hihg'"),
        ("bad.py", 8, 13, found[3][3]),
        ("bad.py", 9, 16, "tool 'pay': idempotent must be True or False: 'no'"),
        ("bad.py", 10, 10, "tool 'pay': invalid rate '5/day': write it as 5/s, 100/m or 1000/h"),
        ("bad.py", 11, 11, "tool 'pay': paths contains 'fiel', which is not a parameter"),
        ("bad.py", 12, 13, "@tool has no option 'retires'"),
        ("bad.py", 19, None, "tool 'refund' needs a docstring: it is the description that the model receives"),
        ("bad.py", 19, 12, "tool 'refund': unknown risk 'loww'"),
        ("bad.py", 30, 23, "tool 'good': unknown risk 'lo'"),
        ("bad.py", 31, None, "ZeroDivisionError while loading: division by zero"),
    ]
    assert "timeout must be a positive number of seconds" in found[3][3]


def test_the_number_of_invalid_tools_that_are_reported_is_limited() -> None:
    many = "from framework import tool\nfor i in range(300):\n    tool(risk='x', name=f't{i}')(lambda: 1)\n"
    found = build_generation({"plugins/bad.py": many.encode()}).errors
    assert 50 <= len(found) <= 150


def test_outside_of_a_plugin_file_every_mistake_is_in_the_exception() -> None:
    with pytest.raises(ConfigError) as caught:
        tool(risk="hihg", timeout="soon", retires=2)(_documented)  # type: ignore[call-overload]
    assert all(word in caught.value.message for word in ("'hihg'", "'soon'", "'retires'"))


@pytest.mark.parametrize(
    ("written", "expected"), [("'5s'", 5.0), ("'250ms'", 0.25), ("'2m'", 120.0), ("3", 3.0), ("0.5", 0.5)]
)
def test_a_timeout_may_be_written_as_in_yaml(written: str, expected: float) -> None:
    generation = build_generation({"plugins/bad.py": BAD.format(f"@tool(timeout={written})").encode()})
    assert generation.tools["bad.pay"].timeout == expected


@pytest.mark.parametrize("change", [{"risk": "hihg"}, {"timeout": "5s"}, {"idempotent": 1}, {"function": 5}])
def test_a_tool_cannot_be_changed_into_an_invalid_one(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        replace(tool(risk="low")(_documented), **change)


def _documented() -> str:
    """Say something."""
    return ""


@pytest.mark.parametrize("tools", [[_documented], [None], ["echo"], [tool(_documented), tool(_documented)]])
def test_a_runtime_rejects_objects_that_are_not_tools(tmp_path: Path, tools: list[Any]) -> None:
    async def main() -> None:
        async with Runtime.open(tmp_path, tools=tools, watch=False):
            raise AssertionError("it was opened")

    with pytest.raises(ConfigError):
        asyncio.run(main())


# --- packages that are not installed


def test_a_missing_package_is_reported_by_a_check_by_runs_and_by_calls(tmp_path: Path) -> None:
    needs = "needs={'no_such_module': 'some-package', 'json': 'a-package'}"
    lines = BAD.format(f'@tool(risk="low", {needs})').replace("(amount: int)", "()")
    policies = {"may": "{allow: [pay.pay]}", "may_not": "{allow: [echo]}"}
    agents = {f"agents.d/{name}.yaml": agent(name, skill_policy=policy) for name, policy in policies.items()}
    root = write(tmp_path, {"plugins/pay.py": lines, **agents})
    message = f"pay.pay needs no_such_module: {install_command('some-package')}"

    async def main() -> None:
        model = ScriptedModel(scripted_calls(("pay.pay", {})), "done", "done")
        async with Runtime.open(root, watch=False, models={"scripted": model}) as runtime:
            (problem,) = runtime.catalog.current.problems
            assert (problem.path, problem.line, problem.severity) == ("plugins/pay.py", 3, "warning")
            assert problem.message == message
            result = await runtime.run("pay", agent="may", model="scripted")
            assert [(one.code, one.message) for one in result.warnings] == [("missing_package", message)]
            assert [one.status for one in result.tool_calls] == ["error"]
            assert message in result.messages[-2].content
            assert (await runtime.run("pay", agent="may_not", model="scripted")).warnings == ()

    asyncio.run(main())


# --- arbitrary files

VALUES = st.sampled_from(
    [
        "None", "True", "0", "-1", "3", "1e400", "float('nan')", "10**400", "''", "'hihg'", "'low'", "'5s'", "'1/s'",
        "b'x'", "[]", "{}", "()", "['low']", "{'low': 1}", "object()", "int", "print", "lambda: 1", "Rude()", "Proxy()",
        "'\\udc80'", "'x' * 10**5", "'\\x00'", "tool", "...", "iter([])", "type", "Exception", "Rude",
    ]
)  # fmt: skip
OPTIONS = st.dictionaries(
    st.sampled_from([*OPTION_NAMES, "rsik"]),
    VALUES,
    max_size=4,
)
DECORATORS = (
    st.builds(lambda options: f"@tool({', '.join(f'{k}={v}' for k, v in options.items())})", OPTIONS)
    | st.sampled_from(["@tool", "@hook", "@executor", "@staticmethod", "@property"])
    | st.builds("@tool({})".format, VALUES)
)
PARAMETERS = st.sampled_from(
    [
        "",
        "a: int",
        "a",
        "*a: int",
        "**a: int",
        "a: int, /",
        "a: Rude",
        "a: 'Nope'",
        "a: '('",
        "a: Proxy()",
        "a: 5",
        "a: int = Rude()",
        "a: type",
        "a: list[Rude] = None",
        "context: ToolContext",
        "a: print = print",
        "self",
        "a: int = 'x'",
    ]
)
ENDINGS = st.sampled_from(
    [
        "",
        "raise Rude()",
        "raise Rude",
        "raise ValueError('\\udc80')",
        "raise SystemExit(Rude())",
        "raise KeyError(Rude())",
        "raise KeyboardInterrupt",
        "raise GeneratorExit",
        "raise RecursionError",
        "raise ExceptionGroup('g', [Rude()])",
        "raise SyntaxError('x', (1, 2, 3, 4))",
        "import sys; sys.exit(0)",
        "1 / 0",
        "x = Proxy()",
        "x = Rude()",
        "def setup(): pass",
        "def setup(a, b): pass",
        "setup = tool",
        "teardown = Proxy()",
        "f.__class__ = 5",
        "pay = Tool(1, 2, 3)",
        "pay = replace(f, risk='hihg')",
        "f = Extension('hook', 5, 5)",
        "f = Extension('hook', 'x', Rude())",
        "__name__ = Rude()",
        "__plugin__ = 1",
        "del f",
        "return",
        "\x00",
    ]
)
PRELUDE = '''\
from dataclasses import replace
from framework import Tool, ToolContext, executor, hook, tool
from framework.tools.declaration import Extension

class Rude(BaseException):
    """Raises at whatever is done with it."""
    def __str__(self): raise SystemExit
    __repr__ = __hash__ = __eq__ = __bool__ = __len__ = __str__

class Proxy:
    """Is nothing until it is bound."""
    @property
    def __class__(self): raise RuntimeError("not bound")
    def __getattr__(self, name): raise RuntimeError(name)

'''


@st.composite
def plugins(draw: st.DrawFn) -> bytes:
    """Generate plugin files with mistakes, or with arbitrary content."""
    if draw(st.integers(0, 9)) == 0:
        return draw(
            st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass"))
        )
    kind = draw(st.sampled_from(["def", "async def", "class"]))
    head = f"{kind} f({draw(PARAMETERS)})" if kind != "class" else "class f"
    returns = draw(st.sampled_from(["", " -> str", " -> 'Nope'"])) if kind != "class" else ""
    text = f"{PRELUDE}{draw(DECORATORS)}\n{head}{returns}:\n    'Does it.'\n    pass\n\n{draw(ENDINGS)}\n"
    return text.encode("utf-8", "surrogatepass")


@cases(30)
@given(source=plugins())
def test_other_files_take_effect_next_to_any_plugin_file(source: bytes) -> None:
    generation = build_generation({"plugins/bad.py": source})

    assert "good.ping" in generation.tools
    assert {"good", "all"} <= generation.agents.keys(), generation.problems
    assert all(str(problem).encode() for problem in generation.problems)
    assert all(problem.path in ("plugins/bad.py", "agents.d/all.yaml") for problem in generation.problems)
    for found in generation.tools.values():
        assert found.name == "good.ping" or not found.name.startswith("good.")


@cases(30)
@given(
    source=st.binary(max_size=200)
    | st.text(max_size=100).map(lambda text: f"version: 1\nname: {text}".encode("utf-8", "replace"))
)
def test_other_files_take_effect_next_to_any_agent_file(source: bytes) -> None:
    generation = build_generation({"agents.d/bad.yaml": source, "prompts/bad.j2": source})

    assert {"good", "all"} <= generation.agents.keys(), generation.problems
    assert all(
        problem.path in ("agents.d/bad.yaml", "prompts/bad.j2", "agents.d/all.yaml") for problem in generation.problems
    )


def test_a_wrong_declaration_disturbs_neither_a_chat_nor_other_edits(tmp_path: Path) -> None:
    files = {"agents.d/a.yaml": agent("a", model="offline"), "plugins/pay.py": GOOD_PLUGIN}
    root = write(tmp_path, files)

    async def main() -> None:
        async with Runtime.open(root, watch=False) as runtime:
            write(root, {"plugins/pay.py": BAD.format('@tool(risk="hihg")')})
            write(root, {"agents.d/a.yaml": agent("a", model="offline", instructions="New.")})
            generation = await runtime.reload()
            assert generation.agents["a"].spec.instructions == "New."
            assert "pay.ping" in generation.tools, "the last good version"
            assert [(problem.path, problem.line) for problem in generation.errors] == [("plugins/pay.py", 3)]
            assert (await runtime.run("hello", agent="a")).status == "completed"

    asyncio.run(main())


def test_a_generator_is_no_tool() -> None:
    def rows() -> Any:
        """Rows."""
        yield 1

    async def lines() -> Any:
        """Lines."""
        yield 1

    for function in (rows, lines):
        with pytest.raises(ConfigError, match="is a generator, which nobody would read: return a list instead"):
            tool(function)


def test_a_returned_generator_is_an_error_of_the_tool() -> None:
    async def later() -> int:
        return 1

    @tool
    def deferred(kind: str) -> Any:
        """Return something that has not run."""
        return (n for n in range(3)) if kind == "generator" else later()

    for kind in ("generator", "coroutine"):
        with pytest.raises(ToolError, match=f"the tool returned a {kind}, whose code has not run"):
            asyncio.run(deferred.invoke({"kind": kind}, lambda: None, None))  # type: ignore[arg-type,return-value]


def test_tools_have_their_descriptions_without_docstrings() -> None:
    code = "from framework.tools.builtin.data import calculator; print(calculator.definition.description)"
    done = subprocess.run([sys.executable, "-OO", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Calculate") or done.stdout.strip()
