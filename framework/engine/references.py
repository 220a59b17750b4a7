"""References in a step's parameters to the results of earlier steps: `{{ steps.find.output }}`.

They are data: found by one pattern, put in as values, and what was put in is never looked at again. A text that is
nothing but a reference becomes the value itself, with its type; inside a longer text it becomes text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from framework.types.errors import ToolError
from framework.types.plan import PlanStep

_REFERENCE = re.compile(r"\{\{\s*steps\.([a-zA-Z][a-zA-Z0-9_-]*)\.output((?:\.[A-Za-z0-9_-]+)*)\s*\}\}")
_SHOWN_CHARS = 60
SYNTAX = "write {{ steps.ID.output }}, or {{ steps.ID.output.FIELD }} for a part of it"


@dataclass(frozen=True, slots=True)
class Reference:
    """The result of a step, or a part of it."""

    step: str
    path: tuple[str, ...] = ()
    """Keys and indices into a result that is data."""


def references(value: Any) -> Iterator[Reference]:
    """All references in a value, wherever they stand."""
    for text in _texts(value):
        yield from (_read(match) for match in _REFERENCE.finditer(text))


def faults(value: Any) -> Iterator[str]:
    """Double braces that are no reference."""
    for text in _texts(value):
        rest = _REFERENCE.sub("", text)
        if "{{" in rest:
            wrong = rest[rest.index("{{") :]
            shown = wrong if len(wrong) <= _SHOWN_CHARS else wrong[:_SHOWN_CHARS] + "…"
            yield f"{shown!r} refers to nothing: {SYNTAX}"


def resolve(value: Any, output_of: Callable[[str], Any]) -> Any:
    """The value with every reference replaced; raises ToolError where a result has no such part."""
    match value:
        case str():
            return _resolved(value, output_of)
        case list():
            return [resolve(inner, output_of) for inner in value]
        case dict():
            return {key: resolve(inner, output_of) for key, inner in value.items()}
    return value


def referring(step: PlanStep) -> frozenset[str]:
    """The names of the parameters in which references stand: their values are not known yet."""
    return frozenset(name for name, value in step.parameters.items() if next(references(value), None))


def _resolved(text: str, output_of: Callable[[str], Any]) -> Any:
    whole = _REFERENCE.fullmatch(text.strip())
    if whole:
        return _part(_read(whole), output_of)
    return _REFERENCE.sub(lambda match: _as_text(_part(_read(match), output_of)), text)


def _read(match: re.Match[str]) -> Reference:
    return Reference(match[1], tuple(part for part in match[2].split(".") if part))


def _part(reference: Reference, output_of: Callable[[str], Any]) -> Any:
    value = output_of(reference.step)
    for part in reference.path:
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            path = ".".join(reference.path)
            raise ToolError(f"the result of step {reference.step} has no {path}: it is {_described(value)}")
    return value


def _described(value: Any) -> str:
    match value:
        case dict():
            return f"an object with {', '.join(list(value)[:10]) or 'nothing in it'}"
        case list():
            return f"a list of {len(value)}"
        case str():
            return "text"
    return "a plain value"


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value; also the keys of objects, in which nothing is ever put in."""
    match value:
        case str():
            yield value
        case list():
            for inner in value:
                yield from _texts(inner)
        case dict():
            for inner in value.values():
                yield from _texts(inner)
