"""Whether one rule applies to every call that another one applies to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import Any

_NUMBER = re.compile(r"(>=|<=|>|<)\s*(\S+)\s*")


def covers(wide: Mapping[str, Any], narrow: Mapping[str, Any]) -> bool:
    """Whether a rule, as data, applies to all calls of another one; False where that is not certain.

    The patterns must be equal: an ask rule also offers the tools it matches.
    """
    return wide["tool"] == narrow["tool"] and all(
        name in narrow["when"] and _holds_too(condition, narrow["when"][name])
        for name, condition in wide["when"].items()
    )


def _holds_too(wide: Any, narrow: Any) -> bool:
    """Whether a condition holds for all values that another one holds for."""
    if type(wide) is type(narrow) and wide == narrow:
        return True
    bounds = _bound(wide), _bound(narrow)
    if bounds[0] is None or bounds[1] is None:
        return False
    (sign, bound), (other_sign, other) = bounds[0], bounds[1]
    if sign[0] != other_sign[0]:
        return False
    if bound == other:
        return sign.endswith("=") or not other_sign.endswith("=")
    return bound < other if sign[0] == ">" else bound > other


def _bound(condition: Any) -> tuple[str, float] | None:
    match = _NUMBER.fullmatch(condition) if isinstance(condition, str) else None
    try:
        number = float(match[2]) if match else None
    except ValueError:
        return None
    return (match[1], number) if match and number is not None and isfinite(number) else None
