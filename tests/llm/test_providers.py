from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from framework.llm.anthropic import AnthropicModel
from framework.llm.capabilities import Capabilities, Prices
from framework.llm.client import ModelRequest
from framework.llm.gemini import GeminiModel
from framework.llm.offline import OfflineModel
from framework.llm.openai.client import OpenAIModel
from framework.llm.openai.responses import ResponsesModel
from framework.llm.providers import PROVIDERS, Provider, create_client
from framework.types.errors import ConfigError
from framework.types.installation import install_command
from framework.types.messages import Message
from tests.support.wire import says, wire_server

KEYED = [provider for provider in PROVIDERS if provider.key_variables and provider.key_required]
CLIENTS = {"openai": OpenAIModel, "anthropic": AnthropicModel, "gemini": GeminiModel}


def test_offline_needs_no_configuration() -> None:
    assert isinstance(create_client("offline", environ={}), OfflineModel)


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)
def test_every_provider_accepts_each_of_its_key_variables(provider: Provider) -> None:
    required = {
        provider.url_variable: "https://example.com",
        provider.version_variable: "1",
        provider.project_variable: "p",
    }
    for variable in provider.key_variables or ("",):
        model = create_client(f"{provider.name}/some/model", environ={**required, variable: "k"})

    assert isinstance(model, CLIENTS[provider.api])
    assert model.info.name == f"{provider.name}/some/model"
    if isinstance(model, OpenAIModel):
        assert (model.info.server_address is None) == (provider.base_url is None and not provider.url_variable)


@pytest.mark.parametrize("provider", KEYED, ids=lambda provider: provider.name)
@pytest.mark.parametrize("key", [None, "", "  "])
def test_a_missing_key_is_one_line_that_names_the_variable(provider: Provider, key: str | None) -> None:
    environ = {} if key is None else dict.fromkeys(provider.key_variables, key)
    with pytest.raises(ConfigError) as caught:
        create_client(f"{provider.name}/m", environ=environ)

    variables = " or ".join(provider.key_variables)
    assert str(caught.value) == f"{provider.name}/m needs an API key: set {variables}, or use model: offline"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("opnai/m", "model 'opnai/m': unknown provider 'opnai'; did you mean openai?"),
        (
            "zzz/m",
            "model 'zzz/m': unknown provider 'zzz'; "
            "there are: anthropic, azure, bedrock, deepseek, gemini, groq, mistral, ollama, openai, openrouter, qwen, "
            "vertex",
        ),
        ("gpt-5", "model 'gpt-5' is incomplete: write PROVIDER/MODEL, such as openai/gpt-5.4-mini, or offline"),
        ("openai/", "model 'openai/' is incomplete: write PROVIDER/MODEL, such as openai/gpt-5.4-mini, or offline"),
    ],
)
def test_an_invalid_model_name_is_one_line_with_the_reason(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create_client(name, environ={"OPENAI_API_KEY": "k"})

    assert str(caught.value) == message


def test_a_key_with_invalid_characters_is_rejected_without_being_quoted() -> None:
    with pytest.raises(ConfigError, match="copy OPENAI_API_KEY again") as caught:
        create_client("openai/m", environ={"OPENAI_API_KEY": "sk-geheim\nx"})

    assert "geheim" not in str(caught.value)


def sent_key(environ: dict[str, str], api_key: str | None = None) -> str:
    async def run() -> str:
        async with wire_server([says("ok")]) as server:
            model = create_client("openai/m", base_url=server.url, api_key=api_key, environ=environ)
            async for _ in model.stream(ModelRequest(messages=(Message(role="user", content="hi"),))):
                pass
            await model.close()
            return server.headers[0]["Authorization"]

    return asyncio.run(run())


def test_a_custom_base_url_requires_no_key() -> None:
    assert sent_key({}) == "Bearer none"


def test_an_explicit_key_overrides_the_environment_and_is_stripped() -> None:
    assert sent_key({"OPENAI_API_KEY": "env\n"}) == "Bearer env"
    assert sent_key({"OPENAI_API_KEY": "env"}, api_key="given") == "Bearer given"


def test_a_missing_sdk_is_one_line_with_the_package_to_install() -> None:
    names = ["anthropic", "bedrock", "gemini", "vertex"]
    program = f"""
import importlib.util
from framework.types.errors import ConfigError
real = importlib.util.find_spec
missing = ["anthropic", "google.genai"]
importlib.util.find_spec = lambda name: None if name in missing else real(name)
from framework.llm.providers import create_client
keys = dict(ANTHROPIC_API_KEY="k", GEMINI_API_KEY="k", GOOGLE_CLOUD_PROJECT="p")
for name in {names}:
    missing[:] = ["botocore"] if name == "bedrock" else ["anthropic", "google.genai"]
    try:
        create_client(name + "/m", environ=keys)
    except ConfigError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    lines = [f"{name}/m needs the SDK of {name}: {install_command(f'agentsd[{name}]')}" for name in names]
    assert done.stdout.splitlines() == lines


def test_configured_capabilities_override_known_ones() -> None:
    said = Capabilities(tools=False, prices=Prices(input=1, output=2))

    known = create_client("anthropic/claude-haiku-4-5", api_key="k", environ={}).info.capabilities
    merged = create_client("anthropic/claude-haiku-4-5", api_key="k", capabilities=said, environ={}).info.capabilities

    assert (known.tools, known.context_window) == (True, 200_000)
    assert (merged.tools, merged.context_window, merged.prices) == (False, 200_000, said.prices)


@pytest.mark.parametrize(
    ("name", "variable", "own"),
    [
        ("anthropic/claude-sonnet-5", "ANTHROPIC_BASE_URL", "https://api.anthropic.com"),
        ("openai/gpt-5.4-mini", "OPENAI_BASE_URL", "https://api.openai.com/v1"),
    ],
)
def test_a_gateway_in_the_environment_is_not_known_to_take_late_tools(name: str, variable: str, own: str) -> None:
    """The SDKs read these variables themselves."""

    def late_tools(url: str, **options: Any) -> bool | None:
        return create_client(name, api_key="k", environ={variable: url}, **options).info.capabilities.late_tools

    assert [late_tools(""), late_tools(own)] == [True, True]
    assert not late_tools("https://gateway.example.com/v1")
    assert late_tools("https://gateway.example.com/v1", base_url=own), "the alias decides"
    assert late_tools("https://gateway.example.com/v1", capabilities=Capabilities(late_tools=True))


def test_the_api_is_that_of_the_alias_the_capabilities_or_the_known_model() -> None:
    responses, chat = Capabilities(api="responses"), Capabilities(api="chat")

    def uses_responses(name: str, **options: Any) -> bool:
        return isinstance(create_client(name, api_key="k", environ={}, **options), ResponsesModel)

    assert uses_responses("openai/gpt-5.6-terra"), "OpenAI's own server has both"
    assert not uses_responses("openai/gpt-5.6-terra", base_url="http://h/v1"), "another server may have chat only"
    assert not uses_responses("openai/gpt-4o")
    assert not uses_responses("openai/gpt-5.6-terra", capabilities=chat)
    assert uses_responses("qwen/qwen-max", capabilities=responses)
    assert uses_responses("openai/m", base_url="http://h/v1", capabilities=responses)
    assert uses_responses("openai/m", capabilities=chat, api="responses"), "the alias decides"
    assert not uses_responses("openai/m", capabilities=responses, api="chat")
