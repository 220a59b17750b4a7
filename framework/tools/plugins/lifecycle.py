"""Calls `setup` before a plugin is first used and `teardown` after its last use."""

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
"""Time limit for a `setup` or a `teardown`, in seconds."""


@dataclass(frozen=True, slots=True)
class PluginContext:
    """The argument of a plugin's `setup(context)` and `teardown(context)`."""

    plugin: str
    """Name of the plugin: that of its file, which is also the prefix of its tools."""
    deps: Any = None
    """Objects of the embedding program, passed to `Runtime.open(deps=…)`."""


@dataclass(slots=True, eq=False)
class _PluginState:
    leases: int = 0
    is_set_up: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class PluginLease:
    """A lease of plugins, which are set up except for those in `failed`. It must be released."""

    failed: dict[Plugin, tuple[Problem, ...]] = field(default_factory=dict)
    states: list[_PluginState] = field(default_factory=list)
    on_release: Callable[[], None] = lambda: None

    def release(self) -> None:
        """Release the lease. Idempotent. Plugins without leases are torn down in the background."""
        states, self.states = self.states, []
        for state in states:
            state.leases -= 1
        if any(state.leases == 0 for state in states):
            self.on_release()


class PluginLifecycle:
    """Sets up each plugin before its first lease and tears it down after its last, even if a caller is cancelled."""

    def __init__(self, deps: Any = None, *, seconds: float = _TIMEOUT_SECONDS) -> None:
        self._deps, self._seconds = deps, seconds
        self._states: dict[Plugin, _PluginState] = {}
        """Plugins in the order in which they were set up."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def acquire(self, plugins: Iterable[Plugin]) -> PluginLease:
        """Lease plugins; set up those that are not set up yet. Raise RequestError after `close`."""
        stateful = [plugin for plugin in dict.fromkeys(plugins) if plugin.setup or plugin.teardown]
        lease = PluginLease(on_release=self._tear_down_in_background)
        for plugin in stateful:  # count all before the first await, so that no plugin is torn down during it
            state = self._states.setdefault(plugin, _PluginState())
            state.leases += 1
            lease.states.append(state)
        try:
            for plugin, state in zip(stateful, lease.states, strict=True):
                if self._is_closed:
                    raise RequestError("the runtime is closed")
                if not state.is_set_up and (problems := await asyncio.shield(self._spawn(self._set_up(plugin, state)))):
                    lease.failed[plugin] = problems
        except BaseException:
            lease.release()
            raise
        return lease

    async def close(self) -> None:
        """Tear down all plugins, even if they are leased, in reverse order of their setup."""
        self._is_closed = True
        while self._tasks:
            await asyncio.wait(self._tasks)
        for state in self._states.values():
            state.leases = 0
        await self._tear_down_unused()

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that continues if its caller is cancelled: a partial `setup` could not be torn down."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _tear_down_in_background(self) -> None:
        self._spawn(self._tear_down_unused())

    async def _set_up(self, plugin: Plugin, state: _PluginState) -> tuple[Problem, ...]:
        async with state.lock:
            error = None if state.is_set_up else await self._call(plugin, plugin.setup)
            state.is_set_up = error is None
        return plugin_problems(plugin.package, error, when="in setup()") if error is not None else ()

    async def _tear_down_unused(self) -> None:
        for plugin, state in reversed(list(self._states.items())):
            if state.leases <= 0:  # negative if a lease is released after `close`
                await self._tear_down(plugin, state)

    async def _tear_down(self, plugin: Plugin, state: _PluginState) -> None:
        async with state.lock:
            if state.is_set_up and state.leases <= 0:
                state.is_set_up = False
                if (error := await self._call(plugin, plugin.teardown)) is not None:
                    problems = plugin_problems(plugin.package, error, when="in teardown()")
                    log.error("%s", "; ".join(map(str, problems)))
        if state.leases <= 0 and self._states.get(plugin) is state:
            del self._states[plugin]

    async def _call(self, plugin: Plugin, function: Callable[..., Any] | None) -> BaseException | None:
        """Call a function of a plugin. Return the exception that it raised, or None."""
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
    error = DeadlineExceededError(seconds, getattr(inner, "cr_frame", None))  # before `cancel` clears the frame
    task.cancel()
    return error


async def _error_of(call: Callable[[], Awaitable[object]]) -> BaseException | None:
    try:
        await call()
    except BaseException as error:  # noqa: BLE001 - includes sys.exit(), which must not end the process
        return error
    return None


def _in_a_thread(call: Callable[[], object], seconds: float) -> BaseException | None:
    try:
        return call_within(seconds, call, is_exempt=lambda _: False, max_seconds=seconds).exception()
    except DeadlineExceededError as error:
        return error
