"""What is known of models before they are asked: what they can do, how long they read and write, what they cost.

The rows hold what the makers say, or say who else says it. What is unknown is None, and a client then does what its API
takes in general.
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
"""The parameter that says how long a model may think; `none`: it has none."""
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_TOKENS_PER_PRICE = 1_000_000
_UNSUPPORTED_SETTINGS: Mapping[str, tuple[str, ...]] = {"anthropic": ("seed",)}
"""Settings for which a provider has no parameter: set all the same, they would do nothing, and nobody would notice."""
THINKING_TOKENS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16_384}
"""What `model_settings.reasoning` means to models that are given a budget of tokens."""


class Prices(Frozen):
    """US dollars for a million tokens."""

    input: Price
    """Of tokens that are read."""
    output: Price
    """Of tokens that are written, reasoning included."""
    cached: Price | None = None
    """Of input that comes from the provider's cache; missing: as other input."""
    cache_write: Price | None = None
    """Of input that goes into the provider's cache; missing: as other input."""

    def cost(self, usage: Usage) -> float:
        """Return what a call costs, in US dollars. Tokens in the total that are neither kind count as output."""
        cached = self.input if self.cached is None else self.cached
        kept = self.input if self.cache_write is None else self.cache_write
        fresh = max(0, usage.prompt_tokens - usage.cached_tokens - usage.cache_write_tokens)
        written = max(usage.completion_tokens, usage.total_tokens - usage.prompt_tokens)
        read = fresh * self.input + usage.cached_tokens * cached + usage.cache_write_tokens * kept
        return (read + written * self.output) / _TOKENS_PER_PRICE


def _unless_free(value: Any) -> Any:
    return {"input": 0, "output": 0} if value == "free" else value


PricesOrFree = Annotated[Prices, BeforeValidator(_unless_free, json_schema_input_type=Literal["free"] | Prices)]
"""Prices; the word `free` is short for prices of 0."""


class Capabilities(Frozen):
    """What a model can do; what is missing is not known."""

    tools: bool | None = None
    """It can call functions."""
    tool_choice_required: bool | None = None
    """It can be made to call some function, or a certain one; where not, it is asked to choose for itself."""
    json_schema: bool | None = None
    """It can be held to a JSON Schema."""
    json_object: bool | None = None
    """It can be held to JSON."""
    json_with_tools: bool | None = None
    """It can be held to either while it is offered tools."""
    thinking: Thinking | None = None
    """How it is told how long to think (`model_settings.reasoning`)."""
    stream_only: bool | None = None
    """It answers streamed requests only."""
    context_window: PositiveInt | None = None
    """Tokens it can read and write in one call."""
    max_output: PositiveInt | None = None
    """Tokens it can write in one call."""
    prices: PricesOrFree | None = None
    """What it costs, `free` for nothing. Runs with a `max_cost_usd` use no model whose price is unknown."""

    def tool_choice(self, wanted: str | None) -> str:
        """The choice to send; `auto` where the model cannot be made to call."""
        cannot = self.tool_choice_required is False and wanted != "none"
        return "auto" if wanted is None or cannot else wanted

    def over(self, other: Capabilities) -> Capabilities:
        """The same, and where nothing is known, what the other says."""
        known = {name: value for name in Capabilities.model_fields if (value := getattr(self, name)) is not None}
        return other.model_copy(update=known)


def with_cost(usage: Usage, capabilities: Capabilities) -> Usage:
    """Return the usage with its cost, where prices are known, and a total that is not below its parts."""
    if usage.total_tokens < (parts := usage.prompt_tokens + usage.completion_tokens):
        usage = usage.model_copy(update={"total_tokens": parts})
    if capabilities.prices is None:
        return usage
    return usage.model_copy(update={"cost_usd": capabilities.prices.cost(usage)})


def unsupported_settings(provider: str, settings: ModelSettings) -> list[str]:
    """Those of the settings that a provider has no parameter for."""
    return [name for name in _UNSUPPORTED_SETTINGS.get(provider, ()) if getattr(settings, name) is not None]


def known_capabilities(name: str) -> Capabilities:
    """What the rows say of `provider/model`; a later row adds to those before it, and wins over them."""
    found = Capabilities()
    for pattern, row in _rows():
        if fnmatchcase(name, pattern):
            found = row.over(found)
    return found


def _rows() -> tuple[tuple[str, Capabilities], ...]:
    """The list prices of short prompts; some models cost more past some 200000 tokens."""
    return (*_openai(), *_anthropic(), *_gemini(), *_others())


def _openai() -> tuple[tuple[str, Capabilities], ...]:
    gpt = Capabilities(tools=True, tool_choice_required=True, json_schema=True, json_object=True, json_with_tools=True)
    older = Capabilities(thinking="none", context_window=128_000, max_output=16_384)
    reads_a_million = Capabilities(thinking="none", context_window=1_047_576, max_output=32_768)
    thinks = Capabilities(context_window=400_000, max_output=128_000)
    return (
        ("openai/gpt-[45]*", gpt),
        *_older_openai(),
        ("openai/gpt-4o*", older),
        ("openai/gpt-4o", _costs(2.5, 10, 1.25)),
        ("openai/gpt-4o-mini", _costs(0.15, 0.6, 0.075)),
        ("openai/gpt-4.1*", reads_a_million),
        ("openai/gpt-4.1", _costs(2, 8, 0.5)),
        ("openai/gpt-4.1-mini", _costs(0.4, 1.6, 0.1)),
        ("openai/gpt-4.1-nano", _costs(0.1, 0.4, 0.025)),
        ("openai/gpt-5*", Capabilities(thinking="reasoning_effort")),
        ("openai/gpt-5", thinks.over(_costs(1.25, 10, 0.125))),
        ("openai/gpt-5-mini*", thinks.over(_costs(0.25, 2, 0.025))),
        ("openai/gpt-5-nano*", thinks.over(_costs(0.05, 0.4, 0.005))),
        ("openai/gpt-5-chat*", older),
        ("openai/gpt-5.4", Capabilities(context_window=1_050_000, max_output=128_000).over(_costs(2.5, 15, 0.25))),
        ("openai/gpt-5.4-mini*", thinks.over(_costs(0.75, 4.5, 0.075))),
        ("openai/gpt-5.4-nano*", thinks.over(_costs(0.2, 1.25, 0.02))),
        ("openai/gpt-5.5", Capabilities(context_window=1_000_000, max_output=128_000).over(_costs(5, 30, 0.5))),
    )


def _older_openai() -> tuple[tuple[str, Capabilities], ...]:
    """From the models' pages at developers.openai.com; JSON mode came in November 2023, JSON Schema in August 2024."""
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
    # Models that always think, and some others since, refuse to be made to call a tool.
    chooses_itself = Capabilities(tool_choice_required=False)
    reads_a_million = Capabilities(context_window=1_000_000, max_output=128_000)
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
        ("anthropic/claude-*-4-[678]*", reads_a_million),
        ("anthropic/claude-*[a-z]-5*", reads_a_million),
        ("anthropic/claude-sonnet-5", _claude_costs(2, 10, 0.2)),
        ("anthropic/claude-sonnet-5-5*", chooses_itself.over(_claude_costs(2, 10, 0.1))),
        ("anthropic/claude-haiku-5-5*", _claude_costs(0.1, 0.5, 0.01)),
        ("anthropic/claude-opus-5", _claude_costs(5, 25, 0.5)),
        ("anthropic/claude-opus-5-5*", chooses_itself.over(_claude_costs(4, 20, 0.2))),
        ("anthropic/claude-fable-*", chooses_itself),
        ("anthropic/claude-mythos-*", chooses_itself),
        ("anthropic/claude-fable-5-1*", _claude_costs(10, 50, 0.25)),
        ("anthropic/claude-fable-5-2*", _claude_costs(8, 40)),
    )


def _gemini() -> tuple[tuple[str, Capabilities], ...]:
    gemini = Capabilities(tools=True, tool_choice_required=True, json_schema=True, json_object=True)
    reads_a_million = Capabilities(context_window=1_048_576, max_output=65_536)
    return (
        ("gemini/gemini-*", gemini),  # gemini-pro among them: it was shut down, and its window and price are unknown
        ("gemini/gemini-[3-9]*", Capabilities(thinking="thinking_level")),
        ("gemini/gemini-3-*", reads_a_million),
        ("gemini/gemini-3.[0-9]*", reads_a_million),
        ("gemini/gemini-3-pro*", _costs(2, 12, 0.2)),
        ("gemini/gemini-3-flash*", _costs(0.5, 3, 0.05)),
        ("gemini/gemini-3.1-pro*", _costs(2, 12, 0.2)),
        ("gemini/gemini-3.1-flash-lite*", _costs(0.25, 1.5)),
        ("gemini/gemini-3.5-flash", _costs(1.5, 9)),
        ("gemini/gemini-2.5-*", reads_a_million.over(Capabilities(thinking="thinking_budget"))),
        ("gemini/gemini-2.5-pro*", _costs(1.25, 10, 0.125)),
        ("gemini/gemini-2.5-flash*", _costs(0.3, 2.5, 0.03)),
        ("gemini/gemini-2.5-flash-lite*", _costs(0.1, 0.4, 0.01)),
        ("gemini/gemini-2.0-*", Capabilities(thinking="none", context_window=1_048_576, max_output=8192)),
    )


def _others() -> tuple[tuple[str, Capabilities], ...]:
    """Where a price depends on the hour or the length of the prompt, the higher one counts."""
    qwen = Capabilities(tools=True, tool_choice_required=False, json_object=True, thinking="enable_thinking")
    deepseek = Capabilities(tools=True, json_schema=False, json_object=True, thinking="thinking_type")
    llama = Capabilities(tools=True, json_object=True, thinking="none", context_window=131_072)
    reads_a_million, flash = Capabilities(context_window=1_000_000, max_output=384_000), _costs(0.3, 1.2, 0.006)
    return (
        ("qwen/qwen*", qwen),
        # Window: alibabacloud.com/help. Prices, without thinking: only third parties (OpenRouter, Bifrost).
        ("qwen/qwen-turbo*", Capabilities(context_window=131_072, max_output=16_384).over(_costs(0.05, 0.2))),
        # Only third parties name these: windows from 131072 to a million, prices from 0.26 / 0.78 to 0.4 / 1.2.
        ("qwen/qwen-plus*", Capabilities(context_window=131_072, max_output=8192).over(_costs(0.4, 1.2))),
        ("qwen/qwq-*", qwen.over(Capabilities(stream_only=True))),
        ("deepseek/deepseek-*", deepseek),
        # From api-docs.deepseek.com, at peak hours. Older names are served by deepseek-flash; third parties name 128000
        # tokens for the oldest.
        ("deepseek/deepseek-flash*", reads_a_million.over(flash)),
        ("deepseek/deepseek-v4-flash*", reads_a_million.over(flash)),
        ("deepseek/deepseek-v4-pro*", reads_a_million.over(_costs(1.32, 3.96, 0.044))),
        ("deepseek/deepseek-chat", Capabilities(context_window=128_000).over(flash)),
        ("deepseek/deepseek-reasoner", Capabilities(context_window=128_000).over(flash)),
        ("groq/llama-3.[13]-*", llama),
    )


def _claude_costs(read: float, written: float, cached: float | None = None) -> Capabilities:
    """Input that is kept for five minutes costs a quarter more."""
    return Capabilities(prices=Prices(input=read, output=written, cached=cached, cache_write=1.25 * read))


def _costs(read: float, written: float, cached: float | None = None) -> Capabilities:
    return Capabilities(prices=Prices(input=read, output=written, cached=cached))
