"""Known model providers: their API formats, base URLs and environment variables. No client is imported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Literal

from framework.llm.capabilities import Capabilities, OpenAIApi, known_capabilities
from framework.types.extras import install_command

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
    Provider("openai", ("OPENAI_API_KEY",)),
    Provider("anthropic", ("ANTHROPIC_API_KEY",), api="anthropic"),
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
        *(
            "model",
            "messages",
            "input",
            "instructions",
            "contents",
            "system",
            "system_instruction",
            "systeminstruction",
        ),
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
_OF_ERRORS = ("httpx2", "framework.types.bounded_body")
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
