"""`agentsd.yaml`, and the file of an environment that is laid over it: `agentsd.staging.yaml`, chosen by `AGENTSD_ENV`.

The keys of the overlay replace those of `agentsd.yaml` one by one: mappings are merged, other values replaced.
"""

from __future__ import annotations

import os
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from framework.config.yaml.document import Document, DocumentError, read_document, read_unique_keys
from framework.types.errors import ConfigError
from framework.types.problem import Problem

SETTINGS_FILE = "agentsd.yaml"
ENVIRONMENT_VARIABLE = "AGENTSD_ENV"
"""Variable with the name of the environment. Without it, or if it is empty, there is no overlay."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_FILE = re.compile(rf"agentsd(\.{_NAME.pattern})?\.yaml")
_NO_KEYS = b"{}"
_MISNAMED = "agentsd.yml"
"""Agent files may end in `.yml`, so this name is a likely mistake, which would turn keys and limits off."""


@dataclass(frozen=True, slots=True)
class SettingsSource:
    """The contents of the files of one project's settings."""

    base: bytes
    overlay_path: str | None = None
    overlay: bytes = b""

    @property
    def text(self) -> bytes:
        """All bytes, for a search."""
        return self.base + b"\n" + self.overlay

    def document(self) -> Document:
        """Return the merged document, which knows the file of each key; raise DocumentError if one is invalid."""
        base = _with_models(read_document(SETTINGS_FILE, self.base))
        if self.overlay_path is None:
            return base
        return _with_models(read_document(self.overlay_path, self.overlay)).over(base)

    def unique_keys(self) -> Document | None:
        """Return the merged document even if keys are duplicated; the last of them applies. None for other errors."""
        base = read_unique_keys(SETTINGS_FILE, self.base)
        if base is None or self.overlay_path is None:
            return base and _with_models(base)
        overlay = read_unique_keys(self.overlay_path, self.overlay)
        return _with_models(overlay).over(_with_models(base)) if overlay else None

    def document_or_none(self) -> Document | None:
        """Return the merged document; None if the settings in effect come from the program, not from valid files."""
        try:
            return self.document()
        except DocumentError:
            return None


def _with_models(document: Document) -> Document:
    """Return a document with each model that is only a name, such as `fast: openai/gpt-5`, as a mapping."""
    models = document.data.get("models")
    if not isinstance(models, dict):
        return document
    marks, long = dict(document.marks), dict(models)
    for name, model in models.items():
        if isinstance(model, str):
            long[name], marks["models", name, "model"] = {"model": model}, marks["models", name]
    return replace(document, data={**document.data, "models": long}, marks=marks)


def environment() -> str | None:
    """Return the name of the environment in `AGENTSD_ENV`, or None; raise ConfigError if it cannot be one."""
    name = os.environ.get(ENVIRONMENT_VARIABLE, "")
    if name and not _NAME.fullmatch(name):
        message = f"{name!r:.60} cannot be the name of an environment"
        hint = "write lower-case letters, digits, - and _, as in `staging`"
        raise _invalid_variable(message, hint)
    return name or None


def settings_files() -> tuple[str, ...]:
    """Return the names of the files that are read: `agentsd.yaml`, and the overlay of the environment."""
    name = environment()
    return (SETTINGS_FILE, f"agentsd.{name}.yaml") if name else (SETTINGS_FILE,)


def environment_in(files: Iterable[str]) -> str | None:
    """Return the environment of a generation by the paths of its files; None without an overlay."""
    found = (match[1] for path in files if (match := _FILE.fullmatch(path)) and match[1])
    return next(found, "").removeprefix(".") or None


def is_settings_file(path: str) -> bool:
    """Return whether a path is that of the settings or of the overlay of any environment."""
    return _FILE.fullmatch(path) is not None


def settings_source(files: Mapping[str, bytes]) -> SettingsSource:
    """Return the settings among a project's files. A file without keys, such as one of comments, has none.

    Raises:
        ConfigError: the file of the environment is missing.
    """
    base, *overlays = settings_files()
    source = SettingsSource(_with_keys(files.get(base, b"")))
    for overlay in overlays:
        if overlay not in files:
            message = f"there is no {overlay}, the settings of this environment"
            raise _invalid_variable(message, f"add the file, or choose another one by --env or {ENVIRONMENT_VARIABLE}")
        source = SettingsSource(source.base, overlay, _with_keys(files[overlay]))
    return source


def read_settings_files(root: Path) -> SettingsSource:
    """Read the settings in a project's folder.

    Raises:
        ConfigError: a file is unreadable or has the wrong ending, or the overlay is missing.
    """
    files = dict[str, bytes]()
    if os.path.lexists(root / _MISNAMED):
        raise ConfigError(f"{_MISNAMED} is not read: rename it to {SETTINGS_FILE}")
    for name in settings_files():
        try:
            if (root / name).is_file():
                files[name] = (root / name).read_bytes()
        except OSError as error:
            raise ConfigError(f"{name} cannot be read: {error.strerror}") from None
    return settings_source(files)


def _invalid_variable(message: str, hint: str) -> ConfigError:
    problem = Problem(path=ENVIRONMENT_VARIABLE, message=message, hint=hint)
    return ConfigError("invalid environment variable", [problem])


def _with_keys(source: bytes) -> bytes:
    lines = (line.lstrip() for line in source.removeprefix(BOM_UTF8).splitlines())
    return source if any(line and not line.startswith((b"#", b"---")) for line in lines) else _NO_KEYS
