"""Process settings: `agentsd.yaml`, and over it the environment (`AGENTSD_SECTION__KEY`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from framework.config.document import DocumentError, read_document
from framework.config.environment import expand
from framework.config.parse import spec_problems
from framework.types.errors import ConfigError
from framework.types.frozen import Duration, Frozen
from framework.types.problem import Problem
from framework.types.spec import AgentName

FILE = "agentsd.yaml"
PREFIX = "AGENTSD_"


class ModelAlias(Frozen):
    """A model under a name of your own."""

    model: str
    """`provider/model`."""
    base_url: str | None = None
    """An OpenAI-compatible server, such as `http://127.0.0.1:8080/v1`."""
    api_key: SecretStr | None = None
    """Usually `${VARIABLE}`; missing: the provider's own variable."""


class RoutingSettings(Frozen):
    """What the router falls back on."""

    default_agent: AgentName | None = None
    """Takes what no rule matches."""


class ToolSettings(Frozen):
    """Ceilings for the tools of all agents."""

    base_path: str = "."
    """File tools stay below it; relative to the project's root."""


class ReloadSettings(Frozen):
    """How edits go live."""

    quiet: Duration = Field(default=0.1, validate_default=False)
    """How long files must be left alone before they are read."""


class Settings(BaseSettings):
    """Everything that is not an agent's own. Files and variables that are wrong raise ConfigError."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    version: int = 1
    model: str = "offline"
    """The model of agents that name none."""
    models: dict[str, ModelAlias] = {}
    locale: str = "en"
    """Language of prompts where a request names none."""
    routing: RoutingSettings = RoutingSettings()
    tools: ToolSettings = ToolSettings()
    reload: ReloadSettings = ReloadSettings()

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
        _refuse_unknown_variables(os.environ)
        path = root / FILE
        if not path.is_file():
            return cls._checked({}, None)
        try:
            document = read_document(FILE, path.read_bytes())
        except DocumentError as error:
            raise ConfigError(f"{FILE} cannot be used", [error.problem]) from None
        data, problems = expand(document, os.environ)
        if problems:
            raise ConfigError(f"{FILE} cannot be used", problems)
        return cls._checked(data, replace(document, data=data))

    @classmethod
    def _checked(cls, data: dict[str, Any], document: Any) -> Settings:
        try:
            return cls(**data)
        except ValidationError as error:
            problems = list(spec_problems(error, document, cls)) if document else _environment_problems(error)
            raise ConfigError(f"{FILE} cannot be used" if document else "the environment is wrong", problems) from None


def _environment_problems(error: ValidationError) -> list[Problem]:
    return [
        Problem(path=PREFIX + "__".join(str(part) for part in detail["loc"]).upper(), message=detail["msg"])
        for detail in error.errors(include_url=False, include_input=False)
    ]


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    known = {name.upper() for name in Settings.model_fields}
    unknown = [
        name for name in environ if name.startswith(PREFIX) and name[len(PREFIX) :].split("__")[0].upper() not in known
    ]
    if unknown:
        listed = ", ".join(sorted(known))
        problems = [Problem(path=name, message="no such setting", hint=f"known here: {listed}") for name in unknown]
        raise ConfigError("the environment is wrong", problems)
