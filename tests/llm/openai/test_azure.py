"""Deployments of models in Azure OpenAI: addresses, keys and versions of requests that the SDK builds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from framework import Runtime
from framework.llm.capabilities import Capabilities
from framework.llm.client import Delta
from framework.llm.providers import create_client
from framework.types.errors import ConfigError, ModelError
from framework.types.spec import ModelSettings
from tests.support import formats
from tests.support.openai_requests import BOTH_WAYS, SEARCH, deltas, request
from tests.support.projects import agent, write
from tests.support.wire import Answer, WireServer, calls, failed, says, wire_server

ENVIRON = {"AZURE_OPENAI_API_KEY": "geheim-azure-key", "OPENAI_API_VERSION": "2025-04-01-preview"}


def ask(answer: Answer, *, stream: bool = False, **options: Any) -> tuple[list[Delta], WireServer]:
    """Send a request to the deployment `my model`, as the environment describes it."""

    async def run() -> tuple[list[Delta], WireServer]:
        async with wire_server([answer]) as server:
            environ = {**ENVIRON, "AZURE_OPENAI_ENDPOINT": server.url.removesuffix("v1")}
            model = create_client("azure/my model", environ=environ, **options)
            received = await deltas(model, request(stream=stream, tools=(SEARCH,)))  # type: ignore[arg-type]  # the client of either API
            await model.close()
            return received, server

    return asyncio.run(run())


@BOTH_WAYS
def test_chat_completions_are_those_of_the_deployment(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_AD_TOKEN", "geheim-token")
    monkeypatch.setenv("OPENAI_API_KEY", "geheim-openai-key")

    received, server = ask(says("one two"), stream=stream)

    assert received[-1].reply is not None
    assert received[-1].reply.message.content == "one two"
    assert server.paths == ["/openai/deployments/my model/chat/completions"]
    assert server.queries == [{"api-version": "2025-04-01-preview"}]
    (headers,) = server.headers
    assert headers["api-key"] == "geheim-azure-key"
    assert "Authorization" not in headers
    assert "geheim-token" not in str(headers)
    assert "geheim-openai-key" not in str(headers)


@BOTH_WAYS
def test_the_responses_api_gets_the_deployment_in_the_request(stream: bool) -> None:
    received, server = ask(formats.says(formats.RESPONSES, "one two"), stream=stream, api="responses")

    assert received[-1].reply is not None
    assert received[-1].reply.message.content == "one two"
    assert (server.paths, server.requests[0]["model"]) == (["/openai/responses"], "my model")
    assert server.queries == [{"api-version": "2025-04-01-preview"}]
    assert server.headers[0]["api-key"] == "geheim-azure-key"


def test_the_key_does_not_follow_a_redirect() -> None:
    async def run() -> tuple[str, int]:
        async with wire_server([says("stolen")]) as other:
            moved = Answer(status=307, headers=(("Location", f"{other.url}/chat/completions"),))
            with pytest.raises(ModelError) as caught:
                await asyncio.to_thread(ask, moved)
            return caught.value.message, len(other.requests)

    message, sent = asyncio.run(run())
    assert ("redirects (307)" in message, sent) == (True, 0)


def test_max_tokens_have_the_name_that_reasoning_models_accept() -> None:
    async def run() -> dict[str, Any]:
        async with wire_server([says("ok")]) as server:
            model = create_client("azure/d", base_url=server.url.removesuffix("/v1"), environ=ENVIRON)
            await deltas(model, request(settings=ModelSettings(max_tokens=50)))  # type: ignore[arg-type]  # the client of chat completions
            await model.close()
            return server.requests[0]

    body = asyncio.run(run())
    assert (body.get("max_completion_tokens"), body.get("max_tokens")) == (50, None)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("AZURE_OPENAI_API_KEY", "azure/d needs an API key: set AZURE_OPENAI_API_KEY, or use model: offline"),
        ("AZURE_OPENAI_ENDPOINT", "azure/d needs the URL of your resource: set AZURE_OPENAI_ENDPOINT"),
        ("OPENAI_API_VERSION", "azure/d needs the version of the API: set OPENAI_API_VERSION"),
    ],
)
def test_what_is_missing_is_one_line_that_names_the_variable(missing: str, message: str) -> None:
    environ = {**ENVIRON, "AZURE_OPENAI_ENDPOINT": "https://example.openai.azure.com/"}
    with pytest.raises(ConfigError) as caught:
        create_client("azure/d", environ={name: value for name, value in environ.items() if name != missing})
    assert str(caught.value) == message


def test_an_invalid_endpoint_is_rejected_without_being_quoted() -> None:
    with pytest.raises(ConfigError, match="base_url of azure/d: expected the URL of a server") as caught:
        create_client("azure/d", environ={**ENVIRON, "AZURE_OPENAI_ENDPOINT": "example geheim"})
    assert "geheim" not in str(caught.value)


def test_a_run_calls_tools_through_an_alias_and_a_missing_deployment_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_VERSION", "2025-04-01-preview")

    async def main() -> None:
        missing = failed(404, "The API deployment for this resource does not exist.", "DeploymentNotFound")
        script = [calls(("list_dir", {"path": "."})), says("done"), missing]
        async with wire_server(script) as server:
            alias = f"{{model: azure/d, base_url: '{server.url.removesuffix('/v1')}', api_key: geheim-key}}"
            files = {
                "agentsd.yaml": f"models: {{mine: {alias}}}\n",
                "agents.d/a.yaml": agent("a", model="mine", skill_policy="{allow: [list_dir]}"),
            }
            async with Runtime.open(write(tmp_path, files), watch=False) as runtime:
                done, lost = await runtime.run("go"), await runtime.run("go")
            assert (done.output, done.steps) == ("done", 2)
            assert lost.error is not None
            assert "no such model at http://127.0.0.1" in lost.error.message
            assert "/v1" not in lost.error.message
            assert "geheim" not in lost.error.message

    asyncio.run(main())


def test_capabilities_of_a_deployment_are_those_of_the_alias() -> None:
    environ = {**ENVIRON, "AZURE_OPENAI_ENDPOINT": "https://example.openai.azure.com/"}
    unknown = create_client("azure/gpt-5", environ=environ).info.capabilities
    assert (unknown.tools, unknown.context_window, unknown.prices) == (None, None, None)
    declared = create_client("azure/gpt-5", environ=environ, capabilities=Capabilities(context_window=1000))
    assert declared.info.capabilities.context_window == 1000
