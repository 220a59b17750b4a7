"""The line where a tool raised is shown to its author and never to a model."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from framework import Runtime
from framework.llm.client import ScriptedModel, calls
from tests.support.commands import agentsd, agentsd_process
from tests.support.projects import agent, write

FILES = {
    "agents.d/one.yaml": agent("one", model="offline"),
    "plugins/pay.py": """
        from framework import tool
        from ._prices import price

        @tool(risk="low")
        def pay(name: str) -> str:
            '''Pay.'''
            return str(price(name))

        @tool(risk="low")
        async def wait(name: str) -> str:
            '''Wait.'''
            return {}[name]
    """,
    "plugins/_prices.py": """
        def price(name: str) -> int:
            return {"tea": 3}[name]
    """,
}
NOKEY = '{"name": "nokey"}'


@pytest.mark.parametrize(("tool", "place"), [("pay.pay", "plugins/_prices.py:2"), ("pay.wait", "plugins/pay.py:12")])
def test_tools_call_names_the_line_that_raised(tmp_path: Path, tool: str, place: str) -> None:
    root = write(tmp_path, FILES)
    done = agentsd("tools", "call", tool, NOKEY, "-a", "one", cwd=root)
    assert (done.returncode, done.stderr) == (1, f"error: KeyError: 'nokey'\n  raised at {place}\n")
    result = json.loads(agentsd("tools", "call", tool, NOKEY, "-a", "one", "--json", cwd=root).stdout)
    assert result["metadata"]["raised_at"] == place


def test_the_verbose_log_has_the_traceback_without_the_text(tmp_path: Path) -> None:
    done = agentsd_process("-v", "tools", "call", "pay.pay", NOKEY, "-a", "one", cwd=write(tmp_path, FILES))
    (logged,) = done.stderr.split("error: KeyError")[:1]
    assert "tool pay.pay raised KeyError" in logged
    assert "line 2, in price" in logged
    assert "nokey" not in logged


def test_no_model_sees_where_a_tool_raised(tmp_path: Path) -> None:
    model = ScriptedModel(calls(("pay.pay", {"name": "nokey"})), "sorry")

    async def main() -> None:
        files = FILES | {"agents.d/one.yaml": agent("one")}
        async with Runtime.open(write(tmp_path, files), models={"scripted": model}, watch=False) as runtime:
            assert (await runtime.run("go", agent="one")).output == "sorry"

    asyncio.run(main())
    seen = "".join(message.content for request in model.requests for message in request.messages)
    assert "KeyError: 'nokey'" in seen
    assert "_prices.py" not in seen
