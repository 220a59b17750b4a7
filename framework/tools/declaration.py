"""What a tool may declare about itself, checked when it is made: a typo shows at load, not at the first call."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite

from framework.types.errors import ConfigError
from framework.types.frozen import parse_duration
from framework.types.spec import RISKS
from framework.types.text import did_you_mean, shorten

RateLimit = tuple[float, float]
"""So many calls in so many seconds."""
OPTIONS = ("name", "description", "risk", "confirm", "idempotent", "timeout", "retries", "rate", "paths", "urls")
"""What `@tool(…)` takes."""
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_NAME_SIGNS = "only letters, digits, '_', '-' and '.' can be part of its name"
_RATE = re.compile(r"([0-9]{1,9})/(s|m|h)")
_RATE_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_TIMEOUT = "timeout must be a positive number of seconds, or a duration such as 500ms, 5s or 2m"
_SHOWN_CHARS = 60


def reject_unknown_options(options: Mapping[str, object]) -> None:
    """Refuse options that `@tool` does not have; raises ConfigError."""
    for name in options:
        raise ConfigError(f"@tool has no option {name!r}{did_you_mean(name, OPTIONS)}")


def check_name(name: object) -> str:
    """The name of a tool as it is declared; raises ConfigError."""
    if not isinstance(name, str):
        raise ConfigError(f"a tool's name must be text: {short_repr(name)}")
    if not _NAME.fullmatch(name):
        raise ConfigError(f"the tool {short_repr(name)}: {_NAME_SIGNS}")
    return name


def parse_timeout(tool: str, timeout: object) -> float | None:
    """Seconds of a timeout, which may be written as in YAML (`5s`); raises ConfigError."""
    if timeout is None:
        return None
    try:
        number = parse_duration(timeout)
    except ValueError:
        number = None
    if number is None or not _is_positive(number):
        raise ConfigError(f"tool {tool!r}: {_TIMEOUT}: {short_repr(timeout)}")
    return float(number)


def parse_rate(tool: str, rate: object) -> RateLimit | None:
    """A rate as `5/s`, `100/m` or `1000/h`; raises ConfigError."""
    if rate is None:
        return None
    match = _RATE.fullmatch(rate) if isinstance(rate, str) else None
    if match is None or not int(match[1]):
        raise ConfigError(f"tool {tool!r}: a rate is written like 5/s, 100/m or 1000/h: {short_repr(rate)}")
    return float(match[1]), _RATE_SECONDS[match[2]]


def check_options(tool: str, declared: Mapping[str, object]) -> None:
    """Refuse what a tool cannot be: raises ConfigError with everything that is wrong with it."""
    if wrong := list(_option_errors(declared)):
        raise ConfigError(f"tool {tool!r}: {'; '.join(wrong)}")


def resolve_arguments(
    tool: str, option: str, given: str | Iterable[str], spellings: Callable[[str], Sequence[str]]
) -> tuple[str, ...]:
    """The arguments that `paths` or `urls` names, under every name by which a call may give them.

    Args:
        tool: its name, for errors.
        option: `paths` or `urls`.
        given: one dotted name, or several.
        spellings: the names of a parameter; none if there is no such parameter.

    Raises:
        ConfigError: a name is not text, or is no parameter's.
    """
    found: list[str] = []
    names: object = (given,) if isinstance(given, str) else given
    if not isinstance(names, (tuple, list, set, frozenset)) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"tool {tool!r}: {option} must be names of parameters: {short_repr(given)}")
    for name in names:
        head, dot, rest = name.partition(".")
        known = spellings(head)
        if not known:
            raise ConfigError(f"tool {tool!r}: {option} names no parameter: {short_repr(name)}")
        found += [f"{spelling}{dot}{rest}" for spelling in known]
    return tuple(dict.fromkeys(found))


def _option_errors(declared: Mapping[str, object]) -> Iterator[str]:
    risk, retries, timeout, rate = (declared[key] for key in ("risk", "retries", "timeout", "rate"))
    if not isinstance(risk, str) or risk not in RISKS:
        meant = did_you_mean(risk, RISKS) if isinstance(risk, str) else f"; there are: {', '.join(RISKS)}"
        yield f"unknown risk {short_repr(risk)}{meant}"
    for key in ("confirm", "idempotent"):
        if not isinstance(declared[key], bool):
            yield f"{key} must be True or False: {short_repr(declared[key])}"
    if timeout is not None and not _is_positive(timeout):
        yield f"{_TIMEOUT}: {short_repr(timeout)}"
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        yield f"retries must be a whole number, 0 or more: {short_repr(retries)}"
    elif retries and declared["idempotent"] is False:
        yield "retries are for idempotent tools: what may not be done twice must not be tried again"
    if rate is not None and not _is_rate(rate):
        yield f"a rate is a pair (calls, seconds) of positive numbers: {short_repr(rate)}"


def _is_rate(rate: object) -> bool:
    return isinstance(rate, tuple) and len(rate) == 2 and all(map(_is_positive, rate))


def _is_positive(number: object) -> bool:
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return False
    try:
        return number > 0 and isfinite(number)
    except OverflowError:
        return False


def short_repr(value: object) -> str:
    """A value as an error message quotes it; never raises."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a plugin's `repr` may raise anything, and the value is only quoted
        text = f"a {type(value).__name__}"
    return shorten(text, _SHOWN_CHARS)
