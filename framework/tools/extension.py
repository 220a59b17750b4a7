"""Executors and hooks: functions of plugins that agent files name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from framework.tools.declaration import short_repr
from framework.types.errors import ConfigError

ExtensionKind = Literal["executor", "hook"]


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


def _name_of(function: object, kind: ExtensionKind) -> str:
    name = getattr(function, "__name__", None)
    if not callable(function) or not isinstance(name, str):
        raise ConfigError(f"@{kind} must decorate a function: {short_repr(function)}")
    return name
