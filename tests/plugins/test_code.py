"""The code plugin runs Python without access to the machine, within limits."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from framework.tools.plugins import PluginLoader
from framework.tools.tool import Tool, ToolContext
from framework.types.errors import ToolError
from tests.support.paths import ROOT

pytest.importorskip("pydantic_monty")

SOURCE = ROOT / "plugins" / "code.py"


@pytest.fixture(scope="module")
def execute() -> Tool:
    (tool,) = PluginLoader().load("plugins/code.py", SOURCE.read_bytes()).tools
    assert (tool.name, tool.risk) == ("code.code_execute", "medium")
    return tool


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("sum(range(101))", "value: 5050"),
        ("print('é', 1)\nprint()\n{'a': [1, (2,)], 'b': {3}}", 'é 1\nvalue: {"a": [1, [2]], "b": [3]}'),
        ("def f(n):\n    return 1 if n < 2 else n * f(n - 1)\nf(20)", "value: 2432902008176640000"),
        ("import json, math, re\n[json.loads('1'), math.floor(2), re.findall('.', 'a1')]", 'value: [1, 2, ["a", "1"]]'),
        ("import datetime\ndatetime.date(2026, 1, 31)", 'value: "2026-01-31"'),
        ("x = 1", "the code ran; it printed nothing, and its last line has no value"),
        ("b'abc'", 'value: "abc"'),
    ],
)  # fmt: skip
def test_code_is_run(execute: Tool, code: str, output: str) -> None:
    assert execute(code) == output


def test_an_error_has_its_line_and_the_text_printed_before(execute: Tool) -> None:
    with pytest.raises(ToolError, match=r"(?s)line 2.*ZeroDivisionError.*printed before the error:\nfirst") as error:
        execute("print('first')\n1 / 0")
    assert "/" not in error.value.message.replace("1 / 0", ""), "no path of this machine"
    with pytest.raises(ToolError, match=r"(?s)line 1.*SyntaxError"):
        execute("def f(:")


ESCAPES = {
    "eval reads a file": "eval(\"open('/etc/passwd').read()\")",
    "exec imports": "exec('import subprocess')",
    "open reads": "open('/etc/passwd').read()",
    "open writes": "open('MARK', 'w').write('x')",
    "pathlib reads": "import pathlib\npathlib.Path('/etc/passwd').read_text()",
    "pathlib writes": "import pathlib\npathlib.Path('MARK').write_text('x')",
    "os.system": "import os\nos.system('touch MARK')",
    "os.environ": "import os\nos.environ['SECRET_OF_THE_HOST']",
    "os.getenv": "import os\nos.getenv('SECRET_OF_THE_HOST')",
    "os.listdir": "import os\nos.listdir('/')",
    "subprocess": "import subprocess\nsubprocess.run(['touch', 'MARK'])",
    "socket": "import socket\nsocket.create_connection(('127.0.0.1', 80))",
    "urllib": "import urllib.request\nurllib.request.urlopen('http://127.0.0.1')",
    "ctypes": "import ctypes\nctypes.CDLL(None)",
    "the framework": "import framework",
    "sys.modules": "import sys\nsys.modules['os']",
    "__import__": "__import__('os').system('touch MARK')",
    "importlib": "import importlib\nimportlib.import_module('os')",
    "subclasses": "().__class__.__base__.__subclasses__()",
    "globals of a function": "(lambda: 0).__globals__",
    "builtins": "__builtins__['open']",
    "frames": "try:\n    1 / 0\nexcept Exception as e:\n    e.__traceback__.tb_frame.f_globals['open']",
    "format string": "'{0.__class__.__mro__}'.format(1)",
    "code object": "(lambda: 0).__code__.co_consts",
    "pickle": "import pickle\npickle.loads(b\"cos\\nsystem\\n(S'touch MARK'\\ntR.\")",
    "input": "input()",
}


@pytest.mark.parametrize("code", ESCAPES.values(), ids=ESCAPES.keys())
def test_code_has_no_access_to_the_machine(
    execute: Tool, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "the secret")
    monkeypatch.chdir(tmp_path)
    try:
        output = execute(code.replace("MARK", str(tmp_path / "mark")))
    except ToolError as error:
        output = error.message

    assert "the secret" not in output
    assert "root:" not in output
    assert "value:" not in output, "there is nothing to show"
    assert not os.listdir(tmp_path)  # noqa: PTH208 - only whether there is something


BOMBS = {
    "endless loop": "while True: pass",
    "endless recursion": "def f(): return f()\nf()",
    "memory": "x = []\nwhile True: x.append('a' * 100000)",
    "one large text": "'a' * 10**10",
    "large number": "10 ** 10 ** 8",
    "large number to text": "str(10 ** 1000000)",
    "regular expression": "import re\nre.match('(a|a)*(a|a)*(a|a)*$', 'a' * 5000 + 'b').group()",
    "shared lists to text": "x = [1]\nfor i in range(60): x = [x, x]\nrepr(x)[:5]",
    "shared tuples compared": "x, y = (1,), (1,)\nfor i in range(60): x, y = (x, x), (y, y)\nassert x != y",
    "endless printing": "while True: print('spam' * 100)",
    "one long line": "print('x' * 10**7)",
    "deep source": "(" * 5000 + "1" + ")" * 5000,
    "long source": "1\n" * 30_000,
    "number too long to show": "10 ** 5000",
    "keys that JSON has not": "{(1, 2): 3}",
}


@pytest.mark.parametrize("code", BOMBS.values(), ids=BOMBS.keys())
def test_endless_code_is_stopped_and_reported(execute: Tool, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(execute.function.__globals__, "SECONDS", 0.5)
    monkeypatch.setitem(execute.function.__globals__, "KILLED_AFTER", 1.5)
    with pytest.raises(ToolError) as error:
        execute(code)
    assert len(error.value.message) <= 45_000


def test_memory_is_limited(execute: Tool) -> None:
    assert execute("len('a' * 10**6)") == "value: 1000000"
    with pytest.raises(ToolError, match="MemoryError"):
        execute("len('a' * 2 * 10**8)")


@pytest.mark.parametrize("sleep", ["import time\ntime.sleep(10**6)", "import asyncio\nawait asyncio.sleep(10**6)"])
def test_sleeping_code_does_not_wait(execute: Tool, sleep: str) -> None:
    assert execute(sleep) == "the code ran; it printed nothing, and its last line has no value"


def test_a_small_value_with_a_very_long_text_is_truncated(execute: Tool) -> None:
    output = execute("x = [1]\nfor i in range(60): x = [x, x]\nx")
    assert output.endswith("… (truncated: select a part of it)")
    assert len(output) < 21_000


def test_calls_share_no_state(execute: Tool) -> None:
    execute("left = 1")
    with pytest.raises(ToolError, match="NameError: name 'left'"):
        execute("left")


def test_without_the_sandbox_no_code_is_run(execute: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic_monty", None)
    with pytest.raises(ToolError, match=r"pip install .*\[code\]'"):
        asyncio.run(execute.invoke({"code": "1 + 1"}, lambda: ToolContext("run", "call", "one", tmp_path), None))
