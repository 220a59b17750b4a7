"""The text of project files as people may read it: without the secrets that it contains."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import yaml
from yaml.events import CollectionEndEvent, CollectionStartEvent, MappingStartEvent, NodeEvent, ScalarEvent

from framework.config.api_keys import ApiKey
from framework.config.files.snapshot import PLUGINS
from framework.config.overlay import is_settings_file
from framework.config.yaml.parse import mask_key_like
from framework.tools.skills import is_omitted
from framework.types.redact import MASK, redact

SECRET_SETTINGS = (
    *("models.*.api_key", "models.*.extra_body", "models.*.headers"),
    *("telemetry.otlp_headers", "store.url", "server.api_keys"),
)
"""Keys of `agentsd.yaml` whose values are secret, with everything below them."""
SECRETS_OF_SOURCES = (
    *("mcp_servers.*.env", "mcp_servers.*.headers", "skill_hosts.*.headers"),
    *("openapi.*.auth", "openapi.*.headers", "openapi.*.cookies", "openapi.*.query"),
    *("http_tools.*.auth", "http_tools.*.headers", "http_tools.*.cookies"),
)
"""The same for files of tool servers."""
_KEY_RIGHTS = frozenset(ApiKey.model_fields) - {"sha256"}
"""Keys of an entry of `server.api_keys` that are not secret."""
_REFERENCE = re.compile(r"(?:(?:Bearer|Basic) )?\$\{(?:[A-Za-z_][A-Za-z0-9_]*|file:[^}]*)\}")
"""A value that is read from a variable or a file. It is no secret."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class FileText:
    """The text of a file."""

    text: str | None
    """None if it is not shown."""
    is_masked: bool = False
    """Whether secrets in it were replaced by `***`."""
    reason: str | None = None
    """Why it is not shown."""


def readable_text(path: str, source: bytes) -> FileText:
    """Return the text of a project file without its secrets."""
    if is_omitted(source):
        return FileText(None, reason="it is not a text, or larger than 1 MB")
    try:
        text = source.decode()
    except UnicodeDecodeError as error:
        return FileText(None, reason=f"it is not UTF-8: byte 0x{source[error.start]:02x} at {error.start}")
    shown = text
    if secrets := _secrets_of(path):
        try:
            shown = mask_key_like(_mask_values(text, secrets))
        except (yaml.YAMLError, RecursionError):
            return FileText(None, reason="it may contain secrets, which cannot be found because it is not valid YAML")
    shown = redact(shown)
    return FileText(shown, is_masked=shown != text)


def _secrets_of(path: str) -> Collection[str]:
    if is_settings_file(path):
        return SECRET_SETTINGS
    return SECRETS_OF_SOURCES if path.startswith(PLUGINS + "/") and not path.endswith(".py") else ()


def _mask_values(text: str, secrets: Collection[str]) -> str:
    """Replace the values of these keys, unless a value is a reference to a variable."""
    parts, end = [], 0
    for path, event in _scalars(text):
        if event.value and not _REFERENCE.fullmatch(event.value) and _is_secret(path, secrets):
            assert event.start_mark is not None, "events of a parser have marks"
            assert event.end_mark is not None, "events of a parser have marks"
            start, after = event.start_mark.index, event.end_mark.index
            parts += [text[end:start], MASK, "\n" if text[start:after].endswith("\n") else ""]
            end = after
    return "".join([*parts, text[end:]])


def _is_secret(path: Sequence[str], secrets: Collection[str]) -> bool:
    if path[:2] == ["server", "api_keys"] and not _KEY_RIGHTS.isdisjoint(path[3:4]):
        return False
    return any(
        len(path) >= len(keys) and all(key in ("*", own) for key, own in zip(keys, path, strict=False))
        for keys in (secret.split(".") for secret in secrets)
    )


def _scalars(text: str) -> Iterator[tuple[list[str], ScalarEvent]]:
    """Yield the values of a document that are neither mappings nor lists, each with its path."""
    keys: list[str | int | None] = []
    """For each open collection, the key of the current value: None where the next event is the key of a mapping."""
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, CollectionEndEvent):
            keys.pop()
        elif not isinstance(event, NodeEvent):
            continue
        elif keys and keys[-1] is None:
            if not isinstance(event, ScalarEvent):
                raise yaml.YAMLError("a key is not a text")
            keys[-1] = event.value
            continue
        elif isinstance(event, CollectionStartEvent):
            keys.append(None if isinstance(event, MappingStartEvent) else 0)
            continue
        elif isinstance(event, ScalarEvent):
            yield [str(key) for key in keys], event
        if keys:  # the value is complete
            keys[-1] = keys[-1] + 1 if isinstance(keys[-1], int) else None
