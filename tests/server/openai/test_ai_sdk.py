"""The AI SDK of Node.js, unchanged, as a client of agents: over both APIs, and as an OpenAI-compatible provider."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest

from framework.llm.client import ModelRequest
from framework.testing import ScriptedModel, Turn, calls
from framework.types.errors import ModelError
from framework.types.messages import Message, Reasoning
from tests.support.editor import MODULES, node
from tests.support.projects import agent, write
from tests.support.serving import now, serving

PROGRAM = Path(__file__).parents[2] / "support/ai_sdk_client.mjs"
PATIENCE = 60
INSTALLED = all((MODULES / name).exists() for name in ("ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible"))
pytestmark = pytest.mark.skipif(not (INSTALLED and node()), reason="no AI SDK: `make test` installs it with npm")


def script(request: ModelRequest) -> Turn:
    """Look at the clock, then answer with reasoning; answer other messages as the test needs them."""
    last = request.messages[-1]
    if last.content == "fail":
        return ModelError("the provider is down")
    if any(message.content == "use yours" for message in request.messages):
        return f"It is {last.content}." if last.role == "tool" else calls(("shown", {"city": "Rome"}))
    if any("shown" in message.content for message in request.messages):
        return "You see Rome."
    if last.content.startswith("which city?"):
        return '{"city": "Rome"}'
    if last.content == "hello":
        return "yes?"
    if last.role == "user":
        return calls(("clock.now", {}))
    return Message(role="assistant", content="It is noon.", reasoning=Reasoning(text="The clock says", provider="x"))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the client got from each provider, and the statuses of the recorded runs."""
    folder = tmp_path_factory.mktemp("ai")
    one, two = (
        agent(name, skill_policy=f'{{allow: ["clock.*"{more}]}}')
        for name, more in (("one", ""), ("two", ', "client.*"'))
    )
    root = write(folder / "project", {"agents.d/one.yaml": one, "agents.d/two.yaml": two})
    copyfile(PROGRAM, folder / PROGRAM.name)
    (folder / "node_modules").symlink_to(MODULES)

    async def main() -> dict[str, Any]:
        program = node()
        assert program
        async with serving(root, models={"scripted": ScriptedModel(script=script)}, tools=[now]) as server:
            client = await asyncio.create_subprocess_exec(
                program, str(folder / PROGRAM.name), server.v1, stdout=PIPE, stderr=PIPE
            )
            async with asyncio.timeout(PATIENCE):
                output, errors = await client.communicate()
            assert client.returncode == 0, errors.decode()
            return {**json.loads(output), "runs": [run.status for run in await server.runs()]}

    return asyncio.run(main())


PROVIDERS = pytest.mark.parametrize("provider", ["responses", "chat", "compatible"])


@PROVIDERS
def test_an_agent_answers_whole_and_streamed(found: dict[str, Any], provider: str) -> None:
    whole, streamed = found[provider]["whole"], found[provider]["streamed"]
    assert whole == {"text": "It is noon.", "finishReason": "stop", "tokens": 20, "toolCalls": []}
    assert (streamed["text"], streamed["finishReason"], streamed["errors"]) == ("It is noon.", "stop", [])
    assert streamed["pieces"] > 1
    if provider != "chat":  # @ai-sdk/openai ignores reasoning in chat completions
        assert streamed["reasoning"] == "The clock says"


@PROVIDERS
def test_our_events_change_nothing(found: dict[str, Any], provider: str) -> None:
    assert found[provider]["events"] == found[provider]["streamed"]


@PROVIDERS
def test_structured_output_and_conversations(found: dict[str, Any], provider: str) -> None:
    assert found[provider]["structured"] == {"city": "Rome"}
    assert found[provider]["conversation"] == "It is noon."


def test_a_json_object_is_what_a_provider_without_schemas_gets(found: dict[str, Any]) -> None:
    assert found["plain"] == {"city": "Rome"}


@PROVIDERS
def test_tools_of_the_client_are_ignored_unless_one_must_be_called(found: dict[str, Any], provider: str) -> None:
    assert found[provider]["tools"] == {"text": "It is noon.", "finishReason": "stop", "ignored": "tools"}
    call = {"city": "Rome"}
    assert found[provider]["called"] == {
        "whole": ["city", call, "tool-calls"], "streamed": [call, "tool-calls"], "afterwards": "You see Rome.",
    }  # fmt: skip


@PROVIDERS
def test_tools_of_the_client_that_the_agent_allows_are_executed_by_the_client(
    found: dict[str, Any], provider: str
) -> None:
    answer = "It is Rome shown."
    trip = {"whole": [answer, ["tool-calls", "stop"]], "streamed": answer, "object": {"city": "Rome"}}
    assert found[provider]["roundTrip"] == trip
    assert found["stored"] == trip, "the SDK's defaults"


@PROVIDERS
def test_a_run_that_failed_is_not_executed_again(found: dict[str, Any], provider: str) -> None:
    failure = found[provider]["failure"]
    assert (failure["name"], failure["status"]) == ("AI_APICallError", 422)
    assert "the provider is down" in failure["body"]


def test_each_request_was_one_run(found: dict[str, Any]) -> None:
    names = ("whole", "streamed", "events", "structured", "failure", "hello", "conversation", "tools")
    requests = 3 * (len(names) + len(("called", "streamed call", "afterwards"))) + len(("plain",))
    requests += 4 * len(("whole trip", "streamed trip", "object"))
    assert len(found["runs"]) == requests
    assert found["runs"].count("failed") == 3
