"""Creates the client for a model name, with the base URL and the API key of its provider.

The module of a client is imported when the first one is created: a process calls one or two providers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

from framework.llm.capabilities import Capabilities, OpenAIApi, known_capabilities, known_server
from framework.llm.client import ModelClient
from framework.llm.http_client import is_local, is_region, normalize_base_url
from framework.types.errors import ConfigError
from framework.types.installation import install_command
from framework.types.text import did_you_mean

OFFLINE = "offline"
ApiFormat = Literal["openai", "anthropic", "gemini"]
SDKS: Mapping[str, tuple[str, ...]] = {
    "openai": ("openai",),
    "anthropic": ("anthropic",),
    "gemini": ("google.genai",),
    "bedrock": ("anthropic", "botocore"),
    "vertex": ("anthropic", "google.genai"),
}
"""The SDK modules of each extra; that of OpenAI is always installed."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A model provider."""

    name: str
    key_variables: tuple[str, ...] = ()
    """Environment variables of the API key, the first that is set is used; empty if the provider requires no key."""
    base_url: str | None = None
    """None for the SDK's default."""
    key_required: bool = True
    """Whether the key variables are the only credentials."""
    api: ApiFormat = "openai"
    url_variable: str = ""
    """Environment variable of the base URL, for a provider where each customer has a server of its own."""
    gateway_variable: str = ""
    """Environment variable from which the SDK takes the URL of another server if there is no `base_url`."""
    version_variable: str = ""
    """Environment variable of the API's version, for a provider that requires one."""
    project_variable: str = ""
    """Environment variable of the project, for a provider with Google Cloud's credentials in place of a key."""
    location_variable: str = ""
    """Environment variable of the region, for a provider with several."""
    sdks: str = ""
    """The extra with its SDKs, if it is not that of its API format."""

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables on which a client depends."""
        others = (self.url_variable, self.version_variable, self.project_variable, self.location_variable)
        return (*self.key_variables, *filter(None, others))

    @property
    def extra(self) -> str:
        """The extra with its SDKs."""
        return self.sdks or self.api


PROVIDERS = (
    Provider("openai", ("OPENAI_API_KEY",), gateway_variable="OPENAI_BASE_URL"),
    Provider("anthropic", ("ANTHROPIC_API_KEY",), api="anthropic", gateway_variable="ANTHROPIC_BASE_URL"),
    Provider("gemini", ("GEMINI_API_KEY", "GOOGLE_API_KEY"), api="gemini"),
    Provider("qwen", ("DASHSCOPE_API_KEY",), "https://dashscope.aliyuncs.com/compatible-mode/v1"),
    Provider("deepseek", ("DEEPSEEK_API_KEY",), "https://api.deepseek.com/v1"),
    Provider("openrouter", ("OPENROUTER_API_KEY",), "https://openrouter.ai/api/v1"),
    Provider("mistral", ("MISTRAL_API_KEY",), "https://api.mistral.ai/v1"),
    Provider("groq", ("GROQ_API_KEY",), "https://api.groq.com/openai/v1"),
    Provider("ollama", (), "http://127.0.0.1:11434/v1"),
    Provider(
        "azure",
        ("AZURE_OPENAI_API_KEY",),
        url_variable="AZURE_OPENAI_ENDPOINT",
        version_variable="OPENAI_API_VERSION",
    ),
    Provider(
        "vertex",
        api="gemini",  # or Anthropic's for Claude, by the name of the model
        project_variable="GOOGLE_CLOUD_PROJECT",
        location_variable="GOOGLE_CLOUD_LOCATION",
        sdks="vertex",
    ),
    Provider(
        "bedrock",
        ("AWS_BEARER_TOKEN_BEDROCK",),
        key_required=False,  # requests are usually signed with the credentials of an AWS account
        api="anthropic",
        location_variable="AWS_REGION",
        sdks="bedrock",
    ),
)
_VARIABLES = {provider.name: provider.variables for provider in PROVIDERS}

RESERVED_FIELDS = frozenset(
    (
        *("model", "messages", "input", "instructions", "contents"),
        *("system", "system_instruction", "systeminstruction"),
        *("tools", "tool_choice", "tool_config", "toolconfig", "functions", "function_call", "response_format"),
        *("stream", "stream_options", "n", "candidate_count", "background", "conversation", "previous_response_id"),
    )
)
"""Fields of requests, in lower case, that agentsd writes: no option of an alias may replace them."""
RESERVED_HEADERS = frozenset(
    (
        *("host", "connection", "content-length", "content-type", "content-encoding", "transfer-encoding"),
        *("accept", "accept-encoding", "expect", "te", "trailer", "upgrade", "proxy-authorization"),
    )
)
"""Headers, in lower case, of which the HTTP client takes care."""
_OF_ERRORS = ("httpx2", "framework.types.http_transport")
"""Modules that explain errors. A process without open files could not import them any more."""


def other_name(prefix: str) -> str:
    """Return what to write for a provider named like its key, such as `dashscope`; empty if there is none."""
    known = (provider.name for provider in PROVIDERS if f"{prefix.upper()}_API_KEY" in provider.key_variables)
    name = next(known, prefix)
    return "" if name == prefix else f": write {name}/… for its models"


def api_format(name: str) -> ApiFormat | None:
    """Return the API format of `provider/model`, or None if the provider is unknown."""
    prefix = name.partition("/")[0]
    return next((provider.api for provider in PROVIDERS if provider.name == prefix), None)


def environment_of(name: str, environ: Mapping[str, str]) -> tuple[str | None, ...]:
    """Return the values of the environment variables on which the client of `provider/model` depends."""
    return tuple(map(environ.get, _VARIABLES.get(name.partition("/")[0], ())))


def uses_gateway(name: str, base_url: str | None, environ: Mapping[str, str]) -> bool:
    """Return whether the environment sends the requests of `provider/model` to another server than the provider's."""
    provider = next((one for one in PROVIDERS if one.name == name.partition("/")[0]), None)
    url = environ.get(provider.gateway_variable) if provider and base_url is None else None
    return bool(url) and provider is not None and known_server(url) != provider.name


def chosen_api(
    name: str, *, base_url: str | None, api: OpenAIApi | None, capabilities: Capabilities | None
) -> OpenAIApi | None:
    """Return OpenAI's API for a model, or None if its provider has another; arguments as of `create_client`.

    The API in the table of known capabilities is that of the provider's own server; others may have chat completions
    only.
    """
    if api_format(name) != "openai":
        return None
    known = known_capabilities(name).api if base_url is None else None
    return api or (capabilities.api if capabilities else None) or known or "chat"


def missing_sdk(name: str) -> str:
    """Return which extra `provider/model` needs; empty if its SDK is installed, or the provider is unknown."""
    prefix = name.partition("/")[0]
    provider = next((provider for provider in PROVIDERS if provider.name == prefix), None)
    if provider is None or all(map(_is_installed, SDKS[provider.extra])):
        return ""
    return f"{name} needs the SDK of {provider.name}: {install_command(f'agentsd[{provider.extra}]')}"


def import_sdks(names: Iterable[str]) -> None:
    """Import the SDKs of these models (`provider/model`), as far as they are installed, and what explains their errors.

    An import takes most of a second, for which the first call of a model waits otherwise.
    """
    prefixes = {name.partition("/")[0] for name in names}
    extras = {provider.extra for provider in PROVIDERS if provider.name in prefixes}
    sdks = {module for extra in extras for module in SDKS[extra]}
    for module in (*sdks, *_OF_ERRORS, *(["botocore.exceptions"] if "botocore" in sdks else [])):
        if _is_installed(module):
            import_module(module)


def _is_installed(module: str) -> bool:
    """Return whether the module can be imported. Only its parent packages are loaded."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


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
    if uses_gateway(name, base_url, environ):
        capabilities = (capabilities or Capabilities()).over(Capabilities(late_tools=False))
    options: dict[str, Any] = {"base_url": url, "capabilities": capabilities, "stream": stream}
    options |= {"extra_body": extra_body or {}, "headers": headers or {}}
    if provider.project_variable:
        return _vertex_client(model, _vertex_place(provider, name, key, environ), options)
    options["api_key"] = key
    if provider.extra == "bedrock":
        from framework.llm.cloud import BedrockModel

        return BedrockModel(model, region=_location(provider, name, environ) or None, **options)
    if provider.api == "anthropic":
        from framework.llm.anthropic import AnthropicModel

        return AnthropicModel(model, **options)
    if provider.api == "gemini":
        from framework.llm.gemini import GeminiModel

        return GeminiModel(model, **options)
    options["azure_version"] = _required(provider.version_variable, name, "the version of the API", environ) or None
    api = chosen_api(name, base_url=base_url, api=api, capabilities=capabilities)
    return _openai_client(provider.name, model, api, options)


def _vertex_client(model: str, place: Mapping[str, str], options: Mapping[str, Any]) -> ModelClient:
    from framework.llm.cloud import VertexClaudeModel, VertexGeminiModel

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
