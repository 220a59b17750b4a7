"""The MCP Inspector, unchanged, as a client in a terminal: it lists agents, calls them, and names where to decide."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest

from framework import tool
from framework.llm.client import ModelRequest
from framework.testing import ScriptedModel, Turn, calls
from framework.types.errors import ModelError
from tests.support.editor import MODULES, node
from tests.support.projects import agent, write
from tests.support.serving import serving_everything

PROGRAM = MODULES / "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
pytestmark = pytest.mark.skipif(
    not (PROGRAM.exists() and node()), reason="no MCP Inspector: `make test` installs it with npm"
)
PATIENCE = 60


@tool(risk="medium", name="mail.send")
async def send() -> str:
    """Send mail."""
    return "sent"


def script(request: ModelRequest) -> Turn:
    answers: dict[str, Turn] = {"send it": calls(("mail.send", {})), "fail": ModelError("the provider is down")}
    return answers.get(request.messages[-1].content, "Hello.")


def test_the_inspector_lists_and_calls_agents(tmp_path: Path) -> None:
    one = agent("one", skill_policy='{allow: ["mail.*"], ask: ["mail.*"]}')
    root = write(tmp_path, {"agents.d/one.yaml": one})
    program = node()
    assert program

    async def inspect(url: str, *arguments: str) -> Any:
        command = (str(PROGRAM), "--cli", url, "--method", *arguments)
        client = await asyncio.create_subprocess_exec(program, *command, stdout=PIPE, stderr=PIPE)
        async with asyncio.timeout(PATIENCE):
            output, errors = await client.communicate()
        assert output, errors.decode()
        return json.loads(output)

    async def main() -> tuple[Any, list[Any], str]:
        models = {"scripted": ScriptedModel(script=script)}
        async with serving_everything(root, models=models, tools=[send]) as server:
            url = f"{server.url}/mcp"
            tools = (await inspect(url, "tools/list"))["tools"]
            results = [
                await inspect(url, "tools/call", "--tool-name", "one", "--tool-arg", f"message={text}")
                for text in ("hello", "send it", "fail")
            ]
            return tools, results, server.url

    tools, (answered, paused, failed), url = asyncio.run(main())
    assert [tool["name"] for tool in tools] == ["one"]
    assert (answered["content"][0]["text"], answered["isError"]) == ("Hello.", False)
    run_id = paused["_meta"]["agentsd/run_id"]
    assert paused["content"][0]["text"].endswith(f"Ask the user to decide at {url}/#/approvals/{run_id}/c1")
    assert (failed["content"][0]["text"], failed["isError"]) == ("the provider is down", True)
