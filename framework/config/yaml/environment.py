"""Substitutes `${VARIABLE}` and `${VARIABLE:-default}` in parsed documents.

Substitution happens after parsing, so that a value cannot add keys. As in a shell, the default also replaces an empty
variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from framework.config.yaml.document import Document, KeyPath
from framework.types.problem import Problem

_VARIABLE = re.compile(r"\$(?:\$|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\})")


def expand(document: Document, environ: Mapping[str, str]) -> tuple[dict[str, Any], list[Problem]]:
    """Return the document's data with variables substituted, and a Problem for each variable that is not set."""
    problems: list[Problem] = []

    def fill(path: KeyPath, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: fill((*path, key), item) for key, item in value.items()}
        if isinstance(value, list):
            return [fill((*path, index), item) for index, item in enumerate(value)]
        if not isinstance(value, str) or "$" not in value:
            return value
        problems.extend(
            document.problem(path, f"the variable {name} is not set", hint=f"set it, or write ${{{name}:-default}}")
            for name in _unset(value, environ)
        )
        return _VARIABLE.sub(lambda match: _value(match, environ), value)

    return fill((), document.data), problems


def _unset(text: str, environ: Mapping[str, str]) -> Iterator[str]:
    for match in _VARIABLE.finditer(text):
        if match["name"] and match["default"] is None and match["name"] not in environ:
            yield match["name"]


def _value(match: re.Match[str], environ: Mapping[str, str]) -> str:
    if match["name"] is None:
        return "$"
    return environ.get(match["name"]) or match["default"] or ""
