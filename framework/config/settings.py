"""Process settings: `agentsd.yaml`, and over it the environment (`AGENTSD_SECTION__KEY`)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from framework.config.yaml.document import Document, DocumentError, read_document
from framework.config.yaml.environment import expand
from framework.config.yaml.parse import mask_problems, sort_problems, validation_problems
from framework.llm.base_url import normalize_base_url
from framework.llm.capabilities import Capabilities
from framework.tools.base_folder import is_inside, split_path
from framework.types.errors import ConfigError, ToolError
from framework.types.frozen import Duration, Frozen, check_version
from framework.types.http import HttpLimits
from framework.types.problem import Problem
from framework.types.spec import AgentName, ContentMode
from framework.types.text import did_you_mean
from framework.types.trace import Inbound

SETTINGS_FILE = "agentsd.yaml"
ENV_PREFIX = "AGENTSD_"
_MIN_KEY_CHARS = 16
API_KEY_VARIABLE = "AGENTSD_API_KEY"
"""The variable with the key that commands show to a server; the only one with our prefix that is no setting."""
EMPTY_SETTINGS = b"{}"
"""What stands for a missing file: no key at all."""


class ModelAlias(Frozen):
    """A model under a name of your own."""

    model: str
    """`provider/model`."""
    base_url: Annotated[str, AfterValidator(normalize_base_url)] | None = None
    """Another server that speaks as the provider does, such as `http://127.0.0.1:8080/v1`."""
    api_key: SecretStr | None = None
    """Usually `${VARIABLE}`; missing: the provider's own variable."""
    capabilities: Capabilities | None = None
    """What the model can do and costs, where that is not known or known wrongly."""


class ModelCallSettings(Frozen):
    """How a model is asked that does not answer as it should."""

    max_retries: Annotated[int, Field(ge=0, le=20)] = 3
    """Attempts after the first one, for each model."""
    backoff: Duration = Field(default=0.5, validate_default=False)
    """The longest pause before the second attempt; it doubles with each attempt, and its length is up to chance."""
    max_backoff: Duration = Field(default=10.0, validate_default=False)
    """The longest pause of all; what a provider asks for (`Retry-After`) may be longer."""
    cooldown_after: Annotated[int, Field(gt=0)] = 5
    """Failures of one model in a row, whatever run they happen in, after which it is left alone for a while."""
    cooldown: Duration = Field(default=5.0, validate_default=False)
    """How long, at first: it doubles with each failure after that, up to a minute."""


class RoutingSettings(Frozen):
    """What the router falls back on."""

    model: str | None = None
    """Chooses the agent, and how it works, where no rule matches: `provider/model`, or an alias. Missing: no model is
    asked."""
    default_agent: AgentName | None = None
    """Takes what no rule matches, and no model has chosen an agent for."""


def _folder(text: str) -> str:
    """A folder below the base path in its plain spelling; `.` is the base path itself."""
    try:
        parts = split_path(text)
    except ToolError as error:
        raise ValueError(error.message) from None
    if parts[:1] == ("/",):
        raise ValueError("a folder below base_path is meant: write it without the / at its beginning")
    return "/".join(parts) or "."


class ToolSettings(Frozen):
    """Ceilings for the tools of all agents."""

    base_path: str = "."
    """File tools stay below it; relative to the project's root."""
    unprotected: tuple[str, ...] = ()
    """Globs, relative to `base_path`: hidden files that file tools may read, and protected ones they may write."""
    write_below: tuple[Annotated[str, AfterValidator(_folder)], ...] | None = None
    """Folders, relative to `base_path`, that file tools may write in. Missing: everywhere but in protected places."""
    http: HttpLimits = HttpLimits()
    """What tools may reach over HTTP; agents only narrow it."""

    def narrowed_by(self, other: ToolSettings) -> ToolSettings:
        """The same, but permitting only what the other permits as well."""
        if self is other or self == other:
            return self
        both = tuple(glob for glob in self.unprotected if glob in other.unprotected)
        folders = common_folders(self.write_below, other.write_below)
        update = {"unprotected": both, "write_below": folders, "http": self.http.narrowed_by(other.http)}
        return self.model_copy(update=update)


def common_folders(one: tuple[str, ...] | None, other: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The folders that lie in both selections of `write_below`; None, which stands for all, if both are None."""
    if one is None or other is None:
        return other if one is None else one
    inner = [a if a == b or is_inside(split_path(a), b) else b for a in one for b in other if _overlap(a, b)]
    return tuple(dict.fromkeys(inner))


def _overlap(one: str, other: str) -> bool:
    return one == other or is_inside(split_path(one), other) or is_inside(split_path(other), one)


class ReloadSettings(Frozen):
    """How edits go live."""

    mode: Literal["tolerant", "strict"] = "tolerant"
    """`strict`: one file that cannot be used keeps the whole edit from going live; at a start it ends the process."""
    gate: Literal["none", "tests"] = "none"
    """`tests`: an edit goes live only if all the cases beside the agents pass (`agents.d/NAME.test.yaml`)."""
    quiet: Duration = Field(default=0.1, validate_default=False)
    """How long files must be left alone before what they say goes live."""
    removal_grace: Duration = Field(default=0.5, validate_default=False)
    """How long a file or an agent must be gone before it is gone live."""
    widening_grace: Duration = Field(default=1.0, validate_default=False)
    """How long files must be left alone when an agent may do more than before, or is new."""
    reconcile: Duration = Field(default=2.0, validate_default=False)
    """How often the files are looked at although nothing hinted at a change."""


class TelemetrySettings(Frozen):
    """Traces: what they may hold, and where the command line sends them. A program that embeds sends its own."""

    content: ContentMode | None = None
    """Of prompts, arguments and results: `none` (the default), `redacted` or `full`; agents may only lower it."""
    inbound: Inbound = "link"
    """Trace context of HTTP requests: `link` runs to the caller's trace, join it as `parent`, or `ignore` it."""
    otlp_endpoint: str | None = None
    """Where OTLP over HTTP is taken, such as `http://127.0.0.1:6006`; missing: what OTEL_* variables say."""
    otlp_headers: dict[str, SecretStr] = {}
    """Sent along, such as a key."""
    service_name: str = "agentsd"
    """What backends call this process; Phoenix takes it for the project."""


class StoreSettings(Frozen):
    """Where the command line and servers keep runs and conversations; programs say so when they open a runtime."""

    url: SecretStr = SecretStr("sqlite:///.agentsd/state.db")
    """A file below the project's folder, or `postgresql://user@host/database` with the extra `postgres`."""
    retention: Duration | None = Field(default=30 * 86400.0, validate_default=False)
    """How long runs are kept after they have ended, with their events and traces; `null`: for ever. What was said in
    a conversation is kept as long as that (`conversation.ttl` of its agent)."""


def _check_key(key: SecretStr) -> SecretStr:
    text = key.get_secret_value()
    if len(text) < _MIN_KEY_CHARS or not (text.isascii() and text.isprintable()) or " " in text:
        raise ValueError(
            f"a key is {_MIN_KEY_CHARS} or more visible ASCII characters, such as `openssl rand -hex 32` prints"
        )
    return key


class ServerSettings(Frozen):
    """Where `agentsd serve` listens, and who may ask it."""

    host: Annotated[str, Field(min_length=1, max_length=255)] = "127.0.0.1"
    """An address or a name of this machine; one that others reach needs `api_keys`."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8321
    """0: any that is free."""
    api_keys: tuple[Annotated[SecretStr, AfterValidator(_check_key)], ...] = ()
    """Every request needs one of these (`Authorization: Bearer …`). None: only this machine may ask."""
    max_connections: Annotated[int, Field(ge=1)] = 500
    """Open connections. At the limit, a new one replaces the oldest that has no request in progress."""
    max_connections_per_address: Annotated[int, Field(ge=1)] = 200
    """Of one client address (of IPv6, of one /64 network), likewise. Clients behind one proxy share its address."""
    request_timeout: Duration = Field(default=10.0, validate_default=False)
    """How long a request may take to arrive, headers and body, and a client may leave an answer unread; then its
    connection is closed."""


class Settings(BaseSettings):
    """Everything that is not an agent's own. Files and variables that are wrong raise ConfigError."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    version: Annotated[int, Field(ge=1, le=1), BeforeValidator(check_version)] = 1
    """Version of this file format."""
    model: str = "offline"
    """The model of agents that name none."""
    models: dict[str, ModelAlias] = {}
    """Models under names of your own, for agent files."""
    model_calls: ModelCallSettings = ModelCallSettings()
    locale: str = "en"
    """Language of prompts where a request names none."""
    routing: RoutingSettings = RoutingSettings()
    tools: ToolSettings = ToolSettings()
    reload: ReloadSettings = ReloadSettings()
    store: StoreSettings = StoreSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    server: ServerSettings = ServerSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is pydantic-settings'
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is pydantic-settings'
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is pydantic-settings'
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment wins over the file, which comes in as arguments."""
        return env_settings, init_settings

    @classmethod
    def load(cls, root: Path) -> Settings:
        """Read `agentsd.yaml` below the root, if there is one, and the environment; raises ConfigError."""
        path = root / SETTINGS_FILE
        try:
            return cls.parse(path.read_bytes() if path.is_file() else EMPTY_SETTINGS)
        except OSError as error:
            raise ConfigError(f"{SETTINGS_FILE} cannot be read: {error.strerror}") from None

    @classmethod
    def parse(cls, source: bytes) -> Settings:
        """What `agentsd.yaml` says, and over it the environment; raises ConfigError."""
        if unknown := [*_unknown_variables(os.environ)]:
            raise ConfigError("the environment is wrong", unknown)
        try:
            document = read_document(SETTINGS_FILE, source)
        except DocumentError as error:
            _raise_config_error([error.problem], source)
        data, problems = expand(document, os.environ)
        if problems:
            _raise_config_error(problems, source)
        return cls._validate(replace(document, data=data), source)

    @classmethod
    def _validate(cls, document: Document, source: bytes) -> Settings:
        try:
            # pydantic-settings takes arguments with an underscore as options of its own, such as `_env_file`
            settings = cls(**{key: value for key, value in document.data.items() if not key.startswith("_")})
        except ValidationError as error:
            problems = [*_own_problems(document)]
            for detail in error.errors(include_url=False):
                problems.extend(_problems(detail, document))
            _raise_config_error(problems, source)
        except SettingsError as error:
            raise ConfigError(f"the environment is wrong: {error}") from None
        if problems := [*_own_problems(document)]:
            _raise_config_error(problems, source)
        return settings


def _raise_config_error(problems: Iterable[Problem], source: bytes) -> NoReturn:
    """Raise ConfigError; where the file holds a secret, its lines are not shown."""
    found = mask_problems(sort_problems(problems), source)
    from_file = any(problem.path == SETTINGS_FILE for problem in found)
    raise ConfigError(f"{SETTINGS_FILE} cannot be used" if from_file else "the environment is wrong", found)


def _own_problems(document: Document) -> Iterator[Problem]:
    for key in document.data:
        if key.startswith("_"):
            yield document.problem((key,), f"unknown key {key!r}", at_key=True)


def _problems(detail: ErrorDetails, document: Document) -> Iterator[Problem]:
    """A finding at its place in the file, or at the variable that brought it in."""
    loc = detail["loc"]
    variables = [variable_name(loc[:length]) for length in range(len(loc), 0, -1)]
    given = {name.upper() for name in os.environ}
    variable = next((name for name in variables if name in given), None)
    if variable is None and (loc in document.marks or loc[:-1] in document.marks):
        yield from validation_problems([detail], document, Settings)
        return
    data: Any = None
    for part in reversed(loc):
        data = {part: data}
    name = variable or variable_name(loc)
    for problem in validation_problems([detail], Document(name, b"", data, {}), Settings):
        yield Problem(path=name, message=problem.message, hint=problem.hint)


def variable_name(loc: tuple[str | int, ...]) -> str:
    """The variable of the environment that a setting can come from."""
    return ENV_PREFIX + "__".join(str(part) for part in loc).upper()


def _unknown_variables(environ: Mapping[str, str]) -> Iterator[Problem]:
    known = [variable_name((name,)) for name in Settings.model_fields]
    for name in sorted(environ):
        if name.startswith(ENV_PREFIX) and name != API_KEY_VARIABLE and name.split("__")[0].upper() not in known:
            yield Problem(path=name, message=f"no such setting{did_you_mean(name.split('__')[0].upper(), known)}")
