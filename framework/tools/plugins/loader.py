"""Loads plugins, and sets them up and tears them down with the generations that use them."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path, PurePosixPath
from types import FrameType, ModuleType
from typing import Any, TypeVar

from framework.tools.deadline import DeadlineExceededError, call_within
from framework.tools.declaration import Extension, check_name, collected_declaration_errors
from framework.tools.plugins.modules import (
    PluginFinder,
    PluginPackage,
    declaration_problems,
    plugin_files,
    plugin_problems,
)
from framework.tools.tool import Tool
from framework.types.errors import ConfigError, RequestError
from framework.types.problem import Problem

log = logging.getLogger(__name__)


LOAD_SECONDS = 1.0
"""Time limit for a plugin's own code while loading."""
IMPORT_SECONDS = 30.0
"""Time limit that includes imports of installed packages, some of which take seconds the first time, and the work of
`@tool`, which takes about a millisecond a tool."""
_IMPORTING = "<frozen importlib"
_DECLARING = Tool.named.__code__.co_filename
"""The file of `@tool`."""


class PluginError(ConfigError):
    """An invalid plugin file. `problem` is that of the file; `problems` also contains those of its helpers."""

    def __init__(self, problem: Problem, *others: Problem) -> None:
        super().__init__(problem.message, [problem, *others])
        self.problem = problem


class PluginHangsError(PluginError):
    """A plugin file whose own code does not finish in time."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Plugin:
    """A loaded plugin file. Its modules stay in `sys.modules` while it or one of its functions is referenced."""

    path: str
    package: PluginPackage = field(repr=False)
    module: ModuleType
    tools: tuple[Tool, ...]
    extensions: tuple[Extension, ...]
    files: Mapping[str, bytes | None] = field(repr=False)
    """Contents of the file and its helpers, by path; None for a helper that did not exist."""
    setup: Callable[..., Any] | None = None
    """`setup(context)`, called before the first use."""
    teardown: Callable[..., Any] | None = None
    """`teardown(context)`, called after the last use."""

    @property
    def name(self) -> str:
        """Name of the file without its suffix, the prefix of its tools."""
        return PurePosixPath(self.path).stem


def plugins_of(functions: Iterable[Callable[..., Any]]) -> list[Plugin]:
    """Return the plugins that define these functions, without duplicates."""
    modules = (sys.modules.get(str(getattr(function, "__module__", ""))) for function in functions)
    plugins = (getattr(module, "__plugin__", None) for module in modules)
    return list(dict.fromkeys(plugin for plugin in plugins if isinstance(plugin, Plugin)))


class PluginLoader:
    """Loads plugin files. In tracebacks, a number after the file name distinguishes loads of the same file."""

    def __init__(
        self,
        load_seconds: float = LOAD_SECONDS,
        import_seconds: float = IMPORT_SECONDS,
        on_tick: Callable[[], None] = lambda: None,
        root: Path = Path(),
    ) -> None:
        """Create a loader.

        Args:
            load_seconds: time limit for a plugin's own code.
            import_seconds: time limit that includes imports of installed packages.
            on_tick: called repeatedly while a file is loaded.
            root: the project's folder. A module's `__file__` is below it.
        """
        self._root = root.absolute()
        self._load_seconds, self._import_seconds, self._on_tick = load_seconds, import_seconds, on_tick
        self._numbers = count(1)
        if PluginFinder not in sys.meta_path:
            sys.meta_path.append(PluginFinder)

    def load(self, path: str, source: bytes, files: Mapping[str, bytes] | None = None) -> Plugin:
        """Execute a plugin file (`plugins/NAME.py`); its tools are named `NAME.FUNCTION`, or `FUNCTION`.

        Args:
            path: path of the file, relative to the project.
            source: contents of the file.
            files: contents of the files in the folder by path, for the helpers that the file imports.

        Raises:
            PluginError: the file is invalid or raised an exception; PluginHangsError if it does not finish.
        """
        folder_files = {**(files or {}), path: source}
        made_from = plugin_files(path, folder_files)
        package = PluginPackage(
            path, {name: text for name, text in made_from.items() if text is not None}, self._numbers, self._root
        )
        try:
            make = partial(_plugin, package, made_from)
            loading = call_within(
                self._load_seconds, make, is_exempt=partial(self._is_exempt, package), max_seconds=self._import_seconds
            )
            failure = loading.exception()
        except DeadlineExceededError as error:
            raise PluginHangsError(*plugin_problems(package, error, folder_files)) from None
        if isinstance(failure, PluginError):
            raise failure
        if failure is not None:  # testing its truth value would run the plugin's code
            raise PluginError(*plugin_problems(package, failure, folder_files)) from None
        return loading.result()

    def _is_exempt(self, package: PluginPackage, frame: FrameType | None) -> bool:
        self._on_tick()
        return _is_importing(package, frame)


def _plugin(package: PluginPackage, made_from: Mapping[str, bytes | None]) -> Plugin:
    """Execute the file and collect its definitions, which may execute code of the plugin again."""
    with collected_declaration_errors() as invalid:
        try:
            module = package.execute()
        except BaseException as error:
            if not invalid:
                raise
            problems = *declaration_problems(package, invalid), *plugin_problems(package, error, made_from)
            raise PluginError(*problems) from None
    if invalid:
        raise PluginError(*declaration_problems(package, invalid))
    setup, teardown = (_lifetime_function(package.path, module, name) for name in ("setup", "teardown"))
    tools, extensions = tuple(_tools(package.path, module)), tuple(_extensions(package.path, module))
    plugin = Plugin(package.path, package, module, tools, extensions, made_from, setup, teardown)
    module.__dict__["__plugin__"] = plugin
    return plugin


def _tools(path: str, module: ModuleType) -> list[Tool]:
    stem = PurePosixPath(path).stem
    made_here = {
        id(value): value.named(f"{stem}.{value.name}" if value.prefix else value.name, "plugin")
        for value in vars(module).values()
        if isinstance(value, Tool) and _module_of(value) == module.__name__
    }
    for tool in made_here.values():
        check_name(tool.name)
    return list(made_here.values())


def _extensions(path: str, module: ModuleType) -> Iterator[Extension]:
    stem = PurePosixPath(path).stem
    for value in vars(module).values():
        if isinstance(value, Extension) and _module_of(value) == module.__name__:
            yield value.named(f"{stem}.{value.name}")


def _module_of(registered: Tool | Extension) -> object:
    """Return the name of the module that defines a tool or extension. Imported ones are not registered."""
    return getattr(registered.function, "__module__", None)


def _lifetime_function(path: str, module: ModuleType, name: str) -> Callable[..., Any] | None:
    function = vars(module).get(name)
    package = module.__name__.partition(".")[0]
    if not inspect.isfunction(function) or function.__module__.partition(".")[0] != package:
        return None
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        message = f"{name}() must accept one argument, a PluginContext"
        line = function.__code__.co_firstlineno if function.__module__ == module.__name__ else None
        raise PluginError(Problem(path=path, line=line, message=message)) from None
    return function


def _is_importing(package: PluginPackage, frame: FrameType | None) -> bool:
    """Return whether a frame is of the import of an installed package, or of `@tool`, not of the plugin's own code."""
    while frame is not None and not package.file_of(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith(_IMPORTING) or frame.f_code.co_filename == _DECLARING:
            return True
        frame = frame.f_back
    return False


T = TypeVar("T")

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
