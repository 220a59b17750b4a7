"""From a model's name to a client: which servers are known, where they are, which variable holds their key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from framework.llm.client import ModelClient
from framework.llm.offline import OfflineModel
from framework.llm.openai import OpenAIModel
from framework.types.errors import ConfigError, did_you_mean

OFFLINE = "offline"


@dataclass(frozen=True, slots=True)
class Provider:
    """A service that speaks OpenAI's chat completions."""

    name: str
    key_variable: str | None
    """The environment variable with the key; None: it asks for none."""
    base_url: str | None
    """None: the SDK's own default."""


PROVIDERS = (
    Provider("openai", "OPENAI_API_KEY", None),
    Provider("qwen", "DASHSCOPE_API_KEY", "https://dashscope.aliyuncs.com/compatible-mode/v1"),
    Provider("deepseek", "DEEPSEEK_API_KEY", "https://api.deepseek.com/v1"),
    Provider("openrouter", "OPENROUTER_API_KEY", "https://openrouter.ai/api/v1"),
    Provider("mistral", "MISTRAL_API_KEY", "https://api.mistral.ai/v1"),
    Provider("groq", "GROQ_API_KEY", "https://api.groq.com/openai/v1"),
    Provider("ollama", None, "http://127.0.0.1:11434/v1"),
)


def connect(
    name: str, *, base_url: str | None = None, api_key: str | None = None, environ: Mapping[str, str]
) -> ModelClient:
    """The client for `provider/model`, or for `offline`. Nothing is sent and no SDK loaded yet.

    Args:
        name: as agent files write it; what follows the first `/` is the server's own name for the model.
        base_url: another server that speaks the same; it may do without a key.
        api_key: instead of the provider's variable.
        environ: where the keys are looked up.

    Raises:
        ConfigError: the name is not of that form, the provider is unknown, or its key is missing.
    """
    if name == OFFLINE:
        return OfflineModel()
    prefix, slash, model = name.partition("/")
    if not slash or not model:
        raise ConfigError(
            f"model {name!r} needs both halves: write PROVIDER/MODEL, such as openai/gpt-5.4-mini, or offline"
        )
    provider = _provider(prefix, name)
    key = (api_key or environ.get(provider.key_variable or "", "")).strip()
    if not key and provider.key_variable and base_url is None:
        raise ConfigError(f"{name} needs a key: set {provider.key_variable} (or use model: {OFFLINE})")
    if not key.isascii() or not key.isprintable():
        raise ConfigError(
            f"the key for {name} holds characters that no key has: copy {provider.key_variable or 'it'} again"
        )
    return OpenAIModel(provider.name, model, api_key=key, base_url=base_url or provider.base_url)


def _provider(prefix: str, name: str) -> Provider:
    for provider in PROVIDERS:
        if provider.name == prefix:
            return provider
    known = sorted(provider.name for provider in PROVIDERS)
    raise ConfigError(f"model {name!r}: there is no provider {prefix!r}{did_you_mean(prefix, known)}")
