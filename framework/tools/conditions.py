"""Whether the conditions of a rule (`when`) are met by the arguments of a call.

A condition that cannot be evaluated counts as met: rules only restrict, so the stricter reading is the safe one.
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
"""Whether a text matches a pattern; None: unknown."""
WORKING_FOLDER = BaseFolder(Path())
_SCALARS = frozenset({str, int, float, bool, type(None)})
"""Types whose values are JSON data already; their subclasses are not, such as an enumeration of texts."""
_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


def rule_matches(
    rule: Rule, arguments: Mapping[str, Any], tool: Tool | None = None, base: BaseFolder = WORKING_FOLDER
) -> bool:
    """Whether all of a rule's conditions are met. One on an argument that is not given is not.

    Args:
        rule: its `when` names arguments, or parts of them with dots.
        arguments: of the call.
        tool: declares which arguments are paths and URLs.
        base: the folder that paths are relative to.
    """
    for name, condition in rule.when.items():
        match = _matcher_for(tool, name, base)
        if not any(condition_matches(condition, value, match) for value in values_at(arguments, name)):
            return False
    return True


def condition_matches(condition: str | int | float | bool, value: Any, match: Matcher = fnmatchcase) -> bool:
    """Whether one condition is met by a value; by a list, if any item meets it.

    Args:
        condition: a comparison such as `> 50`, `!= PATTERN`, a pattern, or a value.
        value: JSON data. An object cannot be compared, so it meets every condition.
        match: compares a text with a pattern.
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
    """A call's arguments as a policy must evaluate them: as they were given, and as the tool gets them if that differs.

    Args:
        tool: completes them with its defaults.
        arguments: as they were given.
        bound: as the tool's types have converted them; None while that is not known.
    """
    given = tool.with_defaults(arguments)
    converted = to_json_values(bound) if bound is not None else given
    return [given] if converted == given else [given, converted]


def to_json_values(value: Any) -> Any:
    """Checked arguments as JSON data: what a tool really gets, after its types have converted what the model sent.

    Fields of models come under their names and their aliases, for rules may use either.
    """
    if type(value) in _SCALARS:
        return value
    if isinstance(value, (dict, Mapping)):  # dict first: asking an abstract class takes long
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
    found: dict[str, Any] = {}
    for name, field in type(value).model_fields.items():
        given = to_json_values(getattr(value, name))
        found |= dict.fromkeys({name, field.alias or name}, given)
    return found | {name: to_json_values(extra) for name, extra in (value.model_extra or {}).items()}


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
    """A value as an agent file would write it: `true`, `null`, `50`; so `50.0` is `50`."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, ensure_ascii=False, default=str)
