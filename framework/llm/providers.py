"""From a model's name to a client: which servers are known, where they are, which variable holds their key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from framework.llm.anthropic.client import AnthropicModel
from framework.llm.base_url import normalize_base_url
from framework.llm.capabilities import Capabilities
from framework.llm.client import ModelClient
from framework.llm.gemini.client import GeminiModel
from framework.llm.offline.model import OfflineModel
from framework.llm.openai.client import OpenAIModel
from framework.types.errors import ConfigError
from framework.types.text import did_you_mean

OFFLINE = "offline"
ApiFormat = Literal["openai", "anthropic", "gemini"]
SDKS: Mapping[ApiFormat, str] = {"openai": "openai", "anthropic": "anthropic", "gemini": "google.genai"}
"""The module that speaks a format; all but the first come with an extra of the format's name."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A service with models."""

    name: str
    key_variables: tuple[str, ...] = ()
    """The environment variables that may hold the key, the first that is set counts; none: it asks for no key."""
    base_url: str | None = None
    """None: the SDK's own default."""
    speaks: ApiFormat = "openai"


PROVIDERS = (
    Provider("openai", ("OPENAI_API_KEY",)),
    Provider("anthropic", ("ANTHROPIC_API_KEY",), speaks="anthropic"),
    Provider("gemini", ("GEMINI_API_KEY", "GOOGLE_API_KEY"), speaks="gemini"),
    Provider("qwen", ("DASHSCOPE_API_KEY",), "https://dashscope.aliyuncs.com/compatible-mode/v1"),
    Provider("deepseek", ("DEEPSEEK_API_KEY",), "https://api.deepseek.com/v1"),
    Provider("openrouter", ("OPENROUTER_API_KEY",), "https://openrouter.ai/api/v1"),
    Provider("mistral", ("MISTRAL_API_KEY",), "https://api.mistral.ai/v1"),
    Provider("groq", ("GROQ_API_KEY",), "https://api.groq.com/openai/v1"),
    Provider("ollama", (), "http://127.0.0.1:11434/v1"),
)


def create_client(
    name: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    capabilities: Capabilities | None = None,
    environ: Mapping[str, str],
) -> ModelClient:
    """The client for `provider/model`, or for `offline`. Nothing is sent and no SDK loaded yet.

    Args:
        name: as agent files write it; what follows the first `/` is the server's own name for the model.
        base_url: another server that speaks the same; it may do without a key.
        api_key: instead of the provider's variable.
        capabilities: over those known of the model.
        environ: where the keys are looked up.

    Raises:
        ConfigError: the name is not of that form, the provider is unknown, its key or its SDK is missing, or `base_url`
            is no address.
    """
    if name == OFFLINE:
        return OfflineModel()
    prefix, slash, model = name.partition("/")
    if not slash or not model:
        raise ConfigError(
            f"model {name!r} needs both halves: write PROVIDER/MODEL, such as openai/gpt-5.4-mini, or offline"
        )
    provider = _provider(prefix, name)
    key = _key(provider, name, api_key, environ, needed=base_url is None)
    if not _installed(SDKS[provider.speaks]):
        raise ConfigError(f"{name} needs the SDK of {provider.name}: pip install 'agentsd[{provider.speaks}]'")
    url = provider.base_url if base_url is None else _checked(name, base_url)
    if provider.speaks == "anthropic":
        return AnthropicModel(model, api_key=key, base_url=url, capabilities=capabilities)
    if provider.speaks == "gemini":
        return GeminiModel(model, api_key=key, base_url=url, capabilities=capabilities)
    return OpenAIModel(provider.name, model, api_key=key, base_url=url, capabilities=capabilities)


def _provider(prefix: str, name: str) -> Provider:
    for provider in PROVIDERS:
        if provider.name == prefix:
            return provider
    known = sorted(provider.name for provider in PROVIDERS)
    raise ConfigError(f"model {name!r}: there is no provider {prefix!r}{did_you_mean(prefix, known)}")


def _key(provider: Provider, name: str, api_key: str | None, environ: Mapping[str, str], *, needed: bool) -> str:
    variables = " or ".join(provider.key_variables)
    found = [environ.get(variable, "").strip() for variable in provider.key_variables]
    key = (api_key or "").strip() or next(filter(None, found), "")
    if not key and variables and needed:
        raise ConfigError(f"{name} needs a key: set {variables} (or use model: {OFFLINE})")
    if not key.isascii() or not key.isprintable():
        raise ConfigError(f"the key for {name} holds characters that no key has: copy {variables or 'it'} again")
    return key


def _checked(name: str, base_url: str) -> str:
    try:
        return normalize_base_url(base_url)
    except ValueError as error:
        raise ConfigError(f"base_url of {name}: {error}") from None


def _installed(module: str) -> bool:
    """Is there such a module? Only the packages above it are loaded."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
