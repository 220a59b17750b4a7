"""Known capabilities of models: features, token limits and prices.

The figures are the providers' own unless a comment names another source. Unknown values are None; a client then uses
what its API accepts in general.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from framework.types.frozen import Frozen
from framework.types.messages import Usage
from framework.types.spec import ModelSettings, PositiveInt

Thinking = Literal[
    "none",
    "reasoning_effort",
    "enable_thinking",
    "thinking_type",
    "thinking_budget",
    "thinking_level",
    "adaptive_thinking",
]
"""The parameter that controls how long a model thinks; `none` if it has none."""
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_TOKENS_PER_PRICE = 1_000_000
_UNSUPPORTED_SETTINGS: Mapping[str, tuple[str, ...]] = {"anthropic": ("seed",)}
"""Settings that a provider does not support. They are rejected instead of being ignored silently."""
THINKING_TOKENS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16_384}
"""Token budget for each level of `model_settings.reasoning`, for models with a thinking budget."""


class Prices(Frozen):
    """Prices in US dollars per million tokens."""

    input: Price
    """Input tokens."""
    output: Price
    """Output tokens, including reasoning."""
    cached: Price | None = None
    """Input read from the provider's cache; defaults to `input`."""
    cache_write: Price | None = None
    """Input written to the provider's cache; defaults to `input`."""

    def cost(self, usage: Usage) -> float:
        """Return the cost of a call in US dollars. Tokens that only the total includes count as output."""
        cached = self.input if self.cached is None else self.cached
        cache_write = self.input if self.cache_write is None else self.cache_write
        uncached = max(0, usage.prompt_tokens - usage.cached_tokens - usage.cache_write_tokens)
        output = max(usage.completion_tokens, usage.total_tokens - usage.prompt_tokens)
        input_cost = uncached * self.input + usage.cached_tokens * cached + usage.cache_write_tokens * cache_write
        return (input_cost + output * self.output) / _TOKENS_PER_PRICE


def _unless_free(value: Any) -> Any:
    return {"input": 0, "output": 0} if value == "free" else value


PricesOrFree = Annotated[Prices, BeforeValidator(_unless_free, json_schema_input_type=Literal["free"] | Prices)]
"""Prices, or the word `free` for prices of 0."""


class Capabilities(Frozen):
    """Capabilities of a model; missing values are unknown."""

    tools: bool | None = None
    """Supports function calls."""
    tool_choice_required: bool | None = None
    """Can be forced to call a function; otherwise `tool_choice` falls back to `auto`."""
    json_schema: bool | None = None
    """Can be forced to reply with JSON of a schema."""
    json_object: bool | None = None
    """Can be forced to reply with JSON."""
    json_with_tools: bool | None = None
    """Supports `json_schema` and `json_object` together with tools."""
    thinking: Thinking | None = None
    """The parameter for `model_settings.reasoning`."""
    stream_only: bool | None = None
    """Supports streamed requests only."""
    context_window: PositiveInt | None = None
    """Input and output tokens of one call, at most."""
    max_output: PositiveInt | None = None
    """Output tokens of one call, at most."""
    prices: PricesOrFree | None = None
    """Prices, or `free`. Runs with a `max_cost_usd` use no model whose price is unknown."""

    def tool_choice(self, requested: str | None) -> str:
        """Return the choice to send: `auto` if the model cannot be forced to call a tool."""
        cannot_force = self.tool_choice_required is False and requested != "none"
        return "auto" if requested is None or cannot_force else requested

    def over(self, other: Capabilities) -> Capabilities:
        """Return these capabilities, with unknown values taken from `other`."""
        values = {name: value for name in Capabilities.model_fields if (value := getattr(self, name)) is not None}
        return other.model_copy(update=values)


def with_cost(usage: Usage, capabilities: Capabilities) -> Usage:
    """Return the usage with its cost, if prices are known, and a total that is at least the sum of its parts."""
    if usage.total_tokens < (parts := usage.prompt_tokens + usage.completion_tokens):
        usage = usage.model_copy(update={"total_tokens": parts})
    if capabilities.prices is None:
        return usage
    return usage.model_copy(update={"cost_usd": capabilities.prices.cost(usage)})


def unsupported_settings(provider: str, settings: ModelSettings) -> list[str]:
    """Return the names of the settings that the provider does not support."""
    return [name for name in _UNSUPPORTED_SETTINGS.get(provider, ()) if getattr(settings, name) is not None]


def known_capabilities(name: str) -> Capabilities:
    """Return the known capabilities of `provider/model`. A later matching row overrides earlier ones."""
    merged = Capabilities()
    for pattern, row in _rows():
        if fnmatchcase(name, pattern):
            merged = row.over(merged)
    return merged


def _rows() -> tuple[tuple[str, Capabilities], ...]:
    """Return the rows, with list prices of short prompts; some models cost more above about 200,000 tokens."""
    return (*_openai(), *_anthropic(), *_gemini(), *_others())


def _openai() -> tuple[tuple[str, Capabilities], ...]:
    gpt = Capabilities(tools=True, tool_choice_required=True, json_schema=True, json_object=True, json_with_tools=True)
    older = Capabilities(thinking="none", context_window=128_000, max_output=16_384)
    million_tokens = Capabilities(thinking="none", context_window=1_047_576, max_output=32_768)
    reasoning = Capabilities(context_window=400_000, max_output=128_000)
    return (
        ("openai/gpt-[45]*", gpt),
        *_older_openai(),
        ("openai/gpt-4o*", older),
        ("openai/gpt-4o", _costs(2.5, 10, 1.25)),
        ("openai/gpt-4o-mini", _costs(0.15, 0.6, 0.075)),
        ("openai/gpt-4.1*", million_tokens),
        ("openai/gpt-4.1", _costs(2, 8, 0.5)),
        ("openai/gpt-4.1-mini", _costs(0.4, 1.6, 0.1)),
        ("openai/gpt-4.1-nano", _costs(0.1, 0.4, 0.025)),
        ("openai/gpt-5*", Capabilities(thinking="reasoning_effort")),
        ("openai/gpt-5", reasoning.over(_costs(1.25, 10, 0.125))),
        ("openai/gpt-5-mini*", reasoning.over(_costs(0.25, 2, 0.025))),
        ("openai/gpt-5-nano*", reasoning.over(_costs(0.05, 0.4, 0.005))),
        ("openai/gpt-5-chat*", older),
        ("openai/gpt-5.4", Capabilities(context_window=1_050_000, max_output=128_000).over(_costs(2.5, 15, 0.25))),
        ("openai/gpt-5.4-mini*", reasoning.over(_costs(0.75, 4.5, 0.075))),
        ("openai/gpt-5.4-nano*", reasoning.over(_costs(0.2, 1.25, 0.02))),
        ("openai/gpt-5.5", Capabilities(context_window=1_000_000, max_output=128_000).over(_costs(5, 30, 0.5))),
    )


def _older_openai() -> tuple[tuple[str, Capabilities], ...]:
    """Return older models, from developers.openai.com. JSON mode: November 2023; JSON Schema: August 2024."""
    no_schema = Capabilities(tools=True, tool_choice_required=True, json_schema=False, thinking="none")
    json_mode, no_json = Capabilities(json_object=True), Capabilities(json_object=False)
    sizes = {
        "gpt-3.5": Capabilities(context_window=16_385, max_output=4096),
        "gpt-4": Capabilities(context_window=8192, max_output=8192),
        "turbo": Capabilities(context_window=128_000, max_output=4096),
    }
    return (
        ("openai/gpt-3.5-turbo", sizes["gpt-3.5"].over(_costs(0.5, 1.5)).over(no_schema).over(json_mode)),
        ("openai/gpt-3.5-turbo-0125", sizes["gpt-3.5"].over(_costs(0.5, 1.5)).over(no_schema).over(json_mode)),
        ("openai/gpt-4", sizes["gpt-4"].over(_costs(30, 60)).over(no_schema).over(no_json)),
        ("openai/gpt-4-0613", sizes["gpt-4"].over(_costs(30, 60)).over(no_schema).over(no_json)),
        ("openai/gpt-4-turbo*", sizes["turbo"].over(_costs(10, 30)).over(no_schema)),
        ("openai/gpt-4-[01]*-preview", sizes["turbo"].over(_costs(10, 30)).over(no_schema)),
        ("openai/gpt-4o-2024-05-13", Capabilities(json_schema=False)),
    )


def _anthropic() -> tuple[tuple[str, Capabilities], ...]:
    claude = Capabilities(tools=True, tool_choice_required=True, json_object=False, thinking="adaptive_thinking")
    # Models that always think, and some others since, reject a forced tool call.
    no_forced_call = Capabilities(tool_choice_required=False)
    million_tokens = Capabilities(context_window=1_000_000, max_output=128_000)
    budgeted = Capabilities(thinking="thinking_budget", context_window=200_000)
    return (
        ("anthropic/claude-*", claude),
        ("anthropic/claude-3*", Capabilities(thinking="none", context_window=200_000)),
        ("anthropic/claude-[a-z]*-4-[015]*", budgeted),
        ("anthropic/claude-[a-z]*-4-20*", budgeted),
        ("anthropic/claude-*-4-5*", Capabilities(max_output=64_000)),
        ("anthropic/claude-haiku-4-5*", _claude_costs(1, 5, 0.1)),
        ("anthropic/claude-sonnet-4-[56]*", _claude_costs(3, 15, 0.3)),
        ("anthropic/claude-opus-4-[5-8]*", _claude_costs(5, 25, 0.5)),
        ("anthropic/claude-*-4-[678]*", million_tokens),
        ("anthropic/claude-*[a-z]-5*", million_tokens),
        ("anthropic/claude-sonnet-5", _claude_costs(2, 10, 0.2)),
        ("anthropic/claude-sonnet-5-5*", no_forced_call.over(_claude_costs(2, 10, 0.1))),
        ("anthropic/claude-haiku-5-5*", _claude_costs(0.1, 0.5, 0.01)),
        ("anthropic/claude-opus-5", _claude_costs(5, 25, 0.5)),
        ("anthropic/claude-opus-5-5*", no_forced_call.over(_claude_costs(4, 20, 0.2))),
        ("anthropic/claude-fable-*", no_forced_call),
        ("anthropic/claude-mythos-*", no_forced_call),
        ("anthropic/claude-fable-5-1*", _claude_costs(10, 50, 0.25)),
        ("anthropic/claude-fable-5-2*", _claude_costs(8, 40)),
    )


def _gemini() -> tuple[tuple[str, Capabilities], ...]:
    gemini = Capabilities(tools=True, tool_choice_required=True, json_schema=True, json_object=True)
    million_tokens = Capabilities(context_window=1_048_576, max_output=65_536)
    return (
        ("gemini/gemini-*", gemini),  # including gemini-pro, which was shut down; its window and price are unknown
        ("gemini/gemini-[3-9]*", Capabilities(thinking="thinking_level")),
        ("gemini/gemini-3-*", million_tokens),
        ("gemini/gemini-3.[0-9]*", million_tokens),
        ("gemini/gemini-3-pro*", _costs(2, 12, 0.2)),
        ("gemini/gemini-3-flash*", _costs(0.5, 3, 0.05)),
        ("gemini/gemini-3.1-pro*", _costs(2, 12, 0.2)),
        ("gemini/gemini-3.1-flash-lite*", _costs(0.25, 1.5)),
        ("gemini/gemini-3.5-flash", _costs(1.5, 9)),
        ("gemini/gemini-2.5-*", million_tokens.over(Capabilities(thinking="thinking_budget"))),
        ("gemini/gemini-2.5-pro*", _costs(1.25, 10, 0.125)),
        ("gemini/gemini-2.5-flash*", _costs(0.3, 2.5, 0.03)),
        ("gemini/gemini-2.5-flash-lite*", _costs(0.1, 0.4, 0.01)),
        ("gemini/gemini-2.0-*", Capabilities(thinking="none", context_window=1_048_576, max_output=8192)),
    )


def _others() -> tuple[tuple[str, Capabilities], ...]:
    """Return other providers' models. If a price depends on the hour or the prompt's length, the higher one is used."""
    qwen = Capabilities(tools=True, tool_choice_required=False, json_object=True, thinking="enable_thinking")
    deepseek = Capabilities(tools=True, json_schema=False, json_object=True, thinking="thinking_type")
    llama = Capabilities(tools=True, json_object=True, thinking="none", context_window=131_072)
    million_tokens, flash = Capabilities(context_window=1_000_000, max_output=384_000), _costs(0.3, 1.2, 0.006)
    return (
        ("qwen/qwen*", qwen),
        # Window: alibabacloud.com/help. Prices, without thinking: third parties only (OpenRouter, Bifrost).
        ("qwen/qwen-turbo*", Capabilities(context_window=131_072, max_output=16_384).over(_costs(0.05, 0.2))),
        # Third parties only: windows from 131072 to a million tokens, prices from 0.26 / 0.78 to 0.4 / 1.2.
        ("qwen/qwen-plus*", Capabilities(context_window=131_072, max_output=8192).over(_costs(0.4, 1.2))),
        ("qwen/qwq-*", qwen.over(Capabilities(stream_only=True))),
        ("deepseek/deepseek-*", deepseek),
        # From api-docs.deepseek.com, at peak hours. Older names are aliases of deepseek-flash; third parties report
        # 128000 tokens for the oldest.
        ("deepseek/deepseek-flash*", million_tokens.over(flash)),
        ("deepseek/deepseek-v4-flash*", million_tokens.over(flash)),
        ("deepseek/deepseek-v4-pro*", million_tokens.over(_costs(1.32, 3.96, 0.044))),
        ("deepseek/deepseek-chat", Capabilities(context_window=128_000).over(flash)),
        ("deepseek/deepseek-reasoner", Capabilities(context_window=128_000).over(flash)),
        ("groq/llama-3.[13]-*", llama),
    )


def _claude_costs(input_price: float, output_price: float, cached: float | None = None) -> Capabilities:
    """Return the prices of a Claude model: input cached for five minutes costs a quarter more."""
    cache_write = 1.25 * input_price
    return Capabilities(prices=Prices(input=input_price, output=output_price, cached=cached, cache_write=cache_write))


def _costs(input_price: float, output_price: float, cached: float | None = None) -> Capabilities:
    return Capabilities(prices=Prices(input=input_price, output=output_price, cached=cached))
