"""Evaluates the conditions (`when`) of a policy rule against the arguments of a call.

A condition that cannot be evaluated counts as met: rules only restrict, so this is the safe interpretation.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from decimal import Decimal
from enum import Enum
from fnmatch import fnmatchcase
from math import isnan
from pathlib import Path, PurePath
from typing import Any

from pydantic import BaseModel

from framework.tools.base_folder import BaseFolder
from framework.tools.locations import NOT_AN_OBJECT, location_kind, location_matches, values_at
from framework.tools.tool import Tool
from framework.types.spec import Rule

Matcher = Callable[[str, str], bool | None]
"""Returns whether a text matches a pattern, or None if that is unknown."""
WORKING_FOLDER = BaseFolder(Path())
_SCALARS = frozenset({str, int, float, bool, type(None)})
"""Types whose values are JSON data already. Values of their subclasses, such as string enumerations, are not."""
_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


def rule_matches(
    rule: Rule, arguments: Mapping[str, Any], tool: Tool | None = None, base: BaseFolder = WORKING_FOLDER
) -> bool:
    """Return whether all conditions of a rule are met. A condition on a missing argument is not met.

    Args:
        rule: its `when` maps arguments, or parts of them such as `filter.amount`, to conditions.
        arguments: the arguments of the call.
        tool: declares which arguments are paths and URLs.
        base: the folder that paths are relative to.
    """
    for name, condition in rule.when.items():
        match = _matcher_for(tool, name, base)
        if not any(condition_matches(condition, value, match) for value in values_at(arguments, name)):
            return False
    return True


def condition_matches(condition: str | int | float | bool, value: Any, match: Matcher = fnmatchcase) -> bool:
    """Return whether a value matches a condition. A list matches if any of its items does.

    Args:
        condition: a comparison such as `> 50`, `!= PATTERN`, a pattern, or a value.
        value: JSON data. An object cannot be compared, so it meets every condition.
        match: matches a text with a pattern.
    """
    if isinstance(value, list):
        return any(condition_matches(condition, item, match) for item in value)
    if isinstance(value, Mapping) or value is NOT_AN_OBJECT:
        return True
    if not isinstance(condition, str):
        return bool(value == condition) or _as_in_yaml(value) == _as_in_yaml(condition)
    sign = next((sign for sign in _COMPARISONS if condition.startswith(sign)), None)
    if sign is not None:
        try:
            number, bound = float(value), float(condition.removeprefix(sign))
        except (TypeError, ValueError, OverflowError):
            return True
        return isnan(number) or isnan(bound) or _COMPARISONS[sign](number, bound)
    if condition.startswith("!="):
        return not match(_as_in_yaml(value), condition.removeprefix("!=").strip())
    return match(_as_in_yaml(value), condition) is not False


def policy_views(
    tool: Tool, arguments: Mapping[str, Any], bound: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return the forms of a call's arguments that a policy must evaluate.

    These are the arguments as given, and as the tool receives them if that differs.

    Args:
        tool: adds its default values.
        arguments: the arguments as given.
        bound: the arguments after conversion to the tool's types; None if they have not been converted yet.
    """
    original = tool.with_defaults(arguments)
    converted = to_json_values(bound) if bound is not None else original
    return [original] if converted == original else [original, converted]


def to_json_values(value: Any) -> Any:
    """Convert bound arguments back to JSON data, so that rules see the values that the tool receives.

    Fields of models appear under both their names and their aliases, because rules may use either.
    """
    if type(value) in _SCALARS:
        return value
    if isinstance(value, (dict, Mapping)):  # dict first: isinstance is slow for an abstract class
        return {str(to_json_values(key)): to_json_values(item) for key, item in value.items()}
    if isinstance(value, BaseModel):
        return _model_values(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json_values(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json_values(item) for item in value]
    if isinstance(value, Enum):
        return to_json_values(value.value)
    if isinstance(value, Decimal):
        return int(value) if value.is_finite() and value == int(value) and abs(value) < 10**18 else float(value)
    return value if value is None or isinstance(value, (str, int, float, bool)) else _to_text(value)


def _model_values(value: BaseModel) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, field in type(value).model_fields.items():
        field_value = to_json_values(getattr(value, name))
        values |= dict.fromkeys({name, field.alias or name}, field_value)
    return values | {name: to_json_values(extra) for name, extra in (value.model_extra or {}).items()}


def _matcher_for(tool: Tool | None, name: str, base: BaseFolder) -> Matcher:
    kind = location_kind(tool, name) if tool else None
    if kind is None:
        return fnmatchcase
    return lambda text, pattern: location_matches(kind, text, pattern, base)


def _to_text(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "replace")
    return value.as_posix() if isinstance(value, PurePath) else str(value)


def _as_in_yaml(value: Any) -> str:
    """Return a value as written in an agent file: `true`, `null`, `50`. `50.0` becomes `50`."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, ensure_ascii=False, default=str)
