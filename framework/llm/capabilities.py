"""Known capabilities of models: features, token limits and prices.

The known ones are in `capabilities.toml`, and those of model families in `profiles.toml`, with their sources. Unknown
values are None; a client then uses what its API accepts in general, or the strictest form of a conversation.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from datetime import date
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from math import inf, nan
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import BeforeValidator, Field, ValidationError

from framework.types.errors import ConfigError
from framework.types.frozen import Frozen
from framework.types.http import server_address
from framework.types.messages import Usage
from framework.types.spec import ModelSettings, PositiveInt, ReasoningLevel

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
CallIds = Literal["any", "short"]
"""Ids of tool calls that a chat template accepts: any text, or `short` ones of nine letters and digits."""
CallSignatures = Literal["extra_content", "reasoning_details"]
"""Where a message of chat completions has the signature of Gemini's thoughts beside its calls: `extra_content` of the
first call, as Google's server has it, or `reasoning_details` of the message, as OpenRouter has it."""
OpenAIApi = Literal["chat", "responses"]
"""OpenAI's APIs: chat completions, and responses."""
_PRICE_FORMS = "`free`, or in US dollars per million tokens: {input: 1.25, output: 10, cached: 0.125}"


def _check_price(value: Any) -> Any:
    """Return a price as a number; raise ValueError if it is not a finite number of at least 0."""
    try:
        price = float("nan" if isinstance(value, bool) else value)
    except (TypeError, ValueError):
        price = nan
    if not 0 <= price < inf:
        raise ValueError("not a price: write a number of US dollars per million tokens, 0 or more")
    return price


Price = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(_check_price)]
_TOKENS_PER_PRICE = 1_000_000
Setting = Literal[
    "temperature",
    "top_p",
    "stop",
    "seed",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "parallel_tool_calls",
    "verbosity",
    "service_tier",
]
"""Keys of `model_settings` that not every server accepts."""
_MAKERS = {"openai": "openai", "anthropic": "anthropic", "google": "gemini", "x-ai": "xai"}
"""Providers of the models that only their makers serve, by their names at OpenRouter."""
_OWN_APIS = ("anthropic", "gemini")
"""Providers with APIs of their own: what these refuse, every server with that API refuses."""
_IN_BEDROCK = re.compile(r"^.*\banthropic\.(?=claude-)|-v\d+(:\w+)*$")
"""What the id of a model or an inference profile in Bedrock adds to the model's name: region, vendor and version."""
LEVELS: tuple[ReasoningLevel, ...] = get_args(ReasoningLevel)
THINKING_TOKENS: Mapping[ReasoningLevel, int] = {
    "none": 0,
    "minimal": 1024,
    "low": 2048,
    "medium": 8192,
    "high": 16_384,
    "xhigh": 24_576,
}
"""Token budget for each level of `model_settings.reasoning`, for models with a thinking budget. The highest is the most
that all of them accept."""


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


def _check_prices(value: Any) -> Any:
    """Return prices, with `free` as prices of 0; raise ValueError for anything else than these two forms."""
    if value == "free":
        return {"input": 0, "output": 0}
    if not isinstance(value, (dict, Prices)):
        raise ValueError(f"not prices: write {_PRICE_FORMS}")
    if isinstance(value, dict) and "currency" in value:
        raise ValueError("prices are in US dollars per million tokens: convert them, and remove `currency`")
    return value


PricesOrFree = Annotated[Prices, BeforeValidator(_check_prices, json_schema_input_type=Literal["free"] | Prices)]
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
    api: OpenAIApi | None = None
    """OpenAI's API for this model: chat completions (the default), or responses."""
    thinking: Thinking | None = None
    """The parameter for `model_settings.reasoning`."""
    reasoning_levels: tuple[ReasoningLevel, ...] | None = None
    """The levels of `model_settings.reasoning` that the model supports, from the lowest to the highest."""
    images: bool | None = None
    """Accepts images as input."""
    pdf: bool | None = None
    """Accepts PDF documents as input."""
    audio: bool | None = None
    """Accepts audio as input."""
    stream_only: bool | None = None
    """Supports streamed requests only."""
    late_system: bool | None = None
    """Accepts system messages after the first one. Otherwise late instructions become part of the last message."""
    late_tools: bool | None = None
    """Accepts, within the conversation, the tools that a search found. The start of each request stays the same, so the
    provider's cache stays valid. Known only for the providers' own servers."""
    repeated_roles: bool | None = None
    """Accepts adjacent messages of one role, and a user message directly after results of tools."""
    parallel_calls: bool | None = None
    """Accepts several tool calls in one message of the history."""
    call_ids: CallIds | None = None
    """Ids of tool calls: any, or `short` ones of nine letters and digits, into which others are translated."""
    needs_reasoning: bool | None = None
    """Requires `reasoning_content`, which may be empty, in each message of the assistant."""
    call_signatures: CallSignatures | None = None
    """Rejects tool calls without a signature; those of other models get a stand-in."""
    null_content: bool | None = None
    """Accepts `null` as the content of a message with tool calls only; otherwise it is an empty text."""
    refused_settings: tuple[Setting, ...] | None = None
    """Keys of `model_settings` that the server refuses or ignores. An agent that sets one is an error."""
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

    def reasoning_level(self, requested: ReasoningLevel | None) -> ReasoningLevel | None:
        """Return the level to send: for a fallback model without the requested one, the closest that it has."""
        if requested is None or not self.reasoning_levels or requested in self.reasoning_levels:
            return requested
        return min(self.reasoning_levels, key=lambda level: abs(LEVELS.index(level) - LEVELS.index(requested)))

    def over(self, other: Capabilities) -> Capabilities:
        """Return these capabilities, with unknown values taken from `other`."""
        values = {name: value for name in Capabilities.model_fields if (value := getattr(self, name)) is not None}
        return other.model_copy(update=values)


def with_cost(usage: Usage, capabilities: Capabilities) -> Usage:
    """Return the usage with its cost, and a total that is at least the sum of its parts.

    The cost that the provider reported, else that by the known prices, else None.
    """
    if usage.total_tokens < (parts := usage.prompt_tokens + usage.completion_tokens):
        usage = usage.model_copy(update={"total_tokens": parts})
    is_reported = usage.cost_usd is not None and "cost_usd" in usage.model_fields_set
    if is_reported or not usage.total_tokens:
        return usage
    cost = None if capabilities.prices is None else capabilities.prices.cost(usage)
    return usage if cost == usage.cost_usd else usage.model_copy(update={"cost_usd": cost})


class UnsupportedSetting(NamedTuple):
    """A model setting that would have no effect, or that the provider would reject."""

    name: str
    problem: str
    hint: str


def accepted_settings(settings: ModelSettings, supported: Capabilities) -> ModelSettings:
    """Return the settings without those that the server refuses."""
    refused: dict[str, Any] = {name: () if name == "stop" else None for name in supported.refused_settings or ()}
    return settings.model_copy(update=refused) if refused else settings


class _Section(Frozen):
    """Rows of the table from one source, by the glob pattern of `provider/model`."""

    source: str = Field(pattern="^https://")
    as_of: date
    models: dict[Annotated[str, Field(pattern=r"^([a-z]+|\*)/.")], Capabilities]


class _Table(Frozen):
    servers: dict[str, Annotated[str, Field(pattern="^[a-z]+$")]] = {}
    section: tuple[_Section, ...]


class Row(NamedTuple):
    """What is known of the models whose name matches a glob pattern, and from where."""

    pattern: str
    known: Capabilities
    source: str
    as_of: date


Table = Mapping[str, tuple[Row, ...]]
"""The rows of each provider, in order."""


@lru_cache
def listed_name(name: str) -> str:
    """Return the name that the table has for `provider/model`: models in clouds are listed below their own APIs."""
    provider, _, model = name.partition("/")
    if provider == "bedrock":
        return f"anthropic/{_IN_BEDROCK.sub('', model)}"
    if provider != "vertex":
        return name
    if not model.startswith("claude-"):
        return f"gemini/{model}"
    family, _, version = model.partition("@")  # a date, which Anthropic appends with a hyphen, or a word
    return f"anthropic/{family}-{version}" if version.isdigit() else f"anthropic/{family}"


def known_capabilities(name: str, base_url: str | None = None) -> Capabilities:
    """Return the known capabilities of `provider/model`, at its provider or at the server behind a base URL."""
    merged = Capabilities()
    for row in known_rows(name, base_url):
        merged = row.known.over(merged)
    return merged


def known_rows(name: str, base_url: str | None = None) -> Iterator[Row]:
    """Yield the rows for `provider/model`; a later one overrides the values of earlier ones.

    Rows of a provider in the profiles are about its server: they apply to a base URL of that provider only, whatever
    provider the name starts with.
    """
    in_cloud, name = listed_name(name) != name, listed_name(name)
    provider, _, model = name.partition("/")
    server = known_server(base_url)
    at_server = f"{server or provider}/{model}"
    families, models = _tables()
    if (server or provider) == "openrouter" and (maker := _maker_name(model)):
        for row in _matching(models, maker.partition("/")[0], maker):
            yield row._replace(known=Capabilities(prices=row.known.prices))
    yield from _matching(families, "*", name.lower())
    rows = _matching(families, server or provider, at_server.lower())
    if server or (base_url is None and not in_cloud):
        yield from rows
    elif base_url is None or provider in _OWN_APIS:
        yield from (row._replace(known=row.known.model_copy(update={"late_tools": None})) for row in rows)
    yield from _matching(models, provider, name)
    if server and at_server != name:
        yield from _matching(models, server, at_server)


def _maker_name(model: str) -> str:
    """Return the name at its maker of a model that OpenRouter resells at the maker's prices; empty for other models.

    See https://openrouter.ai/docs/faq.
    """
    maker, _, own = model.partition("/")
    if ":" in own or maker not in _MAKERS:  # a variant has a price of its own
        return ""
    return f"{_MAKERS[maker]}/{own.replace('.', '-') if maker == 'anthropic' else own}"


def known_server(base_url: str | None) -> str:
    """Return the provider whose server a base URL names; empty if it is another one."""
    host = server_address(base_url)[0] or ""
    return next((server for pattern, server in _servers().items() if fnmatchcase(host, pattern)), "")


def _matching(table: Table, provider: str, name: str) -> Iterator[Row]:
    return (row for row in table.get(provider, ()) if fnmatchcase(name, row.pattern))


@cache
def _tables() -> tuple[Table, Table]:
    """Return the rows of model families and those of single models, which are read from their files once."""
    folder = Path(__file__).parent
    return read_table(folder / "profiles.toml"), read_table(folder / "capabilities.toml")


@cache
def _servers() -> Mapping[str, str]:
    """Return the provider of each host with a known server; hosts are glob patterns."""
    return _read(Path(__file__).parent / "profiles.toml").servers


def read_table(path: Path) -> Table:
    """Return the rows of a table by provider (`*` for all), in order.

    Raises:
        ConfigError: the file is unreadable, not TOML, or contains an invalid row.
    """
    rows: dict[str, list[Row]] = {}
    for section in _read(path).section:
        for pattern, known in section.models.items():
            row = Row(pattern, known, section.source, section.as_of)
            rows.setdefault(pattern.partition("/")[0], []).append(row)
    return {provider: tuple(of_provider) for provider, of_provider in rows.items()}


def _read(path: Path) -> _Table:
    try:
        return _Table.model_validate(tomllib.loads(path.read_text("utf-8")))
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise ConfigError(f"{path} is invalid: {wrong}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
