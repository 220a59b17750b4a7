"""What `agentsd.yaml` restricts although it, or another file of the edit, cannot be used.

As with agent files: only what restricts takes effect. Whatever the file permits in addition waits until all of it can
be used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, SecretStr

from framework.config.settings import SETTINGS_FILE, Settings, ToolSettings, variable_name
from framework.config.yaml.document import Document, DocumentError, KeyPath, read_document
from framework.config.yaml.environment import expand
from framework.config.yaml.partial import get_dotted, merge_valid
from framework.telemetry.content import content_mode
from framework.types.http import HttpLimits
from framework.types.problem import Problem
from framework.types.spec import CONTENT_MODES

TIGHTENABLE_KEYS = (
    *(f"tools.{key}" for key in ToolSettings.model_fields if key != "http"),
    *(f"tools.http.{key}" for key in HttpLimits.model_fields),
    "telemetry.content",
    "telemetry.inbound",
    "server.api_keys",
)
"""The settings that can be stricter than before and take effect without a new start."""
_UNUSABLE_KEY = SecretStr("\0")
"""The only key of a server whose keys were all replaced in a file that cannot be used: no HTTP header contains it."""
_DEFAULTS = Settings.model_construct().model_dump()
_INBOUND = ("ignore", "link", "parent")
_NOT_LIVE = "are NOT live: they cannot be read; what is in force stays in force"


def tighten_settings(live: Settings, saved: Settings) -> Settings:
    """The live settings, but permitting only what the saved ones permit as well."""
    content, inbound = live.telemetry.content, min(live.telemetry.inbound, saved.telemetry.inbound, key=_INBOUND.index)
    modes = [CONTENT_MODES.index(content_mode(settings.telemetry.content, os.environ)) for settings in (live, saved)]
    if modes[1] < modes[0]:
        content = saved.telemetry.content
    sections = {
        "tools": live.tools.narrowed_by(saved.tools),
        "telemetry": live.telemetry.model_copy(update={"content": content, "inbound": inbound}),
        "server": live.server.model_copy(update={"api_keys": _keys(live.server.api_keys, saved.server.api_keys)}),
    }
    found = live.model_copy(update=sections)
    return live if found == live else found


def _keys(live: tuple[SecretStr, ...], saved: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    """A server without any key admits every program on its machine, so the last key is not simply removed."""
    if not live or not saved:
        return live or saved
    return tuple(key for key in live if key in saved) or (_UNUSABLE_KEY,)


def read_settings(source: bytes, live: Settings) -> tuple[Settings, list[Problem]]:
    """The live settings with those of `KEYS` that a broken file contains, and warnings about those that it garbles.

    A key that is missing has its default; what a variable of the environment sets stays as it is.
    """
    try:
        document = read_document(SETTINGS_FILE, source)
    except DocumentError:
        return live, [unreadable_warning()]
    data, external = expand(document, os.environ)[0], {name.upper() for name in os.environ}
    found, unread = live, list[KeyPath]()
    for key in TIGHTENABLE_KEYS:
        path = tuple(key.split("."))
        if any(name.startswith(variable_name(path)) for name in external):
            continue
        if (garbled := _garbled(path, data)) is not None:
            unread.append(garbled)
            continue
        section, inner = path[0], path[1:]
        own = getattr(found, section)
        model: type[BaseModel] = type(own)
        base, value = own.model_dump(), _written(path, data)
        if len(inner) > 1:
            value = {**base[inner[0]], inner[1]: value}
        valid, bad = merge_valid(model, base, {inner[0]: value}, ("api_keys",))
        unread += [(section, *where) for where in bad]
        found = found.model_copy(update={section: model.model_validate(valid)})
    return found, [_not_read(document, path) for path in dict.fromkeys(unread)]


def unreadable_warning() -> Problem:
    """The warning about a file in which no setting can be read."""
    return Problem(path=SETTINGS_FILE, message=f"the restrictions in this file {_NOT_LIVE}", severity="warning")


def settings_warnings(live: Settings, saved: Settings, found: Settings, source: bytes) -> Iterator[Problem]:
    """Warnings about a file that is not used as a whole: what of it is live, and what is not.

    Args:
        live: the settings in force before.
        saved: what the file says.
        found: `live`, narrowed by `saved`.
        source: the file.
    """
    try:
        document = read_document(SETTINGS_FILE, source)
    except DocumentError:
        return
    before, written, after = (settings.model_dump() for settings in (live, saved, found))
    for key in TIGHTENABLE_KEYS:
        was, is_written, now = (get_dotted(data, key) for data in (before, written, after))
        if _same(is_written, was) or _same(is_written, now):
            continue
        what = "only what it restricts takes effect" if now != was else "it permits more, or may,"
        message = f"{key} is NOT live as saved: {what} until the files can be used"
        hint = (
            "until then the server accepts no key at all"
            if _UNUSABLE_KEY in (now if isinstance(now, tuple) else ())
            else None
        )
        yield _warning(document, tuple(key.split(".")), message, hint)
    if live is not found:
        message = "of this file only what restricts is live; otherwise the settings in force stay in force"
        yield Problem(path=SETTINGS_FILE, message=message, severity="warning")


def _garbled(path: KeyPath, data: Mapping[str, Any]) -> KeyPath | None:
    """Where a setting cannot be found: above it is no mapping, or instead of it is a key that looks like a typo."""
    here: Any = data
    known: Any = _DEFAULTS
    for depth, part in enumerate(path):
        if not isinstance(here, Mapping):
            return path[:depth]
        if part not in here:
            unknown = [str(key) for key in here if key not in known]
            return next(((*path[:depth], typo) for typo in get_close_matches(str(part), unknown, n=1)), None)
        here, known = here[part], known[part]
    return None


def _written(path: KeyPath, data: Mapping[str, Any]) -> Any:
    """The value in a file; without one, the default."""
    here: Any = data
    for part in path:
        if part not in here:
            return get_dotted(_DEFAULTS, ".".join(map(str, path)))
        here = here[part]
    return here


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal; the order of a list means nothing here."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return {*one} == {*other}
    return bool(one == other)


def _not_read(document: Document, path: KeyPath) -> Problem:
    return _warning(document, path, f"{'.'.join(map(str, path))} {_NOT_LIVE}")


def _warning(document: Document, path: KeyPath, message: str, hint: str | None = None) -> Problem:
    """Without the line itself, which may contain a secret."""
    problem = document.problem(path, message, hint=hint, at_key=True)
    return problem.model_copy(update={"severity": "warning", "excerpt": None})
