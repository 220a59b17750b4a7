"""Functions of plugins that the runtime calls by name, besides tools: executors and hooks."""

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
        """The same under a full name."""
        return replace(self, name=name)

    def accepts(self, count: int) -> bool:
        """Whether it can be called with so many arguments."""
        try:
            inspect.signature(self.function).bind(*[None] * count)
        except (TypeError, ValueError):  # ValueError: it has no signature that could be read
            return False
        return True


def executor(function: Callable[..., Any]) -> Extension:
    """Register how an agent works: `async def name(run) -> str`, for `executor: PLUGIN.NAME`.

    Everything it does goes through the run it gets: `await run.ask_model()`, `await run.call_tools(calls)`.

    Raises:
        ConfigError: it is not a coroutine function.
    """
    if not inspect.iscoroutinefunction(function):
        name = _name_of(function, "executor")
        raise ConfigError(f"an executor is a coroutine function: async def {name}(run) -> str")
    return Extension("executor", _name_of(function, "executor"), function)


def hook(function: Callable[..., Any]) -> Extension:
    """Register a function for an agent's `hooks`; a coroutine function, or one that is called in a thread.

    before_run(context, message), after_run(context, output), before_tool(context, call) and
    after_tool(context, call, result): raise Refused to stop the run or the call; after_… may return what is to be taken
    instead. A hook that fails counts as a refusal. Raises ConfigError if it is no function with a name.
    """
    return Extension("hook", _name_of(function, "hook"), function)


def _name_of(function: object, kind: ExtensionKind) -> str:
    name = getattr(function, "__name__", None)
    if not callable(function) or not isinstance(name, str):
        raise ConfigError(f"@{kind} goes above a function: {short_repr(function)}")
    return name
