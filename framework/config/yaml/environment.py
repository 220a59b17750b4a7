"""Substitutes `${VARIABLE}` and `${VARIABLE:-default}` in parsed documents.

Substitution happens after parsing, so that a value cannot add keys. As in a shell, the default also replaces an empty
variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from framework.config.yaml.document import Document, KeyPath
from framework.types.problem import Problem

_FILE = re.compile(r"(?<!\$)\$\{file:")
_VARIABLE = re.compile(r"\$(?:\$|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\})")

Unset = tuple[KeyPath, Problem]
"""A value with a variable that is not set, or with a file where none is read."""


def expand(document: Document, environ: Mapping[str, str]) -> tuple[dict[str, Any], list[Unset]]:
    """Return the document's data with variables substituted, and each variable that is not set; it counts as empty."""
    unset: list[Unset] = []

    def fill(path: KeyPath, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: fill((*path, key), item) for key, item in value.items()}
        if isinstance(value, list):
            return [fill((*path, index), item) for index, item in enumerate(value)]
        if not isinstance(value, str) or "$" not in value:
            return value
        if _FILE.search(value):
            if path[0] == "models" and path[2:] == ("api_key",):
                return value  # the model's client reads the file whenever it changes
            hint = "use a variable here, ${NAME}"
            message = "files are read for the api_key of a model's alias only"
            unset.append((path, document.problem(path, message, hint=hint)))
        for name in _unset(value, environ):
            hint = f"set it, or write ${{{name}:-default}}"
            unset.append((path, document.problem(path, f"the variable {name} is not set", hint=hint)))
        return _VARIABLE.sub(lambda match: _value(match, environ), value)

    return fill((), document.data), unset


def variable_hint(value: object) -> str | None:
    """Return the hint on an invalid value of an agent file that contains `${VARIABLE}`; None without one."""
    if not isinstance(value, str) or "${" not in value:
        return None
    return "variables are replaced in agentsd.yaml and plugins/*.yaml only: define an alias there, and write its name"


def is_affected(path: KeyPath, unset: Iterable[Unset]) -> bool:
    """Return whether the value at a path is, contains or is part of one with a variable that is not set."""
    return any(path == where[: len(path)] or where == path[: len(where)] for where, _ in unset)


def _unset(text: str, environ: Mapping[str, str]) -> Iterator[str]:
    for match in _VARIABLE.finditer(text):
        if match["name"] and match["default"] is None and match["name"] not in environ:
            yield match["name"]


def _value(match: re.Match[str], environ: Mapping[str, str]) -> str:
    if match["name"] is None:
        return "$"
    return environ.get(match["name"]) or match["default"] or ""
