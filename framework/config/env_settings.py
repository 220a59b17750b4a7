"""Settings in environment variables, read by pydantic-settings; imported only if the environment contains one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsError

from framework.config.yaml.document import merged
from framework.types.errors import ConfigError


def override_from_environment(settings: type[BaseModel], prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with those in environment variables in their place, key by key: `PREFIX_SECTION__KEY`.

    Args:
        settings: the model of the settings, which determines how each variable is read.
        prefix: beginning of the variables' names.
        values: data for the model.

    Raises:
        ConfigError: a variable contains invalid JSON.
    """
    # Only the fields and the configuration of the class are read, which every model has.
    source = EnvSettingsSource(
        cast("type[BaseSettings]", settings), case_sensitive=False, env_prefix=prefix, env_nested_delimiter="__"
    )
    try:
        return merged(values, source())
    except SettingsError as error:
        raise ConfigError(f"invalid environment variable: {error}") from None
