"""What plugins set up before they are used, and tear down afterwards."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from framework.tools.deadline import DeadlineExceededError, call_within
from framework.tools.plugins.errors import plugin_problems
from framework.tools.plugins.loader import Plugin
from framework.types.errors import RequestError
from framework.types.problem import Problem

T = TypeVar("T")

log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 10.0
"""How long a `setup` or a `teardown` may take."""


@dataclass(frozen=True, slots=True)
class PluginContext:
    """What `setup(context)` and `teardown(context)` of a plugin get."""

    plugin: str
    """The plugin's name: its file's, with which the names of its tools begin."""
    deps: Any = None
    """The embedding program's own objects, as given to `Runtime.open(deps=…)`."""


@dataclass(slots=True, eq=False)
class _PluginState:
    uses: int = 0
    is_up: bool = False
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class PluginLease:
    """Some plugins in use, all set up but those that `failed`. It must be ended."""

    failed: dict[Plugin, tuple[Problem, ...]] = field(default_factory=dict)
    lives: list[_PluginState] = field(default_factory=list)
    on_release: Callable[[], None] = lambda: None

    def release(self) -> None:
        """Give the use up, once; what nobody uses any more is torn down in the background."""
        lives, self.lives = self.lives, []
        for life in lives:
            life.uses -= 1
        if any(life.uses == 0 for life in lives):
            self.on_release()


class PluginLifecycle:
    """Sets each plugin up before its first use and tears it down after its last, whoever is cancelled meanwhile."""

    def __init__(self, deps: Any = None, *, seconds: float = _TIMEOUT_SECONDS) -> None:
        self._deps, self._seconds = deps, seconds
        self._lives: dict[Plugin, _PluginState] = {}
        """In the order in which they were set up."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def acquire(self, plugins: Iterable[Plugin]) -> PluginLease:
        """Count a use of these plugins, having set up those that are not. Raises RequestError after `close`."""
        wanted = [plugin for plugin in dict.fromkeys(plugins) if plugin.setup or plugin.teardown]
        use = PluginLease(on_release=self._tear_down_in_background)
        for plugin in wanted:  # all before the first await: nobody tears down what this use relies on
            life = self._lives.setdefault(plugin, _PluginState())
            life.uses += 1
            use.lives.append(life)
        try:
            for plugin, life in zip(wanted, use.lives, strict=True):
                if self._is_closed:
                    raise RequestError("the runtime is closed")
                if not life.is_up and (problems := await asyncio.shield(self._spawn(self._set_up(plugin, life)))):
                    use.failed[plugin] = problems
        except BaseException:
            use.release()
            raise
        return use

    async def close(self) -> None:
        """Tear everything down, whoever uses it, the last that was set up first."""
        self._is_closed = True
        while self._tasks:
            await asyncio.wait(self._tasks)
        for life in self._lives.values():
            life.uses = 0
        await self._tear_down_unused()

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Work that goes on when whoever waits for it is cancelled: half a `setup` could not be torn down."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _tear_down_in_background(self) -> None:
        self._spawn(self._tear_down_unused())

    async def _set_up(self, plugin: Plugin, life: _PluginState) -> tuple[Problem, ...]:
        async with life.changing:
            error = None if life.is_up else await self._call(plugin, plugin.setup)
            life.is_up = error is None
        return plugin_problems(plugin.package, error, when="in setup()") if error is not None else ()

    async def _tear_down_unused(self) -> None:
        for plugin, life in reversed(list(self._lives.items())):
            if life.uses <= 0:  # below: a use that ended after `close`
                await self._tear_down(plugin, life)

    async def _tear_down(self, plugin: Plugin, life: _PluginState) -> None:
        async with life.changing:
            if life.is_up and life.uses <= 0:
                life.is_up = False
                if (error := await self._call(plugin, plugin.teardown)) is not None:
                    problems = plugin_problems(plugin.package, error, when="in teardown()")
                    log.error("%s", "; ".join(map(str, problems)))
        if life.uses <= 0 and self._lives.get(plugin) is life:
            del self._lives[plugin]

    async def _call(self, plugin: Plugin, function: Callable[..., Any] | None) -> BaseException | None:
        """Call one of a plugin's functions; returns what it raised."""
        if function is None:
            return None
        call = partial(function, PluginContext(plugin.name, self._deps))
        if inspect.iscoroutinefunction(function):
            return await _in_the_loop(call, self._seconds)
        return await asyncio.to_thread(_in_a_thread, call, self._seconds)


async def _in_the_loop(call: Callable[[], Awaitable[object]], seconds: float) -> BaseException | None:
    work = _error_of(call)
    task = asyncio.create_task(work)
    if (await asyncio.wait([task], timeout=seconds))[0]:
        return task.result()
    inner = getattr(work, "cr_await", None)
    error = DeadlineExceededError(seconds, getattr(inner, "cr_frame", None))  # while it is still there
    task.cancel()
    return error


async def _error_of(call: Callable[[], Awaitable[object]]) -> BaseException | None:
    try:
        await call()
    except BaseException as error:  # noqa: BLE001 - sys.exit() too ends the call, not the process
        return error
    return None


def _in_a_thread(call: Callable[[], object], seconds: float) -> BaseException | None:
    try:
        return call_within(seconds, call, is_exempt=lambda _: False, max_seconds=seconds).exception()
    except DeadlineExceededError as error:
        return error
