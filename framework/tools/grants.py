"""Decides whether a grant covers a call, and suggests the conditions of a new one.

The conditions are those of rules, read the other way round. A rule restricts, so a condition that cannot be evaluated
counts as met there. A grant permits, so here it counts as not met, and every item of a list must meet it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from framework.tools.conditions import (
    COMPARISONS,
    NOT_AN_OBJECT,
    WORKING_FOLDER,
    Matcher,
    condition_fault,
    location_kind,
    matcher_for,
    values_at,
    yaml_text,
)
from framework.tools.files import BaseFolder
from framework.tools.tool import Tool
from framework.types.grant import MAX_CONDITION_CHARS, MAX_CONDITIONS, Grant, GrantCondition, OfferedWidth
from framework.types.text import call_digest

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
"""A number in a text whose value everybody reads in the same way."""
_ID_PREFIX = re.compile(r"[A-Za-z][A-Za-z_.]*[-_/:]")
_MAX_TEXT_CHARS = 200


def grant_covers(
    grant: Grant, tool: Tool, views: Sequence[Mapping[str, Any]], base: BaseFolder = WORKING_FOLDER
) -> bool:
    """Return whether a grant covers a call by its arguments, in the views of `policy_views`: as written, as converted.

    Paths in arguments are relative to `base`.
    """
    if grant.tool != tool.name:
        return False
    if grant.width == "call":
        return grant.digest == digest_of(tool, views[0])
    if grant.width == "tool":
        return True
    if not chosen_names(tool, views[0]) <= {*grant.names, *grant.when}:
        return False
    return meets(grant.when, tool, views, base)


def meets(
    when: Mapping[str, Sequence[GrantCondition]],
    tool: Tool,
    views: Sequence[Mapping[str, Any]],
    base: BaseFolder = WORKING_FOLDER,
) -> bool:
    """Return whether every value of every named argument meets all of its conditions, and each argument has a value."""
    for name, conditions in when.items():
        values = [value for view in views for value in values_at(view, name)]
        match = matcher_for(tool, name, base)
        if not values or not all(_surely(one, value, match) for value in values for one in conditions):
            return False
    return True


def digest_of(tool: Tool, view: Mapping[str, Any]) -> str:
    """Return the digest of a call with its default values; `80.0` and `80` are the same."""
    return call_digest(tool.name, _plain(view))


def chosen_names(tool: Tool, view: Mapping[str, Any]) -> set[str]:
    """Return the dotted names of the arguments of a call that differ from the tool's defaults."""
    defaults = tool.with_defaults({})
    return {*argument_names({key: item for key, item in view.items() if key not in defaults or item != defaults[key]})}


def argument_names(value: Any, name: str = "") -> Iterator[str]:
    """Yield the dotted names of all values in arguments; lists are searched item by item."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from argument_names(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)) and value:
        for item in value:
            yield from argument_names(item, name)
    elif name:
        yield name


def widths_for(tool: Tool, view: Mapping[str, Any], base: BaseFolder = WORKING_FOLDER) -> tuple[OfferedWidth, ...]:
    """Return the widths in which the approval of a call can be remembered, from the narrowest to the widest.

    `view` has the call's arguments with defaults; paths in them are relative to `base`.
    """
    when: dict[str, tuple[GrantCondition, ...]] = {}
    order = [*tool.definition.parameters.get("properties", ()), *view]
    for name in dict.fromkeys(argument_names({key: view[key] for key in order if key in view})):
        when[name] = _conditions(name, [*values_at(view, name)], tool)
    widths = [OfferedWidth(width="call")]
    is_short = len(when) <= MAX_CONDITIONS and all(len(str(one[0])) <= MAX_CONDITION_CHARS for one in when.values())
    if when and is_short and meets(when, tool, [view], base):
        widths.append(OfferedWidth(width="arguments", when=when))
    return (*widths, OfferedWidth(width="tool"))


def fault_in(when: Mapping[str, Sequence[GrantCondition]], tool: Tool) -> str | None:
    """Return why a condition of a grant cannot be what its writer means; None if it can."""
    for name, conditions in when.items():
        for condition in conditions:
            if not (isinstance(condition, str) and condition.startswith(">= ")) and (
                fault := condition_fault(tool, name, condition)
            ):
                return fault
    return None


def _surely(condition: GrantCondition, value: Any, match: Matcher) -> bool:
    if isinstance(value, (Mapping, list, tuple)) or value is NOT_AN_OBJECT:
        return False
    if not isinstance(condition, str):
        return yaml_text(value) == yaml_text(condition)
    sign = next((sign for sign in COMPARISONS if condition.startswith(sign)), None)
    if sign is not None:
        number, bound = _exact(value), _bound(condition.removeprefix(sign))
        return number is not None and bound is not None and bool(COMPARISONS[sign](number, bound))
    if condition.startswith("!="):
        return match(yaml_text(value), condition.removeprefix("!=").strip()) is False
    return match(yaml_text(value), condition) is True


def _exact(value: Any) -> Decimal | None:
    """Return a number without rounding, also one in a text; None for anything else."""
    if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, (int, float)):
        return Decimal(value)
    if isinstance(value, str) and len(value) <= _MAX_TEXT_CHARS and _NUMBER.fullmatch(value):
        return Decimal(value)
    return None


def _bound(text: str) -> Decimal | None:
    """Return the number of a comparison; that of `20.1` is the number that an argument 20.1 has."""
    try:
        bound = Decimal(text.strip())
        return Decimal(float(text)) if bound != bound.to_integral_value() else bound
    except (InvalidOperation, ValueError, OverflowError):  # not a number, or infinite
        return None


def _plain(value: Any) -> Any:
    """Return arguments with whole floats as integers."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _conditions(name: str, values: Sequence[Any], tool: Tool) -> tuple[GrantCondition, ...]:
    """Suggest conditions that the values of an argument meet."""
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if numbers and len(numbers) == len(values):
        least, most = min(numbers), max(numbers)
        return (
            (">= 0", f"<= {yaml_text(most)}")
            if least >= 0
            else (f">= {yaml_text(least)}", f"<= {yaml_text(max(most, 0))}")
        )
    texts = {_pattern(name, value, tool) for value in values}
    return tuple(texts) if len(texts) == 1 else ("*",)


def _pattern(name: str, value: Any, tool: Tool) -> GrantCondition:
    """Suggest a pattern: the folder of a path or URL, the prefix of an id, any free text, else the value itself."""
    if not isinstance(value, str):
        return bool(value) if isinstance(value, bool) else yaml_text(value)
    if location_kind(tool, name) is not None and "/" in (value.partition("://")[2] or value):
        return f"{_literal(value.rpartition('/')[0])}/*"
    if (prefix := _ID_PREFIX.match(value)) and any(char.isdigit() for char in value[prefix.end() :]):
        return f"{_literal(prefix[0])}*"
    return "*" if any(char.isspace() for char in value) else _literal(value)


def _literal(text: str) -> str:
    """Return the pattern that exactly this text matches."""
    escaped = re.sub(r"([*?\[])", r"[\1]", text)
    is_sign = escaped.startswith(("!=", *COMPARISONS))
    return f"[{escaped[0]}]{escaped[1:]}" if is_sign and escaped[0] != "!" else escaped
