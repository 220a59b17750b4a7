"""When an edit of `agentsd.yaml` takes effect: immediately, for new runs, or after a restart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic import BaseModel

from framework.config.files.snapshot import Snapshot
from framework.config.generations.settings_tightening import (
    read_settings,
    settings_warnings,
    tighten_settings,
    unreadable_warning,
)
from framework.config.overlay import SettingsSource, is_settings_file, settings_source
from framework.config.settings import Settings
from framework.types.errors import ConfigError
from framework.types.problem import Problem

ReloadEffect = Literal["hot", "next-run", "restart"]

RELOAD_EFFECTS: Mapping[str, ReloadEffect] = {
    "model": "next-run",
    "models": "next-run",
    "model_calls.max_retries": "next-run",
    "model_calls.backoff": "next-run",
    "model_calls.max_backoff": "next-run",
    "model_calls.cooldown_after": "next-run",
    "model_calls.cooldown": "next-run",
    "locale": "next-run",
    "routing.model": "next-run",
    "routing.default_agent": "next-run",
    "tools.base_path": "next-run",
    "budgets": "hot",
    "telemetry.content": "next-run",
    "telemetry.store_traces": "next-run",
    "telemetry.inbound": "hot",
    "tools.unprotected": "hot",
    "tools.write_below": "hot",
    "tools.http.domains": "hot",
    "tools.http.methods": "hot",
    "tools.http.private_networks": "hot",
    "tools.http.max_redirects": "hot",
    "tools.http.max_bytes": "hot",
    "tools.http.timeout": "hot",
    "server.api_keys": "hot",
    "server.allow_edit": "hot",
    "server.cors_origins": "hot",
    "work.max_waiting": "next-run",
    "work.max_running.agents": "next-run",
    "work.max_running.models": "next-run",
    "work.max_running.tenant": "next-run",
}
"""When a change of a setting takes effect, by dotted key; settings that are missing here need a restart.

`hot` settings restrict tools and budgets (a run in progress may do and use only what was permitted when it began and
still is), control access to the server, or control the use of a request's trace context.
"""


def reload_effect(key: str) -> ReloadEffect:
    """Return when a change of the setting with this dotted key takes effect."""
    return RELOAD_EFFECTS.get(key, "restart")


class SettingsFile:
    """Reads the settings of each snapshot."""

    def __init__(self, started: Settings, *, fixed: bool) -> None:
        """Create a reader. If `fixed`, files do not change the settings that the process `started` with."""
        self._started, self._fixed = started, fixed
        self._read: tuple[SettingsSource, Settings] | None = None

    def settings(self, snapshot: Snapshot) -> Settings:
        """Return the settings of the file, as far as they take effect without a restart. Raises ConfigError."""
        if self._fixed:
            return self._started
        if problems := [problem for problem in snapshot.problems if is_settings_file(problem.path)]:
            raise ConfigError(f"{problems[0].path} is invalid", problems)
        source = settings_source(snapshot.files)
        if self._read is None or self._read[0] != source:
            self._read = source, Settings.parse(source)
        return self._read[1].model_copy(update={"reload": self._started.reload})

    def restrict(self, snapshot: Snapshot, live: Settings) -> tuple[Settings, list[Problem]]:
        """Return the live settings with the restrictions of a rejected edit, and warnings about the rest of it."""
        if self._fixed:
            return live, []
        if any(is_settings_file(problem.path) for problem in snapshot.problems):
            return live, [unreadable_warning()]
        try:
            source = settings_source(snapshot.files)
        except ConfigError as error:  # the file of the environment is missing
            return live, [*error.problems]
        parsed = self._read[1] if self._read and self._read[0] == source else None
        saved, problems = (parsed, []) if parsed else read_settings(source, live)
        settings = tighten_settings(live, saved)
        return settings, [*problems, *settings_warnings(live, saved, settings, source)]

    def restart_warnings(self) -> Iterator[Problem]:
        """Yield a warning for each setting in the file that differs and takes effect only after a restart."""
        if self._fixed or self._read is None:
            return
        source, saved = self._read
        document = source.document()
        values = dict(leaves(saved))
        for key, value in leaves(self._started):
            if reload_effect(key) == "restart" and values[key] != value:
                problem = document.problem(tuple(key.split(".")), f"{key} takes effect after a restart", at_key=True)
                yield problem.model_copy(update={"severity": "warning"})


def leaves(settings: BaseModel, above: str = "") -> Iterator[tuple[str, object]]:
    """Yield all settings by dotted key. A mapping with user-defined keys, such as `models`, is one setting."""
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            yield from leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
