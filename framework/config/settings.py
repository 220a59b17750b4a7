"""Process settings from `agentsd.yaml` and `AGENTSD_*` environment variables."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from framework.config.api_keys import ApiKey, ApiKeyEntry, check_unique, key_path, read_key
from framework.config.overlay import (
    ENVIRONMENT_VARIABLE,
    SETTINGS_FILE,
    SettingsSource,
    is_settings_file,
    read_settings_files,
)
from framework.config.yaml.document import Document, DocumentError, KeyPath, read_keys
from framework.config.yaml.parse import (
    Unset,
    data_path,
    expand,
    is_affected,
    mask_problems,
    sort_problems,
    validation_problems,
)
from framework.llm.capabilities import Capabilities, OpenAIApi
from framework.llm.http_client import normalize_base_url
from framework.llm.providers import OFFLINE, RESERVED_FIELDS, RESERVED_HEADERS, api_format
from framework.store.types import DEFAULT_LEASE_SECONDS
from framework.tools.files import is_inside, is_protected, split_path
from framework.types.budget import BudgetName, SharedBudget
from framework.types.errors import ConfigError, ToolError
from framework.types.frozen import Duration, Frozen, check_version
from framework.types.grant import GrantSettings
from framework.types.http import Domain, HttpLimits
from framework.types.problem import Problem
from framework.types.report import Inbound
from framework.types.spec import AgentName, ContentMode
from framework.types.text import did_you_mean
from framework.types.tool_servers import SandboxLimits

_Limit = Annotated[int, Field(ge=1, le=100_000)]


class MaxRunning(Frozen):
    """How many submitted runs may be in progress at a time, in all processes of a store together."""

    agents: dict[AgentName, _Limit] = {}
    """Limit of each agent, by name. The runs of its sub-agents count for the agent that was called first."""
    models: dict[str, _Limit] = {}
    """Limit of each model, by the name in agent files, or by the `provider/model` of an alias. Runs whose agent has
    this model count, whatever models they fall back to."""
    tenant: _Limit | None = None
    """Limit of each tenant. Runs without a tenant share one."""

    def limits(self, agent: str, models: Collection[str], tenant: str | None) -> dict[str, int]:
        """Return the limits that apply to a run, by key: `agent:NAME`, `model:NAME` and `tenant:ID`.

        Args:
            agent: the run's agent.
            models: the names of the agent's model: the one in its file and, of an alias, that of the model itself.
            tenant: the run's tenant.
        """
        limits = {f"model:{name}": self.models[name] for name in models if name in self.models}
        if agent in self.agents:
            limits[f"agent:{agent}"] = self.agents[agent]
        if self.tenant is not None:
            limits[f"tenant:{tenant or ''}"] = self.tenant
        return limits

    def allowed(self, key: str) -> int | None:
        """Return the limit with a key of `limits`; None if there is none."""
        kind, _, name = key.partition(":")
        if kind == "tenant":
            return self.tenant
        if kind == "trigger":  # runs of a trigger with `overlap: queue`
            return 1
        return (self.agents if kind == "agent" else self.models).get(name)


_log = logging.getLogger(__name__)

T = TypeVar("T")
FrozenT = TypeVar("FrozenT", bound=Frozen)

LogFormat = Literal["text", "json"]
"""Format of a log."""
ENV_PREFIX = "AGENTSD_"
API_KEY_VARIABLE = "AGENTSD_API_KEY"
"""Variable with the key that commands send to a server."""
ENV_FILE_VARIABLE = "AGENTSD_ENV_FILE"
"""Variable that names the file with environment variables of the command line. Default: `.env` of the project."""
_NO_SETTINGS = (API_KEY_VARIABLE, ENVIRONMENT_VARIABLE, ENV_FILE_VARIABLE)
"""Variables of ours that are not settings."""
_ADDRESS = r"=[0-9A-Fa-f.:]+"
_SERVICE_LINK = re.compile(
    rf"""
    AGENTSD(?:_[A-Z0-9_]+)?_(?:
        SERVICE_HOST{_ADDRESS}
      | SERVICE_PORT(?:_[A-Z0-9_]+)?=[0-9]+
      | PORT(?:_[0-9]+_(?:TCP|UDP|SCTP))?=(?:tcp|udp|sctp)://\S+
      | PORT_[0-9]+_(?:TCP|UDP|SCTP)_(?:PROTO=(?:tcp|udp|sctp)|PORT=[0-9]+|ADDR{_ADDRESS})
    )
    """,
    re.VERBOSE,
)
"""`NAME=value` as Kubernetes adds it to each pod for a Service whose name starts with `agentsd`."""
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_HiddenObject = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "format": "password"})]
"""An object whose values are secret, as editors see it."""
_API_KEYS = ("server", "api_keys")
_UNSET_DIGEST = "0" * 60
"""Start of the digests in place of keys whose variables are not set: no key is known that has such a digest."""


def _extra_body(value: Any) -> Any:
    """Return fields of a request as JSON text, which is hidden as a secret; the errors do not quote their values."""
    if value is None or isinstance(value, SecretStr):
        return value
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ValueError("expected an object with the fields to add to each request")
    for name in value:
        if name.lower() in RESERVED_FIELDS:
            raise ValueError(f"the field {name} is written by agentsd: remove it")
    try:
        return SecretStr(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        raise ValueError("it contains a value that JSON cannot express, such as a date or .inf") from None


def _headers(value: Any) -> Any:
    """Return headers as JSON text, which is hidden as a secret; the errors do not quote their values."""
    if value is None or isinstance(value, SecretStr):
        return value
    if not isinstance(value, dict):
        raise ValueError("expected an object with a text for each header")
    for name, text in value.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"{name!r:.80} is not the name of a header")
        if name.lower() in RESERVED_HEADERS:
            raise ValueError(f"the header {name} is written by the HTTP client: remove it")
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"the header {name} needs a text as its value; put numbers in quotes")
        if not text.isascii() or not text.isprintable():
            raise ValueError(f"the header {name} contains a line break or another character that is not allowed")
    if len({name.lower() for name in value}) < len(value):
        raise ValueError("two headers differ only in case: remove one of them")
    return SecretStr(json.dumps({name: text.strip() for name, text in value.items()}))


class ModelAlias(Frozen):
    """A model with a name chosen by the project."""

    model: str
    """`provider/model`."""
    base_url: Annotated[str, AfterValidator(normalize_base_url)] | None = None
    """Base URL of another server with the provider's API, such as `http://127.0.0.1:8080/v1`."""
    api_key: SecretStr | None = None
    """API key, usually `${VARIABLE}` or `${file:/run/secrets/key}`: that file is read again when it changes. Default:
    the provider's own environment variable."""
    api: OpenAIApi | None = None
    """API of a model with OpenAI's format: `chat` (chat completions) or `responses`. Default: by the model."""
    capabilities: Capabilities | None = None
    """Features and prices of the model; overrides what agentsd knows about it."""
    stream: bool | None = None
    """Whether responses are always or never streamed. Default: always from a local server, else for listeners only."""
    extra_body: Annotated[SecretStr, BeforeValidator(_extra_body, json_schema_input_type=_HiddenObject)] | None = None
    """Fields added to the body of each request, such as `chat_template_kwargs`. Not those that agentsd writes."""
    headers: Annotated[SecretStr, BeforeValidator(_headers, json_schema_input_type=_HiddenObject)] | None = None
    """HTTP headers added to each request, for gateways that need them."""

    @property
    def key_text(self) -> str | None:
        """The API key, which is read from its file if it has one; raise ConfigError if that cannot be read."""
        text = self.api_key.get_secret_value() if self.api_key else None
        if text is None or (path := key_path(text)) is None:
            return text
        try:
            return read_key(path)
        except ValueError as error:
            raise ConfigError(f"the API key of {self.model}: {error}") from None

    @property
    def options(self) -> dict[str, Any]:
        """The options of requests as arguments of `create_client`."""
        secrets = {"extra_body": self.extra_body, "headers": self.headers}
        return {name: json.loads(value.get_secret_value()) for name, value in secrets.items() if value}

    @field_validator("api_key")
    @classmethod
    def _require_key_file(cls, value: SecretStr | None) -> SecretStr | None:
        """Reject a key file that cannot be read, so that a mistake is reported with its line."""
        if value is not None and (path := key_path(value.get_secret_value())) is not None:
            read_key(path)
        return value

    @field_validator("extra_body", "headers")
    @classmethod
    def _require_server(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        """Reject options of a model without a server, and two keys of one."""
        if value is not None and info.data.get("model") == OFFLINE:
            raise ValueError("the offline model sends no requests: remove it")
        if info.field_name == "headers" and value is not None and info.data.get("api_key") is not None:
            names = {name.lower() for name in json.loads(value.get_secret_value())}
            if "authorization" in names:
                raise ValueError("both api_key and the header Authorization are set: remove one of them")
        return value

    @field_validator("api", "capabilities")
    @classmethod
    def _require_choice(cls, value: T, info: ValidationInfo) -> T:
        """Reject the choice of an API for a provider that has only one."""
        model, api = str(info.data.get("model", "")), value.api if isinstance(value, Capabilities) else value
        if api is not None and api_format(model) not in ("openai", None):
            raise ValueError(f"{model.partition('/')[0]} has only one API: remove `api`, a choice of OpenAI's APIs")
        return value


class ModelCallSettings(Frozen):
    """Retries and cooldowns of model calls that fail."""

    max_retries: Annotated[int, Field(ge=0, le=20)] = 3
    """Retries per model, after the first attempt."""
    backoff: Duration = Field(default=0.5, validate_default=False)
    """Maximum pause before the first retry; it doubles with each retry. The actual pause is random (full jitter)."""
    max_backoff: Duration = Field(default=10.0, validate_default=False)
    """Upper limit of the pause. A provider's `Retry-After` may exceed it."""
    cooldown_after: Annotated[int, Field(gt=0)] = 5
    """Consecutive failures of a model, across all runs, after which calls to it are suspended."""
    cooldown: Duration = Field(default=5.0, validate_default=False)
    """Duration of the first suspension; it doubles with each further failure, up to a minute."""


class RoutingSettings(Frozen):
    """How messages are routed when no agent's rules match."""

    model: str | None = None
    """Model that chooses the agent and executor when no rule matches: `provider/model` or an alias. Default: none."""
    default_agent: AgentName | None = None
    """Agent for messages that no rule matches and for which no model chose an agent."""


def _folder(text: str) -> str:
    """Return a normalized path relative to the base path; `.` is the base path itself."""
    try:
        parts = split_path(text)
    except ToolError as error:
        raise ValueError(error.message) from None
    if parts[:1] == ("/",):
        raise ValueError("path is absolute: write it relative to base_path, without the leading /")
    return "/".join(parts) or "."


class ToolSettings(Frozen):
    """Limits for the tools of all agents."""

    base_path: str = "."
    """Base directory of the file tools, relative to the project's root."""
    unprotected: tuple[str, ...] = ()
    """Globs, relative to `base_path`, of hidden files that tools may read and protected files that they may write."""
    write_below: tuple[Annotated[str, AfterValidator(_folder)], ...] | None = None
    """Folders, relative to `base_path`, in which file tools may write. Default: everywhere except protected paths."""
    http: HttpLimits = HttpLimits()
    """Hosts and methods that tools may use over HTTP; agents can only restrict it further."""
    sandbox: SandboxLimits = SandboxLimits()
    """The sandbox of the tool `shell`: `bubblewrap`, or an object with its limits. Default: no command is executed."""

    @field_validator("sandbox")
    @classmethod
    def _require_own_folders(cls, value: SandboxLimits) -> SandboxLimits:
        """Reject the base folder as a whole, which holds the keys, and a folder whose files are executed."""
        for folder in (*value.read, *((value.write,) if value.write else ())):
            if _folder(folder) == ".":
                raise ValueError(f"{folder!r} is the whole of base_path: name the folders that commands see")
        if value.write and (names := [name for name in split_path(value.write) if is_protected(name)]):
            raise ValueError(f"write: {value.write}: commands would write what runs or is hidden, in {names[0]}")
        return value

    def narrowed_by(self, other: ToolSettings) -> ToolSettings:
        """Return settings that permit only what both permit."""
        if self is other or self == other:
            return self
        both = tuple(glob for glob in self.unprotected if glob in other.unprotected)
        folders = common_folders(self.write_below, other.write_below)
        narrowed = {"http": self.http.narrowed_by(other.http), "sandbox": self.sandbox.narrowed_by(other.sandbox)}
        return self.model_copy(update={"unprotected": both, "write_below": folders, **narrowed})


def common_folders(one: tuple[str, ...] | None, other: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the folders that two values of `write_below` have in common; None means all folders."""
    if one is None or other is None:
        return other if one is None else one
    inner = [a if a == b or is_inside(split_path(a), b) else b for a in one for b in other if _overlap(a, b)]
    return tuple(dict.fromkeys(inner))


def _overlap(one: str, other: str) -> bool:
    return one == other or is_inside(split_path(one), other) or is_inside(split_path(other), one)


_OTHER_FOLDERS = frozenset((".", "agents.d", "prompts", "plugins", "openapi", "triggers.d", ".agentsd"))
"""Folders that cannot contain skills: the project itself, and those with other files of it."""


def _skill_folder(text: str) -> str:
    folder = _folder(text)
    if folder.partition("/")[0] in _OTHER_FOLDERS:
        raise ValueError("skills need a folder of their own, such as `skills`")
    return folder


class SkillSettings(Frozen):
    """Where the project's Agent Skills are."""

    folders: Annotated[tuple[Annotated[str, AfterValidator(_skill_folder)], ...], Field(max_length=20)] = (
        "skills",
        ".agents/skills",
    )
    """Folders, relative to the project's root, in which each folder with a `SKILL.md` is a skill, up to eight folders
    deep. If two skills have the same name, the first folder wins."""


class ComparisonGate(Frozen):
    """A gate that runs the cases of an edit on the live version, too, and rejects an edit that makes them worse."""

    cases: Literal["all"] | Annotated[tuple[AgentName, ...], Field(min_length=1)] = "all"
    """Which cases: `all`, or those of a list of agents."""
    against: Literal["live"] = "live"
    """What the edit is compared with."""
    worse_by: Annotated[float, Field(ge=0, le=1)] = 0.05
    """The loss of the mean success rate that is tolerated."""
    confidence: Annotated[float, Field(ge=0.5, le=0.999)] = 0.95
    """Confidence of the interval of the difference, if the results can vary."""
    model: str | None = None
    """Call this model instead of the scripts, and ask judges. Default: scripts only, without judges, at no cost."""
    repeat: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Attempts per case. Default: the `repeat` of the case."""
    cannot_tell: Literal["hold", "apply"] = "hold"
    """What happens to an edit if the cases are too few to decide. With scripts, they always decide."""


class ReloadSettings(Frozen):
    """When and how edits of the project's files take effect."""

    mode: Literal["tolerant", "strict"] = "tolerant"
    """`tolerant`: each valid file takes effect. `strict`: one invalid file rejects the whole edit, or the start."""
    gate: Literal["none", "tests"] | ComparisonGate | tuple[Literal["tests"] | ComparisonGate, ...] = "none"
    """`tests`: an edit takes effect only if the agents' cases pass (`agents.d/NAME.test.yaml`). A mapping: only if they
    do not pass less often than on the live version. A list: both."""
    quiet: Duration = Field(default=0.1, validate_default=False)
    """Time that files must remain unchanged before an edit takes effect."""
    removal_grace: Duration = Field(default=0.5, validate_default=False)
    """Time that a file or an agent must be missing before it is removed."""
    widening_grace: Duration = Field(default=1.0, validate_default=False)
    """Time that files must remain unchanged if an agent is new or gains permissions."""
    reconcile: Duration = Field(default=2.0, validate_default=False)
    """Interval of scans without any change event."""

    @property
    def gates(self) -> tuple[Literal["tests"] | ComparisonGate, ...]:
        """The gates, in their order; empty for `none`."""
        if self.gate == "none":
            return ()
        return self.gate if isinstance(self.gate, tuple) else (self.gate,)


class TelemetrySettings(Frozen):
    """Content of traces, and where the command line sends them. Embedding programs configure their own export."""

    content: ContentMode | None = None
    """Prompts, arguments and results in traces: `none` (default), `redacted` or `full`. Agents can only restrict it."""
    inbound: Inbound = "link"
    """Trace context of HTTP requests: `link` runs to the caller's trace, use it as their `parent`, or `ignore` it."""
    store_traces: bool = True
    """Whether a store keeps the traces of runs. Exports, and the rest of a stored run, do not depend on it."""
    otlp_endpoint: str | None = None
    """OTLP/HTTP endpoint, such as `http://127.0.0.1:6006`. Default: from the `OTEL_*` variables."""
    otlp_headers: dict[str, SecretStr] = {}
    """HTTP headers of the export, such as an API key."""
    service_name: str = "agentsd"
    """Name of this process in tracing backends; Phoenix uses it as the project name."""


class StoreSettings(Frozen):
    """Where the command line and servers store runs and conversations. Programs pass a store to `Runtime.open`."""

    url: SecretStr = SecretStr("sqlite:///.agentsd/state.db")
    """SQLite file below the project's folder, `postgresql://user@host/database` (needs the extra `postgres`), or
    `memory:`, which keeps the newest 1000 runs, in at most 64 MB, until the process ends."""
    retention: Duration | None = Field(default=30 * 86400.0, validate_default=False)
    """How long finished runs are kept, with their events and traces; `null`: forever. Messages of a conversation are
    kept as long as the conversation (its agent's `conversation.ttl`)."""
    lease: Annotated[Duration, Field(ge=1)] = Field(default=DEFAULT_LEASE_SECONDS, validate_default=False)
    """How long after the last sign of life of a process others take over its runs; at least 1s. Processes that have
    ended on the same machine lose them immediately (SQLite)."""


def _check_origin(text: str) -> str:
    """Raise ValueError for what no browser sends as the origin of a page."""
    if text == "*":
        raise ValueError("name each origin: any page that a user visits could otherwise call this server")
    if not _ORIGIN.fullmatch(text) or text.endswith(_DEFAULT_PORTS.get(text.partition(":")[0], "/")):
        raise ValueError("expected a scheme, a host and a port that is not the default one: https://app.example.com")
    return text


_ORIGIN = re.compile(r"[a-z][a-z0-9+.\-]*://[a-z0-9.\-\[\]:]+")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
"""Ports that browsers leave out of an origin."""
WebOrigin = Annotated[str, Field(max_length=300), AfterValidator(_check_origin)]
"""The origin of web pages, as browsers send it."""


class ServerSettings(Frozen):
    """Address, keys and limits of `agentsd serve`."""

    host: Annotated[str, Field(min_length=1, max_length=255)] = "127.0.0.1"
    """Address or name to listen on. One that other machines can reach requires `api_keys`."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8321
    """TCP port; 0 selects a free one."""
    api_keys: Annotated[tuple[ApiKeyEntry, ...], AfterValidator(check_unique)] = ()
    """Keys, one of which every request must send (`Authorization: Bearer …`): text with full access, or an object with
    the key's hash, tenant, agents, roles and limits. Default: only this machine has access."""
    cors_origins: tuple[WebOrigin, ...] = ()
    """Origins of web pages whose scripts may call the server, such as `https://app.example.com`. Their requests need a
    key like any other; without `api_keys`, they count as programs of this machine. Default: none."""
    a2a_push_hosts: tuple[Domain, ...] = ()
    """Hosts to which A2A clients may have the pauses and the end of their tasks sent, with entries as in
    `tools.http.domains`: `hooks.example.com`, `*` for every public host. Default: none, push notifications are off."""
    max_connections: Annotated[int, Field(ge=1)] = 700
    """Maximum of open connections. A request on a further one gets 503."""
    max_streams: Annotated[int, Field(ge=1)] = 650
    """Maximum of open event streams. Fewer than `max_connections`, so that other requests are accepted."""
    max_streams_per_key: Annotated[int, Field(ge=1)] = 550
    """The same for one key. Without keys, it applies to all local programs together."""
    console: bool = True
    """Show the console, a web page, at `/`. `false`: `/` is 404."""
    allow_edit: bool = False
    """Whether keys with the role `admin` may edit agent files and templates over HTTP, as the console does."""


class WorkSettings(Frozen):
    """Submitted runs: how many may wait, how many may be in progress, and what delivers them to processes."""

    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 200
    """Number of queued and continued runs that one process executes at once; the others wait in the store."""
    engine: Literal["auto", "embedded", "procrastinate"] = "auto"
    """What delivers runs to `agentsd serve` and `agentsd worker`. `embedded`: each process looks for them in the store.
    `procrastinate`: Procrastinate, in the same PostgreSQL database. `auto`: that with PostgreSQL, else `embedded`. All
    processes of a store need the same."""
    max_waiting: Annotated[int, Field(ge=1)] = 10_000
    """Number of waiting runs of the store from which requests are refused (429)."""
    max_running: MaxRunning = MaxRunning()
    """Numbers of runs in progress from which further ones wait, in all processes of the store together."""


class Settings(BaseSettings):
    """All settings of a process. Invalid files and variables raise ConfigError."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        validate_default=True,
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
    )

    version: Annotated[int, Field(ge=1, le=1), BeforeValidator(check_version)] = 1
    """Version of this file format."""
    model: str = "offline"
    """Model of agents that do not set one."""
    models: dict[str, ModelAlias] = {}
    """Models with names chosen by the project, for use in agent files: `provider/model`, or a mapping."""
    model_calls: ModelCallSettings = ModelCallSettings()
    locale: str = "en"
    """Language of prompts for requests that do not set one."""
    log: LogFormat = "text"
    """Log of servers on stderr: lines of `text`, or of `json` objects with the ids of runs, requests included."""
    routing: RoutingSettings = RoutingSettings()
    tools: ToolSettings = ToolSettings()
    skills: SkillSettings = SkillSettings()
    grants: GrantSettings = GrantSettings()
    budgets: dict[BudgetName, SharedBudget] = {}
    """Limits on what runs use together, for use in agent files: tokens and cost per day, tenant, conversation, …"""
    reload: ReloadSettings = ReloadSettings()
    store: StoreSettings = StoreSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    server: ServerSettings = ServerSettings()
    work: WorkSettings = WorkSettings()

    def __init__(self, /, **values: Any) -> None:
        """Validate values, in which environment variables have precedence; raise ValidationError or ConfigError."""
        try:
            super().__init__(**values)
        except SettingsError as error:
            raise ConfigError(f"invalid environment variable: {error}") from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is pydantic-settings'
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return where values come from, in order of precedence: the environment, then the file or the program."""
        if not any(name.upper().startswith(ENV_PREFIX) for name in os.environ):
            return (init_settings,)  # looking for each setting would take two thirds of the time of reading the file
        return env_settings, init_settings

    @classmethod
    def load(cls, root: Path) -> Settings:
        """Read `agentsd.yaml` in the root folder, if it exists, and the environment; raise ConfigError if invalid."""
        return cls.parse(read_settings_files(root))

    @classmethod
    def parse(cls, source: SettingsSource) -> Settings:
        """Parse the content of `agentsd.yaml`, and the environment; raise ConfigError if one is invalid."""
        if unknown := [*_unknown_variables(os.environ)]:
            raise ConfigError("invalid environment variable", unknown)
        try:
            document = source.document()
        except DocumentError as error:
            _raise_config_error(error.problems, source)
        empty = document.empty_values()
        data, unset = expand(document, os.environ)
        document = replace(document, data=_without_unset_keys(data, unset))
        problems = [problem for path, problem in unset if path[:2] != _API_KEYS]
        keys = {key: value for key, value in document.data.items() if not key.startswith("_")}
        for key in document.data.keys() - keys.keys():  # pydantic-settings would take it for one of its options
            detail = ErrorDetails(type="extra_forbidden", loc=(key,), msg="unknown key", input=None)
            problems += validation_problems([detail], document, cls)
        try:
            settings = cls(**keys)
        except ValidationError as error:
            details = error.errors(include_url=False)
            own = [detail for detail in details if not is_affected(data_path(detail["loc"], data), unset)]
            problems += [problem for detail in own for problem in _problems(detail, document)]
            if not problems:
                problems = [problem for detail in details for problem in _problems(detail, document)]
            _raise_config_error(problems, source)
        if problems := problems or empty:
            _raise_config_error(problems, source)
        return settings

    @classmethod
    def valid_part(cls, source: SettingsSource) -> Settings:
        """Return what other files refer to in an invalid file: its models and budgets, invalid ones included.

        Nothing may be run with it: checks of other files shall not report what is reported already.
        """
        document, keys = source.unique_keys(), ("model", "models", "budgets")
        data = document.data if document else read_keys(SETTINGS_FILE, source.base, keys)
        data, _ = expand(Document(SETTINGS_FILE, source.base, data, {}), os.environ)
        return cls.model_construct(
            model=data["model"] if isinstance(data.get("model"), str) else "offline",
            models=_entries(data.get("models"), ModelAlias, ModelAlias(model="offline")),
            budgets=_entries(data.get("budgets"), SharedBudget, SharedBudget(max_total_tokens=1, per=("total",))),
        )


def unset_key_problems(settings: Settings, source: SettingsSource) -> list[Problem]:
    """Return a problem for each variable of `server.api_keys` that is not set. No server may start with one.

    Args:
        settings: the settings in effect. A key from an environment variable of its own is no such key.
        source: the content of the settings files.
    """
    entries = [entry for entry in settings.server.api_keys if isinstance(entry, ApiKey)]
    if not any(entry.sha256.get_secret_value().startswith(_UNSET_DIGEST) for entry in entries):
        return []
    document = source.unique_keys()
    unset = expand(document, os.environ)[1] if document else ()
    return mask_problems([problem for path, problem in unset if path[:2] == _API_KEYS], source.text)


def _without_unset_keys(data: dict[str, Any], unset: Sequence[Unset]) -> dict[str, Any]:
    """Return the data, with a key that nobody has in place of each API key with a variable that is not set."""
    server = data.get("server")
    keys = server.get("api_keys") if isinstance(server, dict) else None
    if not isinstance(keys, list):
        return data
    indexes = {path[2] for path, _ in unset if path[:2] == _API_KEYS}
    own = [
        {"name": f"unset-{index}", "sha256": f"{_UNSET_DIGEST}{index:04x}"} if index in indexes else key
        for index, key in enumerate(keys)
    ]
    return {**data, "server": {**data["server"], "api_keys": own}}


def _entries(given: Any, model: type[FrozenT], replacement: FrozenT) -> dict[str, FrozenT]:
    """Return the entries of a mapping, with a replacement for those that are invalid."""
    entries = dict[str, FrozenT]()
    for name, value in given.items() if isinstance(given, dict) else ():
        try:
            entries[name] = model.model_validate(value)
        except ValidationError:
            entries[name] = replacement
    return entries


def _raise_config_error(problems: Iterable[Problem], source: SettingsSource) -> NoReturn:
    """Raise ConfigError, with secrets of the file removed from its problems."""
    masked = mask_problems(sort_problems(problems), source.text)
    name = next((problem.path for problem in masked if is_settings_file(problem.path)), None)
    raise ConfigError(f"{name} is invalid" if name else "invalid environment variable", masked)


def _problems(detail: ErrorDetails, document: Document) -> Iterator[Problem]:
    """Yield the Problems of an error at its position in the file, or at the environment variable that caused it."""
    loc = detail["loc"]
    variables = [variable_name(loc[:length]) for length in range(len(loc), 0, -1)]
    defined = {name.upper() for name in os.environ}
    variable = next((name for name in variables if name in defined), None)
    if variable is None and _is_in_file(loc, document):
        yield from validation_problems([detail], document, Settings)
        return
    data: Any = None
    for part in reversed(loc):
        data = {part: data}
    name = variable or variable_name(loc)
    for problem in validation_problems([detail], Document(name, b"", data, {}), Settings):
        yield Problem(path=name, message=problem.message, hint=problem.hint)


def _is_in_file(loc: KeyPath, document: Document) -> bool:
    """Return whether an error concerns the file. Its location may contain labels of union members."""
    path = data_path(loc, document.data)
    return loc in document.marks or loc[:-1] in document.marks or (path[:1] == loc[:1] and path in document.marks)


def variable_name(loc: tuple[str | int, ...]) -> str:
    """Return the environment variable that sets a key."""
    return ENV_PREFIX + "__".join(str(part) for part in loc).upper()


def _unknown_variables(environ: Mapping[str, str]) -> Iterator[Problem]:
    known = [variable_name((name,)) for name in Settings.model_fields]
    for name in sorted(environ):
        if not name.startswith(ENV_PREFIX) or name in _NO_SETTINGS or name.split("__")[0].upper() in known:
            continue
        if _SERVICE_LINK.fullmatch(f"{name}={environ[name]}"):
            _log.debug("%s is ignored: it is a Kubernetes service link (enableServiceLinks), not a setting", name)
        else:
            yield Problem(path=name, message=f"unknown setting{did_you_mean(name.split('__')[0].upper(), known)}")
