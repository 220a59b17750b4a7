"""`agentsd.yaml` while the process runs: what an edit changes at once, with the next run, or at the next start."""

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
from framework.config.settings import EMPTY_SETTINGS, SETTINGS_FILE, Settings
from framework.config.yaml.document import read_document
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
    "telemetry.content": "next-run",
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
}
"""When a change of a setting takes effect; of one that is not named here, at the next start. What is `hot` restricts
tools, and a run that goes on may do only what was permitted when it began and still is; or it says
who may ask, or what a request's trace context is for."""


def reload_effect(key: str) -> ReloadEffect:
    """Of a setting by its dotted key."""
    return RELOAD_EFFECTS.get(key, "restart")


class SettingsFile:
    """Follows `agentsd.yaml` from snapshot to snapshot."""

    def __init__(self, started: Settings, *, fixed: bool) -> None:
        """Take the settings that the process started with; where they are `fixed`, no file changes them."""
        self._started, self._fixed = started, fixed
        self._read: tuple[bytes, Settings] | None = None

    def settings(self, snapshot: Snapshot) -> Settings:
        """What the file says, as far as it takes effect without a new start; raises ConfigError."""
        if self._fixed:
            return self._started
        if problems := [problem for problem in snapshot.problems if problem.path == SETTINGS_FILE]:
            raise ConfigError(f"{SETTINGS_FILE} cannot be used", problems)
        source = snapshot.files.get(SETTINGS_FILE, EMPTY_SETTINGS)
        if self._read is None or self._read[0] != source:
            self._read = source, Settings.parse(source)
        return self._read[1].model_copy(update={"reload": self._started.reload})

    def restrict(self, snapshot: Snapshot, live: Settings) -> tuple[Settings, list[Problem]]:
        """The live settings with what the file restricts, for an edit that cannot be used as a whole.

        The problems say what of the file is not live.
        """
        if self._fixed:
            return live, []
        source = snapshot.files.get(SETTINGS_FILE, EMPTY_SETTINGS)
        if any(problem.path == SETTINGS_FILE for problem in snapshot.problems):
            return live, [unreadable_warning()]
        known = self._read[1] if self._read and self._read[0] == source else None
        saved, problems = (known, []) if known else read_settings(source, live)
        found = tighten_settings(live, saved)
        return found, [*problems, *settings_warnings(live, saved, found, source)]

    def restart_warnings(self) -> Iterator[Problem]:
        """Warnings of what the file, as it was read last, changes that only a new start will bring into effect."""
        if self._fixed or self._read is None:
            return
        source, written = self._read
        document = read_document(SETTINGS_FILE, source)
        now = dict(leaves(written))
        for key, value in leaves(self._started):
            if reload_effect(key) == "restart" and now[key] != value:
                problem = document.problem(tuple(key.split(".")), f"{key} takes effect at the next start", at_key=True)
                yield problem.model_copy(update={"severity": "warning"})


def leaves(settings: BaseModel, above: str = "") -> Iterator[tuple[str, object]]:
    """All settings by their dotted key; a mapping by names of one's own is one setting."""
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            yield from leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
