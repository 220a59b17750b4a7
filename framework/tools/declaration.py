"""Checks the options of a tool when it is declared, so that a mistake shows at load, not at the first call."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from math import isfinite
from traceback import walk_stack
from typing import Any, Literal, TypeVar

from framework.types.errors import ConfigError
from framework.types.frozen import parse_duration
from framework.types.spec import RISKS
from framework.types.text import did_you_mean, shorten

T = TypeVar("T")
RateLimit = tuple[float, float]
"""Maximum number of calls, and the period in seconds."""
OPTIONS = (
    "name", "description", "risk", "confirm", "idempotent", "timeout", "retries", "rate", "paths", "urls", "needs",
    "prefix",
)  # fmt: skip
"""Options of `@tool`."""
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_NAME_SIGNS = "names contain only letters, digits, '_', '-' and '.'"
_RATE = re.compile(r"([0-9]{1,9})/(s|m|h)")
_RATE_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_TIMEOUT = "timeout must be a positive number of seconds, or a duration such as 500ms, 5s or 2m"
_SHOWN_CHARS = 60


_invalid_tools: ContextVar[list[DeclarationError] | None] = ContextVar("agentsd_invalid_tools", default=None)
"""Where invalid declarations are collected while a plugin file is loaded; None: they are raised."""


class DeclarationError(ConfigError):
    """An invalid declaration of a tool."""

    def __init__(self, errors: Sequence[tuple[str | None, str]]) -> None:
        super().__init__("; ".join(message for _, message in errors))
        self.errors = tuple(errors)
        """The mistakes: option of `@tool` (None: the function itself), and message."""
        self.stack: list[tuple[str, int]] = []
        """File names and lines of the frames that declare the tool, the innermost first, once it is collected."""


@contextmanager
def collected_declaration_errors() -> Iterator[list[DeclarationError]]:
    """Collect invalid declarations instead of raising them, so that all those of a file are reported together."""
    errors: list[DeclarationError] = []
    token = _invalid_tools.set(errors)
    try:
        yield errors
    finally:
        _invalid_tools.reset(token)


def report_declaration(error: DeclarationError) -> None:
    """Collect an invalid declaration, or raise it if declarations are not collected."""
    errors = _invalid_tools.get()
    if errors is None:
        raise error
    error.stack = [(frame.f_code.co_filename, line) for frame, line in walk_stack(None)]
    errors.append(error)


class DeclarationCheck:
    """Collects the mistakes in one declaration of a tool."""

    def __init__(self, unknown_options: Iterable[str]) -> None:
        """Begin with the options that `@tool` does not have."""
        self.errors: list[tuple[str | None, str]] = [
            (name, f"@tool has no option {name!r}{did_you_mean(name, OPTIONS)}") for name in unknown_options
        ]

    def run(self, option: str | None, check: Callable[[], T]) -> T | None:
        """Return the result of a check of an option; None if the option is invalid, which is collected."""
        try:
            return check()
        except DeclarationError as error:
            self.errors += error.errors
        except ConfigError as error:
            self.errors.append((option, error.message))
        return None


def check_name(name: object) -> str:
    """Return the name of a tool. Raise ConfigError if it is invalid."""
    if not isinstance(name, str):
        raise ConfigError(f"the name of a tool must be a string: {short_repr(name)}")
    if not _NAME.fullmatch(name):
        raise ConfigError(f"invalid tool name {short_repr(name)}: {_NAME_SIGNS}")
    return name


def parse_timeout(tool: str, timeout: object) -> float | None:
    """Return a timeout in seconds, from a number or a duration such as `5s`. Raise ConfigError if it is invalid."""
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
    """Convert a rate such as `5/s`, `100/m` or `1000/h`. Raise ConfigError if it is invalid."""
    if rate is None:
        return None
    match = _RATE.fullmatch(rate) if isinstance(rate, str) else None
    if match is None or not int(match[1]):
        raise ConfigError(f"tool {tool!r}: invalid rate {short_repr(rate)}: write it as 5/s, 100/m or 1000/h")
    return float(match[1]), _RATE_SECONDS[match[2]]


def check_needs(tool: str, needs: object) -> Mapping[str, str]:
    """Return modules, each with what pip installs. Raise ConfigError if this is not such a mapping."""
    if isinstance(needs, Mapping) and all(map(_is_need, needs, needs.values())):
        return dict(needs)
    meant = "modules, each with what pip installs, such as {'yaml': 'pyyaml'}"
    raise ConfigError(f"tool {tool!r}: needs must be {meant}: {short_repr(needs)}")


def check_prefix(tool: str, prefix: object) -> bool:
    """Return whether a tool of a plugin has the file's name as prefix. Raise ConfigError if that is invalid."""
    if not isinstance(prefix, bool):
        raise ConfigError(f"tool {tool!r}: prefix must be True or False: {short_repr(prefix)}")
    if not prefix and "." in tool:
        raise ConfigError(f"tool {tool!r}: a name without prefix must not contain dots")
    return prefix


def check_options(tool: str, declared: Mapping[str, object]) -> None:
    """Raise DeclarationError with every error in the options of a tool."""
    if errors := [(option, f"tool {tool!r}: {text}") for option, text in _option_errors(declared)]:
        raise DeclarationError(errors)


def resolve_arguments(
    tool: str, option: str, given: str | Iterable[str], spellings: Callable[[str], Sequence[str]]
) -> tuple[str, ...]:
    """Return the arguments that `paths` or `urls` names, under every name that a call can use for them.

    `spellings` returns the names of a parameter, or none if there is no such parameter.

    Raises:
        ConfigError: a name is not a string, or not the name of a parameter.
    """
    found: list[str] = []
    names: object = (given,) if isinstance(given, str) else given
    if not isinstance(names, (tuple, list, set, frozenset)) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"tool {tool!r}: {option} must contain names of parameters: {short_repr(given)}")
    for name in names:
        head, dot, rest = name.partition(".")
        known = spellings(head)
        if not known:
            raise ConfigError(f"tool {tool!r}: {option} contains {short_repr(name)}, which is not a parameter")
        found += [f"{spelling}{dot}{rest}" for spelling in known]
    return tuple(dict.fromkeys(found))


def _option_errors(declared: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    risk, retries, timeout, rate = (declared[key] for key in ("risk", "retries", "timeout", "rate"))
    if not isinstance(risk, str) or risk not in RISKS:
        meant = did_you_mean(risk, RISKS) if isinstance(risk, str) else f"; there are: {', '.join(RISKS)}"
        yield "risk", f"unknown risk {short_repr(risk)}{meant}"
    for key in ("confirm", "idempotent"):
        if not isinstance(declared[key], bool):
            yield key, f"{key} must be True or False: {short_repr(declared[key])}"
    if timeout is not None and not _is_positive(timeout):
        yield "timeout", f"{_TIMEOUT}: {short_repr(timeout)}"
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        yield "retries", f"retries must be an integer, 0 or more: {short_repr(retries)}"
    elif retries and declared["idempotent"] is False:
        yield "retries", "retries require idempotent=True: a call that must not happen twice cannot be retried"
    if rate is not None and not _is_rate(rate):
        yield "rate", f"rate must be a pair (calls, seconds) of positive numbers: {short_repr(rate)}"


def _is_need(module: object, package: object) -> bool:
    return isinstance(module, str) and module.isidentifier() and isinstance(package, str) and bool(package.strip())


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
    """Return a short representation of a value for an error message. Never raises."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a plugin's `repr` can raise anything, and the value is only quoted
        text = f"a {type(value).__name__}"
    return shorten(text, _SHOWN_CHARS)


ExtensionKind = Literal["executor", "hook", "embedder"]


@dataclass(frozen=True, slots=True)
class Extension:
    """A registered function. Calling it calls the function itself, as in a unit test."""

    kind: ExtensionKind
    name: str
    """`<plugin file>.<function>`."""
    function: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def named(self, name: str) -> Extension:
        """Return the same extension under a full name."""
        return replace(self, name=name)

    def accepts(self, count: int) -> bool:
        """Return whether the function can be called with `count` positional arguments."""
        try:
            inspect.signature(self.function).bind(*[None] * count)
        except (TypeError, ValueError):  # ValueError: the function has no readable signature
            return False
        return True


def executor(function: Callable[..., Any]) -> Extension:
    """Register an executor, `async def name(run) -> str`, for agents with `executor: PLUGIN.NAME`.

    An executor works through its run only: `await run.ask_model()`, `await run.call_tools(calls)`.

    Raises:
        ConfigError: `function` is not a coroutine function.
    """
    if not inspect.iscoroutinefunction(function):
        name = _name_of(function, "executor")
        raise ConfigError(f"an executor must be a coroutine function: async def {name}(run) -> str")
    return Extension("executor", _name_of(function, "executor"), function)


def hook(function: Callable[..., Any]) -> Extension:
    """Register a hook that agent files name under `hooks`. Functions that are not coroutines run in a thread.

    Signatures: before_run(context, message), after_run(context, output), before_tool(context, call) and
    after_tool(context, call, result). Raise Refused to stop the run or the call. The hooks after_run and after_tool can
    return a replacement. A hook that raises any other exception refuses as well.

    Raises:
        ConfigError: `function` is not a named function.
    """
    return Extension("hook", _name_of(function, "hook"), function)


def embedder(function: Callable[..., Any]) -> Extension:
    """Register a function that agent files name as `memory.embed`: it turns texts into vectors of the same length.

    It gets a list of texts and returns a list of as many lists of numbers. If it fails, notes are found by words.
    Functions that are not coroutines run in a thread.

    Raises:
        ConfigError: `function` is not a named function.
    """
    return Extension("embedder", _name_of(function, "embedder"), function)


def _name_of(function: object, kind: ExtensionKind) -> str:
    name = getattr(function, "__name__", None)
    if not callable(function) or not isinstance(name, str):
        raise ConfigError(f"@{kind} must decorate a function: {short_repr(function)}")
    return name
