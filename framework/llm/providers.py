"""Creates the client for a model name, with the base URL and the API key of its provider.

The module of a client is imported when the first one is created: a process calls one or two providers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from framework.llm.base_url import is_region, normalize_base_url
from framework.llm.capabilities import Capabilities, OpenAIApi
from framework.llm.client import ModelClient
from framework.llm.openai.local_server import is_local
from framework.llm.provider_table import OFFLINE, PROVIDERS, Provider, chosen_api, missing_sdk, other_name
from framework.types.errors import ConfigError
from framework.types.text import did_you_mean


def create_client(
    name: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    api: OpenAIApi | None = None,
    capabilities: Capabilities | None = None,
    stream: bool | None = None,
    extra_body: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    environ: Mapping[str, str],
) -> ModelClient:
    """Return the client for `provider/model`, or for `offline`. It sends nothing and loads no SDK yet.

    Args:
        name: as in agent files; the part after the first `/` is the model's name on the server.
        base_url: a different server with the same API; it may need no key.
        api_key: overrides the provider's environment variable.
        api: for a provider with OpenAI's API format, overrides the one in the capabilities.
        capabilities: override the known ones.
        stream: whether responses are always or never streamed, also if nobody reads the text as it arrives. By default
            they always are if the server is local: it notices a cancelled call only while it streams.
        extra_body: fields added to the body of each request; none of `RESERVED_FIELDS`.
        headers: headers added to each request; none of `RESERVED_HEADERS`.
        environ: environment variables, which contain the keys.

    Raises:
        ConfigError: the name is malformed, the provider is unknown, its key, its SDK or another value that it requires
            is missing, or `base_url` is invalid.
    """
    if name == OFFLINE:
        from framework.llm.offline import OfflineModel

        return OfflineModel()
    prefix, slash, model = name.partition("/")
    if not slash or not model:
        raise ConfigError(
            f"model {name!r} is incomplete: write PROVIDER/MODEL, such as openai/gpt-5.4-mini, or offline"
        )
    provider = _provider(prefix, name)
    key = _key(provider, name, api_key, environ, needed=base_url is None and provider.key_required)
    if missing := missing_sdk(name):
        raise ConfigError(missing)
    url = _url(provider, name, base_url, environ)
    stream = True if stream is None and is_local(url) else stream
    options: dict[str, Any] = {"base_url": url, "capabilities": capabilities, "stream": stream}
    options |= {"extra_body": extra_body or {}, "headers": headers or {}}
    if provider.project_variable:
        return _vertex_client(model, _vertex_place(provider, name, key, environ), options)
    options["api_key"] = key
    if provider.extra == "bedrock":
        from framework.llm.bedrock import BedrockModel

        return BedrockModel(model, region=_location(provider, name, environ) or None, **options)
    if provider.api == "anthropic":
        from framework.llm.anthropic.client import AnthropicModel

        return AnthropicModel(model, **options)
    if provider.api == "gemini":
        from framework.llm.gemini.client import GeminiModel

        return GeminiModel(model, **options)
    options["azure_version"] = _required(provider.version_variable, name, "the version of the API", environ) or None
    api = chosen_api(name, base_url=base_url, api=api, capabilities=capabilities)
    return _openai_client(provider.name, model, api, options)


def _vertex_client(model: str, place: Mapping[str, str], options: Mapping[str, Any]) -> ModelClient:
    from framework.llm.vertex import VertexClaudeModel, VertexGeminiModel

    kind = VertexClaudeModel if model.startswith("claude-") else VertexGeminiModel
    return kind(model, **place, **options)


def _openai_client(provider: str, model: str, api: OpenAIApi | None, options: Mapping[str, Any]) -> ModelClient:
    if api == "responses":
        from framework.llm.openai.responses import ResponsesModel

        return ResponsesModel(provider, model, **options)
    from framework.llm.openai.client import OpenAIModel

    return OpenAIModel(provider, model, **options)


def _provider(prefix: str, name: str) -> Provider:
    for provider in PROVIDERS:
        if provider.name == prefix:
            return provider
    names = sorted(provider.name for provider in PROVIDERS)
    raise ConfigError(f"model {name!r}: unknown provider {prefix!r}{other_name(prefix) or did_you_mean(prefix, names)}")


def _key(provider: Provider, name: str, api_key: str | None, environ: Mapping[str, str], *, needed: bool) -> str:
    variables = " or ".join(provider.key_variables)
    values = [environ.get(variable, "").strip() for variable in provider.key_variables]
    key = (api_key or "").strip() or next(filter(None, values), "")
    if not key and variables and needed:
        raise ConfigError(f"{name} needs an API key: set {variables}, or use model: {OFFLINE}")
    if not key.isascii() or not key.isprintable():
        raise ConfigError(
            f"the API key for {name} contains characters that are not allowed: copy {variables or 'it'} again"
        )
    return key


def _vertex_place(provider: Provider, name: str, key: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the project and the location of a model in Vertex AI."""
    if key:
        raise ConfigError(f"{name} needs no API key but credentials of Google Cloud: remove api_key from its alias")
    project = _required(provider.project_variable, name, "the project", environ)
    return {"project": project, "location": _location(provider, name, environ) or "global"}


def _location(provider: Provider, name: str, environ: Mapping[str, str]) -> str:
    """Return the region in the environment, or an empty string; raise ConfigError if it cannot be one."""
    location = environ.get(provider.location_variable, "").strip()
    if location and not is_region(location):
        aws = ("region of AWS", "eu-central-1")
        what, example = aws if provider.extra == "bedrock" else ("location of Vertex AI", "global or europe-west1")
        problem = f"{name}: {location!r} is not a {what}"
        raise ConfigError(f"{problem}: set {provider.location_variable}, such as {example}")
    return location


def _url(provider: Provider, name: str, base_url: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the base URL, which the environment contains for some providers."""
    if base_url is None and provider.url_variable:
        base_url = _required(provider.url_variable, name, "the URL of your resource", environ)
    return provider.base_url if base_url is None else _normalized(name, base_url)


def _required(variable: str, name: str, what: str, environ: Mapping[str, str]) -> str:
    """Return the value of a variable that the provider requires; empty if there is no such variable."""
    value = environ.get(variable, "").strip() if variable else ""
    if variable and not value:
        raise ConfigError(f"{name} needs {what}: set {variable}")
    return value


def _normalized(name: str, base_url: str) -> str:
    try:
        return normalize_base_url(base_url)
    except ValueError as error:
        raise ConfigError(f"base_url of {name}: {error}") from None
