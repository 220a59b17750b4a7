"""langchain-openai, unchanged, as a client of agents. It is in an environment of its own."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from framework import tool
from framework.llm.client import ModelRequest
from framework.testing import ScriptedModel, Turn, calls
from framework.types.errors import ModelError
from tests.support.paths import ROOT
from tests.support.projects import agent, write
from tests.support.serving import serving

PYTHON = ROOT / ".venv/langchain/bin/python"
INSTALLED = (ROOT / ".venv/langchain/.installed").exists()
pytestmark = pytest.mark.skipif(not INSTALLED, reason="no langchain-openai: `make test` installs it with pip")
PATIENCE = 60
PROGRAM = """
import json, sys
from langchain_openai import ChatOpenAI
from openai import UnprocessableEntityError
from pydantic import BaseModel

class City(BaseModel):
    city: str

found = {}
for api in ("chat", "responses"):
    chat = ChatOpenAI(model="one", base_url=sys.argv[1], api_key="none", use_responses_api=api == "responses")
    answer = chat.invoke([("system", "Be brief."), ("user", "what time is it?")])
    chunks = list(chat.stream("what time is it?"))
    try:
        failure = chat.invoke("fail").text
    except UnprocessableEntityError as error:
        failure = error.code
    found[api] = {
        "whole": answer.text,
        "finish": answer.response_metadata.get("finish_reason") or answer.response_metadata.get("status"),
        "tokens": answer.usage_metadata["total_tokens"],
        "calls": answer.tool_calls + [call for chunk in chunks for call in chunk.tool_call_chunks],
        "streamed": "".join(chunk.text for chunk in chunks),
        "data": chat.with_structured_output(City).invoke("which city?").model_dump(),
        "failure": failure,
    }
print(json.dumps(found))
"""


@tool(risk="low", name="clock.now")
async def now() -> str:
    """The time."""
    return "noon"


def script(request: ModelRequest) -> Turn:
    last = request.messages[-1]
    if last.content == "fail":
        return ModelError("the provider is down")
    if last.content == "which city?":
        return '{"city": "Rome"}'
    return calls(("clock.now", {})) if last.role == "user" else "It is noon."


def test_langchain_uses_agents_over_both_apis(tmp_path: Path) -> None:
    root = write(tmp_path, {"agents.d/one.yaml": agent("one", skill_policy='{allow: ["clock.*"]}')})

    async def main() -> tuple[dict[str, dict[str, object]], list[str]]:
        async with serving(root, models={"scripted": ScriptedModel(script=script)}, tools=[now]) as server:
            client = await asyncio.create_subprocess_exec(PYTHON, "-c", PROGRAM, server.v1, stdout=PIPE, stderr=PIPE)
            async with asyncio.timeout(PATIENCE):
                output, errors = await client.communicate()
            assert client.returncode == 0, errors.decode()
            return json.loads(output), [run.status for run in await server.runs()]

    found, runs = asyncio.run(main())
    same = {"whole": "It is noon.", "tokens": 20, "calls": [], "streamed": "It is noon.", "data": {"city": "Rome"},
            "failure": "model_error"}  # fmt: skip
    assert found == {"chat": {**same, "finish": "stop"}, "responses": {**same, "finish": "completed"}}
    assert sorted(runs) == ["completed"] * 6 + ["failed"] * 2
