"""Effects of a reload on runs in progress, and settings that became stricter."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Literal

from pydantic import BaseModel, SecretStr

from framework.config.api_keys import ApiKey, narrow_keys
from framework.config.overlay import SETTINGS_FILE, SettingsSource, is_settings_file, settings_source
from framework.config.settings import ModelCallSettings, Settings, ToolSettings, variable_name
from framework.config.snapshot import Snapshot
from framework.config.yaml.document import Document, DocumentError, KeyPath
from framework.config.yaml.parse import expand, get_dotted, merge_valid
from framework.telemetry.spans import content_mode
from framework.types.budget import SharedBudget
from framework.types.errors import ConfigError
from framework.types.grant import GrantSettings
from framework.types.http import HttpLimits
from framework.types.problem import Problem
from framework.types.spec import CONTENT_MODES
from framework.types.tool_servers import SandboxLimits

TIGHTENABLE_KEYS = (
    *(f"tools.{key}" for key in ToolSettings.model_fields if key not in ("http", "sandbox")),
    *(f"tools.http.{key}" for key in HttpLimits.model_fields),
    *(f"tools.sandbox.{key}" for key in SandboxLimits.model_fields),
    "telemetry.content",
    "telemetry.inbound",
    "server.api_keys",
    "server.allow_edit",
    "server.cors_origins",
    "server.a2a_push_hosts",
    *(f"grants.{key}" for key in GrantSettings.model_fields),
    "budgets",
)
"""The settings whose restrictions take effect without a restart."""
_UNUSABLE_KEY = SecretStr("\0")
"""The only key of the server while an invalid file replaces all of its keys. No HTTP header can contain it."""
_DEFAULTS = Settings.model_construct().model_dump()
_INBOUND = ("ignore", "link", "parent")


def tighten_settings(live: Settings, saved: Settings) -> Settings:
    """Return the live settings, restricted to what the saved settings permit as well."""
    content, inbound = live.telemetry.content, min(live.telemetry.inbound, saved.telemetry.inbound, key=_INBOUND.index)
    modes = [CONTENT_MODES.index(content_mode(settings.telemetry.content, os.environ)) for settings in (live, saved)]
    if modes[1] < modes[0]:
        content = saved.telemetry.content
    hosts = (HttpLimits(domains=settings.server.a2a_push_hosts) for settings in (live, saved))
    server = {
        "a2a_push_hosts": next(hosts).narrowed_by(next(hosts)).domains,
        "api_keys": _keys(live.server.api_keys, saved.server.api_keys),
        "allow_edit": live.server.allow_edit and saved.server.allow_edit,
        "cors_origins": tuple(origin for origin in live.server.cors_origins if origin in saved.server.cors_origins),
    }
    sections = {
        "tools": live.tools.narrowed_by(saved.tools),
        "telemetry": live.telemetry.model_copy(update={"content": content, "inbound": inbound}),
        "server": live.server.model_copy(update=server),
        "grants": live.grants.narrowed_by(saved.grants),
        "budgets": {
            name: budget.narrowed_by(saved.budgets[name]) if name in saved.budgets else budget
            for name, budget in live.budgets.items()
        },
    }
    settings = live.model_copy(update=sections)
    return live if settings == live else settings


def _keys(
    live: tuple[SecretStr | ApiKey, ...], saved: tuple[SecretStr | ApiKey, ...]
) -> tuple[SecretStr | ApiKey, ...]:
    """Return the keys in both. Never empty if one side has keys: without keys, local programs need none."""
    if not live or not saved:
        return live or saved
    return narrow_keys(live, saved) or (_UNUSABLE_KEY,)


def read_settings(source: SettingsSource, live: Settings) -> tuple[Settings, list[Problem]]:
    """Return the live settings with the `TIGHTENABLE_KEYS` of an invalid file, and warnings about invalid values.

    A missing key has its default. Settings from environment variables are not changed.
    """
    try:
        document = source.document()
    except DocumentError:
        return live, [unreadable_warning()]
    data, variables = expand(document, os.environ)[0], {name.upper() for name in os.environ}
    match data:
        case {"tools": {"sandbox": str() as program, **tools}}:  # its short form
            data = {**data, "tools": {**tools, "sandbox": {"program": program}}}
    settings, unread = live, list[KeyPath]()
    for key in TIGHTENABLE_KEYS:
        path = tuple(key.split("."))
        if any(name.startswith(variable_name(path)) for name in variables):
            continue
        if (invalid := _invalid_path(path, data)) is not None:
            unread.append(invalid)
            continue
        section, inner = path[0], path[1:]
        own = getattr(settings, section)
        if not inner:
            budgets, invalid_paths = _read_budgets(data.get(section), live.budgets)
            unread += [(section, *where) for where in invalid_paths]
            settings = settings.model_copy(update={section: budgets})
            continue
        model: type[BaseModel] = type(own)
        base, value = own.model_dump(), _value_or_default(path, data)
        if len(inner) > 1:
            value = {**base[inner[0]], inner[1]: value}
        valid, invalid_paths = merge_valid(model, base, {inner[0]: value}, ("api_keys",))
        unread += [(section, *where) for where in invalid_paths]
        settings = settings.model_copy(update={section: model.model_validate(valid)})
    return settings, [_invalid_warning(document, path) for path in dict.fromkeys(unread)]


def _read_budgets(data: Any, live: Mapping[str, SharedBudget]) -> tuple[dict[str, SharedBudget], list[KeyPath]]:
    """Return the live budgets with the valid limits of an invalid file, and the paths of invalid values."""
    budgets, invalid = dict(live), list[KeyPath]()
    for name, budget in live.items():
        given = data.get(name) if isinstance(data, Mapping) else None
        if isinstance(given, Mapping):
            valid, paths = merge_valid(SharedBudget, budget.model_dump(), given)
            budgets[name] = SharedBudget.model_validate(valid)
            invalid += [(name, *path) for path in paths]
    return budgets, invalid


def unreadable_warning() -> Problem:
    """Return the warning about a file in which no setting can be read."""
    message = (
        "the restrictions in this file are NOT in effect: the file cannot be read; the current settings stay in effect"
    )
    return Problem(path=SETTINGS_FILE, message=message, severity="warning")


def settings_warnings(
    live: Settings, saved: Settings, effective: Settings, source: SettingsSource
) -> Iterator[Problem]:
    """Yield warnings about a rejected file: which of its settings are in effect, and which are not.

    Args:
        live: the settings before the edit.
        saved: the settings in the file.
        effective: `live`, tightened by `saved`.
        source: the content of the settings files.
    """
    document = source.document_or_none()
    if document is None:
        return
    dumps = [settings.model_dump() for settings in (live, saved, effective)]
    for key in TIGHTENABLE_KEYS:
        old, file, new = (get_dotted(data, key) for data in dumps)
        if _same(file, old) or _same(file, new):
            continue
        effect = "only its restrictions apply" if new != old else "it may permit more, so it is ignored"
        message = f"{key} is NOT in effect as saved: {effect} until the files are valid"
        no_key = isinstance(new, tuple) and _UNUSABLE_KEY in new
        hint = "until then the server accepts no key at all" if no_key else None
        yield _warning(document, tuple(key.split(".")), message, hint)
    if live is not effective:
        message = "only the restrictions in this file are in effect; otherwise the current settings stay in effect"
        yield Problem(path=SETTINGS_FILE, message=message, severity="warning")


def _invalid_path(path: KeyPath, data: Mapping[str, Any]) -> KeyPath | None:
    """Return the path at which a setting cannot be read: a parent is not a mapping, or the key looks misspelled."""
    current: Any = data
    defaults: Any = _DEFAULTS
    for depth, part in enumerate(path):
        if not isinstance(current, Mapping):
            return path[:depth]
        if part not in current:
            unknown = [str(key) for key in current if key not in defaults]
            return next(((*path[:depth], typo) for typo in get_close_matches(str(part), unknown, n=1)), None)
        current, defaults = current[part], defaults[part]
    return None


def _value_or_default(path: KeyPath, data: Mapping[str, Any]) -> Any:
    """Return the value in a file, or the default if the file does not set it."""
    current: Any = data
    for part in path:
        if part not in current:
            return get_dotted(_DEFAULTS, ".".join(map(str, path)))
        current = current[part]
    return current


def _same(first: Any, second: Any) -> bool:
    """Return whether two values are equal; the order of lists is ignored."""
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return all(item in second for item in first) and all(item in first for item in second)
    return bool(first == second)


def _invalid_warning(document: Document, path: KeyPath) -> Problem:
    key = ".".join(map(str, path))
    return _warning(document, path, f"{key} is NOT in effect: it is invalid; the current value stays in effect")


def _warning(document: Document, path: KeyPath, message: str, hint: str | None = None) -> Problem:
    """Return a warning without the line itself, which may contain a secret."""
    problem = document.problem(path, message, hint=hint, at_key=True)
    return problem.model_copy(update={"severity": "warning", "excerpt": None})


ReloadEffect = Literal["hot", "next-run", "restart"]

_NEXT_RUN = (
    *("model", "models", "locale", "routing.model", "routing.default_agent"),
    *(f"model_calls.{key}" for key in ModelCallSettings.model_fields),
    *("tools.base_path", "telemetry.content", "telemetry.store_traces"),
    *("work.max_waiting", "work.max_running.agents", "work.max_running.models", "work.max_running.tenant"),
)
RELOAD_EFFECTS: Mapping[str, ReloadEffect] = {
    **dict.fromkeys(TIGHTENABLE_KEYS, "hot"),
    **dict.fromkeys(_NEXT_RUN, "next-run"),
}
"""When a change of a setting takes effect, by dotted key; settings that are missing here need a restart.

`hot` settings restrict tools, grants and budgets (a run in progress may do and use only what was permitted when it
started and still is), control access to the server, or control the use of a request's trace context.
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
                yield document.warning(tuple(key.split(".")), f"{key} takes effect after a restart", at_key=True)


def leaves(settings: BaseModel, above: str = "") -> Iterator[tuple[str, object]]:
    """Yield all settings by dotted key.

    A mapping with user-defined keys, such as `models`, is one setting, and so is a mapping in place of which a word may
    stand, such as `reload.gate`.
    """
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, BaseModel) and field.annotation is type(value):
            yield from leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
