"""Known capabilities and prices of models, and their effect on requests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.config.settings import Settings
from framework.llm.capabilities import Capabilities, Prices, known_capabilities, read_table, with_cost
from framework.llm.client import Delta, ModelRequest
from framework.llm.openai.client import OpenAIModel
from framework.types.errors import ConfigError
from framework.types.messages import Message, Usage
from framework.types.spec import ModelSettings
from tests.support.cases import cases, each
from tests.support.wire import says, wire_server

USER = Message(role="user", content="hi")


@each(
    ("name", "known"),
    [
        ("openai/gpt-5", {"thinking": "reasoning_effort", "context_window": 400_000, "tool_choice_required": True}),
        ("openai/gpt-5-mini-2025-08-07", {"prices": Prices(input=0.25, output=2, cached=0.025)}),
        ("openai/gpt-5.4-mini", {"json_schema": True, "max_output": 128_000}),
        ("openai/gpt-5.4", {"context_window": 1_050_000, "prices": Prices(input=2.5, output=15, cached=0.25)}),
        ("openai/gpt-5.4-nano", {"context_window": 400_000, "prices": Prices(input=0.2, output=1.25, cached=0.02)}),
        ("openai/gpt-5.5", {"thinking": "reasoning_effort", "prices": Prices(input=5, output=30, cached=0.5)}),
        ("openai/gpt-4o", {"thinking": "none", "prices": Prices(input=2.5, output=10, cached=1.25)}),
        ("openai/gpt-4o-mini", {"prices": Prices(input=0.15, output=0.6, cached=0.075)}),
        ("openai/llama", {"tools": None, "prices": None}),
        ("openai/gpt-3.5-turbo", {"context_window": 16_385, "prices": Prices(input=0.5, output=1.5)}),
        ("openai/gpt-3.5-turbo", {"tools": True, "json_schema": False, "json_object": True}),
        ("openai/gpt-4", {"context_window": 8192, "prices": Prices(input=30, output=60), "json_object": False}),
        ("openai/gpt-4-turbo", {"context_window": 128_000, "prices": Prices(input=10, output=30)}),
        ("openai/gpt-4-1106-preview", {"context_window": 128_000, "json_schema": False}),
        ("openai/gpt-4o-2024-05-13", {"context_window": 128_000, "json_schema": False, "prices": None}),
        ("openai/gpt-4o", {"json_schema": True}),
        ("qwen/qwen-turbo", {"context_window": 131_072, "max_output": 16_384, "tools": True}),
        ("qwen/qwen-turbo", {"prices": Prices(input=0.05, output=0.2, cached=0.01)}),
        ("qwen/qwen-plus", {"context_window": 131_072}),
        ("qwen/qwen-plus", {"prices": Prices(input=0.4, output=1.2, cached=0.08, cache_write=0.5)}),
        ("deepseek/deepseek-chat", {"context_window": 128_000, "prices": Prices(input=0.3, output=1.2, cached=0.006)}),
        ("deepseek/deepseek-v4-pro", {"prices": Prices(input=1.32, output=3.96, cached=0.044)}),
        ("gemini/gemini-pro", {"tools": True, "context_window": None, "prices": None}),
        ("anthropic/claude-opus-4-1-20250805", {"thinking": "thinking_budget", "max_output": None}),
        ("anthropic/claude-sonnet-4-20250514", {"thinking": "thinking_budget", "context_window": 200_000}),
        ("anthropic/claude-haiku-4-5-20251001", {"thinking": "thinking_budget", "max_output": 64_000}),
        ("anthropic/claude-sonnet-4-6", {"thinking": "adaptive_thinking", "context_window": 1_000_000}),
        (
            "anthropic/claude-opus-5",
            {"tool_choice_required": True, "prices": Prices(input=5, output=25, cached=0.5, cache_write=6.25)},
        ),
        (
            "anthropic/claude-opus-4-8",
            {"context_window": 1_000_000, "prices": Prices(input=5, output=25, cached=0.5, cache_write=6.25)},
        ),
        (
            "anthropic/claude-sonnet-5",
            {"tool_choice_required": True, "prices": Prices(input=2, output=10, cached=0.2, cache_write=2.5)},
        ),
        ("vertex/claude-haiku-4-5@20251001", {"thinking": "thinking_budget", "max_output": 64_000}),
        ("vertex/claude-sonnet-5@default", {"prices": Prices(input=2, output=10, cached=0.2, cache_write=2.5)}),
        ("vertex/gemini-2.5-flash", {"tools": True, "prices": Prices(input=0.3, output=2.5, cached=0.03)}),
        (
            "bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0",
            {"max_output": 64_000, "prices": Prices(input=3, output=15, cached=0.3, cache_write=3.75)},
        ),
        ("bedrock/anthropic.claude-opus-4-6-v1", {"context_window": 1_000_000}),
        ("bedrock/anthropic.claude-3-5-haiku-20241022-v1:0:48k", {"context_window": 200_000, "thinking": "none"}),
        (
            "bedrock/arn:aws:bedrock:eu-central-1:123456789012:inference-profile/eu.anthropic.claude-sonnet-5",
            {"prices": Prices(input=2, output=10, cached=0.2, cache_write=2.5)},
        ),
        ("bedrock/arn:aws:bedrock:eu-central-1:123456789012:application-inference-profile/a1b2", {"prices": None}),
        ("bedrock/amazon.nova-lite-v1:0", {"tools": None, "prices": None}),
        ("vertex/llama-4", {"tools": None, "prices": None}),
        ("anthropic/claude-sonnet-5-5", {"tool_choice_required": False}),
        ("anthropic/claude-opus-5-5", {"tool_choice_required": False, "context_window": 1_000_000}),
        (
            "anthropic/claude-fable-5-2",
            {"tool_choice_required": False, "prices": Prices(input=8, output=40, cache_write=10)},
        ),
        ("anthropic/claude-haiku-5-5", {"tool_choice_required": True, "context_window": 1_000_000}),
        ("anthropic/claude-haiku-5-5", {"prices": Prices(input=0.1, output=0.5, cached=0.01, cache_write=0.125)}),
        ("anthropic/claude-3-haiku-20240307", {"thinking": "none", "context_window": 200_000}),
        ("gemini/gemini-2.5-flash", {"thinking": "thinking_budget", "max_output": 65_536}),
        ("gemini/gemini-2.5-flash-lite", {"prices": Prices(input=0.1, output=0.4, cached=0.01)}),
        ("gemini/gemini-3-pro-preview", {"thinking": "thinking_level", "context_window": 1_048_576}),
        (
            "gemini/gemini-3.1-pro-preview",
            {"context_window": 1_048_576, "prices": Prices(input=2, output=12, cached=0.2)},
        ),
        ("gemini/gemini-3.8-flash", {"thinking": "thinking_level", "images": True, "pdf": True, "audio": True}),
        ("gemini/gemini-3.8-flash", {"prices": Prices(input=1.5, output=7.5, cached=0.15)}),
        ("qwen/qwen-plus", {"thinking": "enable_thinking", "tool_choice_required": False, "stream_only": None}),
        ("qwen/qwq-plus", {"thinking": "enable_thinking", "stream_only": True}),
        ("deepseek/deepseek-chat", {"thinking": "thinking_type", "json_schema": False}),
        ("openai/gpt-5.4-mini", {"api": "responses"}),
        ("openai/gpt-5.6-terra", {"api": "responses", "tools": True}),
        ("openai/gpt-5.6-sol", {"reasoning_levels": ("none", "low", "medium", "high", "xhigh")}),
        ("openai/gpt-6.2-sol", {"prices": Prices(input=2, output=10, cached=0.1, cache_write=2.5), "images": True}),
        ("openai/gpt-6-astra", {"reasoning_levels": ("low", "medium", "high", "xhigh"), "api": "responses"}),
        ("openai/gpt-5.5", {"reasoning_levels": ("none", "low", "medium", "high", "xhigh")}),
        ("gemini/gemini-4-hydrogen", {"thinking": "thinking_level", "images": True, "max_output": 65_536}),
        ("openai/gpt-5.2-chat-latest", {"api": "chat"}),
        ("openai/gpt-5.1-codex-max", {"api": "responses"}),
        ("openai/gpt-4o-audio-preview", {"images": None, "audio": None}),
        ("openai/gpt-3.5-turbo", {"images": False, "audio": False}),
        ("openai/o4-mini", {"thinking": "reasoning_effort", "tool_choice_required": None}),
        ("mistral/mistral-large-4", {"reasoning_levels": ("none", "high"), "images": True}),
        ("groq/openai/gpt-oss-120b", {"prices": Prices(input=0.15, output=0.6)}),
        ("openai/gpt-5", {"api": None, "reasoning_levels": ("minimal", "low", "medium", "high"), "pdf": True}),
        ("anthropic/claude-opus-5", {"images": True, "pdf": True, "audio": False}),
        ("groq/llama-3.3-70b-versatile", {"tools": True, "context_window": 131_072}),
        ("ollama/llama3.3", {"tools": None}),
        ("openrouter/google/gemini-3-pro-preview", {"call_signatures": "reasoning_details"}),
        ("openrouter/google/gemini-2.5-pro", {"call_signatures": None}),
        ("groq/moonshotai/kimi-k2-instruct", {"needs_reasoning": False}),
        ("together/moonshotai/Kimi-K2.5", {"needs_reasoning": True}),
        ("anthropic/claude-haiku-4-5-20251001", {"late_tools": True}),
        ("anthropic/claude-opus-5-5", {"late_tools": True}),
        ("anthropic/claude-opus-4-1", {"late_tools": None}),
        ("anthropic/claude-opus-4-20250514", {"late_tools": None}),
        ("bedrock/eu.anthropic.claude-sonnet-4-5-20250929-v1:0", {"late_tools": None}),
        ("vertex/claude-sonnet-4-5@20250929", {"late_tools": None}),
        ("openai/gpt-5.4-mini", {"late_tools": True}),
        ("openai/gpt-6-astra", {"late_tools": True}),
        ("openai/gpt-5", {"late_tools": None}),
        ("openrouter/openai/gpt-5.6-sol", {"late_tools": None}),
    ],
)
def test_known_capabilities_of_models(name: str, known: dict[str, Any]) -> None:
    found = known_capabilities(name)

    assert {key: getattr(found, key) for key in known} == known


@pytest.mark.parametrize(
    ("model", "base_url", "known"),
    [
        ("anthropic/claude-sonnet-5", "https://api.anthropic.com", True),
        ("anthropic/claude-sonnet-5", "http://127.0.0.1:8000", None),
        ("openai/gpt-5.6-sol", "https://api.openai.com/v1", True),
        ("openai/gpt-5.6-sol", "https://gateway.example.com/v1", None),
        ("openai/openai/gpt-5.6-sol", "https://openrouter.ai/api/v1", None),
    ],
)
def test_late_tools_are_known_of_the_own_server_of_a_provider_only(
    model: str, base_url: str, known: bool | None
) -> None:
    found = known_capabilities(model, base_url)
    assert found.late_tools is known
    assert model.startswith("openai/") or found.refused_settings, "other rows apply to every server"


SECTION = '[[section]]\nsource = "https://example.com/models"\nas_of = 2026-11-22\n[section.models]\n'


def test_a_later_row_overrides_the_values_of_earlier_ones(tmp_path: Path) -> None:
    table = tmp_path / "models.toml"
    rows = '"a/m*" = {tools = true, images = true}\n"b/m" = {tools = false}\n"a/m-1" = {images = false}\n'
    table.write_text(f'{SECTION}{rows}{SECTION}"a/m*" = {{pdf = true}}\n', "utf-8")

    assert {name: tuple(row[:2] for row in rows) for name, rows in read_table(table).items()} == {
        "a": (
            ("a/m*", Capabilities(tools=True, images=True)),
            ("a/m-1", Capabilities(images=False)),
            ("a/m*", Capabilities(pdf=True)),
        ),
        "b": (("b/m", Capabilities(tools=False)),),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SECTION + '"a/m" = {tool = true}\n', "section.0.models.a/m.tool: Extra inputs are not permitted"),
        (
            SECTION + '"a/m" = {reasoning_levels = ["max"]}\n',
            "section.0.models.a/m.reasoning_levels.0: Input should be",
        ),
        (SECTION + '"a/m" = {prices = {input = nan, output = 1}}\n', "prices.input: Value error, not a price"),
        (SECTION + '"a/m" = {}\n"a/m" = {}\n', "cannot be read: Cannot overwrite a value (at line 6"),
        (SECTION + '"m" = {}\n', "section.0.models.m.[key]: String should match pattern"),
        (SECTION.replace("https:", "http:"), "section.0.source: String should match pattern"),
        (SECTION.replace("as_of = 2026-11-22", ""), "section.0.as_of: Field required"),
        ("[[section]", "cannot be read: Expected ']]' at the end of an array declaration"),
        (None, "cannot be read: [Errno 2] No such file or directory"),
    ],
)
def test_an_invalid_table_of_capabilities_is_a_clear_error(tmp_path: Path, text: str | None, message: str) -> None:
    table = tmp_path / "models.toml"
    if text is not None:
        table.write_text(text, "utf-8")

    with pytest.raises(ConfigError) as caught:
        read_table(table)

    assert str(table) in str(caught.value)
    assert message in str(caught.value)


def test_known_values_override_and_unknown_ones_are_filled() -> None:
    one = Capabilities(tools=False, context_window=1000)
    other = Capabilities(tools=True, context_window=2000, json_object=True)

    assert one.over(other) == Capabilities(tools=False, context_window=1000, json_object=True)
    assert Capabilities().over(other) == other.over(Capabilities()) == other


COUNTS = st.integers(0, 10_000_000)
DOLLARS = st.floats(0, 1000)


@given(COUNTS, COUNTS, COUNTS, COUNTS, DOLLARS, DOLLARS, DOLLARS, DOLLARS)
@cases(100)
def test_a_million_tokens_cost_their_price(
    read: int,
    cached: int,
    kept: int,
    written: int,
    price_in: float,
    price_out: float,
    price_cached: float,
    price_kept: float,
) -> None:
    usage = Usage(
        prompt_tokens=read + cached + kept,
        completion_tokens=written,
        total_tokens=read + cached + kept + written,
        cached_tokens=cached,
        cache_write_tokens=kept,
    )

    def cost(**prices: float) -> float:
        return with_cost(usage, Capabilities(prices=Prices(**prices))).cost_usd or 0.0

    every = read * price_in + cached * price_cached + kept * price_kept + written * price_out
    prices = {"input": price_in, "output": price_out, "cached": price_cached, "cache_write": price_kept}
    assert cost(**prices) == pytest.approx(every / 1_000_000)
    whole = (read + cached + kept) * price_in + written * price_out
    assert cost(input=price_in, output=price_out) == pytest.approx(whole / 1_000_000)


def test_without_a_price_there_is_no_cost() -> None:
    usage = Usage(prompt_tokens=5, completion_tokens=5, total_tokens=10)

    assert with_cost(usage, Capabilities()) == usage.model_copy(update={"cost_usd": None})


# --- in requests


def sent(
    provider: str, model: str, *, stream: bool = False, json: dict[str, Any] | None = None, **settings: Any
) -> tuple[dict[str, Any], list[Delta]]:
    async def run() -> tuple[dict[str, Any], list[Delta]]:
        async with wire_server([says("one two")]) as server:
            client = OpenAIModel(provider, model, api_key="k", base_url=server.url)
            asked = ModelRequest((USER,), settings=ModelSettings(**settings), stream=stream, json=json)
            deltas = [delta async for delta in client.stream(asked)]
            await client.close()
            return server.requests[0], deltas

    return asyncio.run(run())


THINKING_KEYS = {"reasoning_effort", "enable_thinking", "thinking"}


@pytest.mark.parametrize(
    ("provider", "model", "effort", "expected"),
    [
        ("openai", "gpt-5", "low", {"reasoning_effort": "low"}),
        ("openai", "not-heard-of", "low", {"reasoning_effort": "low"}),
        ("openai", "gpt-4o", "low", {}),
        ("qwen", "qwen-plus", "low", {"enable_thinking": True}),
        ("qwen", "qwen-plus", "minimal", {"enable_thinking": False}),
        ("qwen", "qwen-plus", None, {}),
        ("deepseek", "deepseek-chat", "high", {"thinking": {"type": "enabled"}}),
        ("deepseek", "deepseek-chat", "minimal", {"thinking": {"type": "disabled"}}),
    ],
)
def test_reasoning_effort_is_sent_in_the_models_own_parameter(
    provider: str, model: str, effort: str | None, expected: dict[str, Any]
) -> None:
    body, _ = sent(provider, model, reasoning=effort)

    assert {key: body[key] for key in THINKING_KEYS & body.keys()} == expected


@pytest.mark.parametrize(
    ("model", "effort", "streamed"),
    [("qwen-plus", None, False), ("qwen-plus", "high", True), ("qwen-plus", "minimal", False), ("qwq-32b", None, True)],
)
def test_qwen_thinks_in_streamed_answers_only(model: str, effort: str | None, streamed: bool) -> None:
    body, deltas = sent("qwen", model, reasoning=effort)

    assert bool(body.get("stream")) is streamed
    reply = deltas[-1].reply
    assert reply
    assert reply.message.content == "one two"
    assert reply.usage.total_tokens == 15


# --- in agentsd.yaml


def load(root: Path, text: str) -> Settings:
    (root / "agentsd.yaml").write_text(text, "utf-8")
    return Settings.load(root)


def test_an_alias_declares_capabilities(tmp_path: Path) -> None:
    text = (
        "models:\n  local:\n    model: openai/llama\n"
        "    capabilities: {tools: false, context_window: 32000, thinking: none, prices: {input: 0.5, output: 1}}\n"
    )

    declared = load(tmp_path, text).models["local"].capabilities

    prices = Prices(input=0.5, output=1)
    assert declared == Capabilities(tools=False, context_window=32_000, thinking="none", prices=prices)


@pytest.mark.parametrize(
    ("capabilities", "message"),
    [
        ("{tool: false}", "unknown key 'tool'"),
        ("{context_window: 0}", "greater than 0"),
        ("{context_window: 32k}", "must be a whole number"),
        ("{thinking: hard}", "'reasoning_effort'"),
        ("{prices: {input: 1}}", "the key 'output' is missing"),
        ("{prices: {input: -1, output: 1}}", "not a price"),
    ],
)
def test_an_invalid_capability_is_an_error_at_its_position(tmp_path: Path, capabilities: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"models: {{local: {{model: openai/x, capabilities: {capabilities}}}}}\n")

    assert "agentsd.yaml:1:" in str(caught.value)
    assert message in str(caught.value)


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("name", "effort", "schema", "form"),
    [
        (
            "openai/gpt-5-mini",
            None,
            SCHEMA,
            {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
        ),
        ("openai/gpt-5-mini", None, {}, {"type": "json_object"}),
        ("deepseek/deepseek-chat", None, SCHEMA, {"type": "json_object"}),
        ("qwen/qwen-max", None, SCHEMA, {"type": "json_object"}),
        ("qwen/qwen-max", "high", SCHEMA, None),  # it does not support thinking and JSON together
        ("ollama/nobody-knows", None, SCHEMA, None),
        ("openai/gpt-5-mini", None, None, None),
    ],
)
def test_json_is_enforced_as_strictly_as_the_model_supports(
    name: str, effort: str | None, schema: dict[str, Any] | None, form: dict[str, Any] | None
) -> None:
    body, _ = sent(*name.split("/"), json=schema, reasoning=effort)

    assert body.get("response_format") == form


@pytest.mark.parametrize(("model", "refuses"), [("grok-4.6", True), ("grok-3", False), ("grok-3-mini", True)])
def test_grok_models_that_reason_refuse_penalties(model: str, refuses: bool) -> None:
    refused = known_capabilities(f"openai/{model}", "https://api.x.ai/v1").refused_settings or ()
    assert ("presence_penalty" in refused, "stop" in refused, "top_k" in refused) == (refuses, refuses, True)
