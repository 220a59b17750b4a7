"""Plugin files: each is executed as a fresh module, from the bytes of the snapshot, never from a cache on disk."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import PurePosixPath
from types import FrameType, ModuleType
from typing import Any

from framework.tools.deadline import DeadlineExceededError, call_within
from framework.tools.declaration import check_name
from framework.tools.extension import Extension
from framework.tools.plugins.errors import plugin_problems
from framework.tools.plugins.helper_files import plugin_files
from framework.tools.plugins.modules import PluginFinder, PluginPackage
from framework.tools.tool import Tool
from framework.types.errors import ConfigError
from framework.types.problem import Problem

LOAD_SECONDS = 1.0
"""How long a plugin's own code may run while it is loaded."""
IMPORT_SECONDS = 30.0
"""The same, with the installed packages it imports: some take seconds when they are imported for the first time."""
_IMPORTING = "<frozen importlib"


class PluginError(ConfigError):
    """A plugin file that cannot be used: `problem` is the file's, `problems` has those of its helpers too."""

    def __init__(self, problem: Problem, *others: Problem) -> None:
        super().__init__(problem.message, [problem, *others])
        self.problem = problem


class PluginHangsError(PluginError):
    """A plugin file whose own code does not end."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Plugin:
    """A loaded plugin file. While somebody holds it, or a function of it, its modules are in `sys.modules`."""

    path: str
    package: PluginPackage = field(repr=False)
    module: ModuleType
    tools: tuple[Tool, ...]
    extensions: tuple[Extension, ...]
    files: Mapping[str, bytes | None] = field(repr=False)
    """What it was made from: the file, and every helper it imports; none for a helper that was not there."""
    setup: Callable[..., Any] | None = None
    """`setup(context)`, to be called before the first use."""
    teardown: Callable[..., Any] | None = None
    """`teardown(context)`, to be called after the last use."""

    @property
    def name(self) -> str:
        """The file's name, with which the names of its tools begin."""
        return PurePosixPath(self.path).stem


def plugins_of(functions: Iterable[Callable[..., Any]]) -> list[Plugin]:
    """The plugins that these functions come from, each once."""
    modules = (sys.modules.get(str(getattr(function, "__module__", ""))) for function in functions)
    found = (getattr(module, "__plugin__", None) for module in modules)
    return list(dict.fromkeys(plugin for plugin in found if isinstance(plugin, Plugin)))


class PluginLoader:
    """Loads plugin files; the number after a file's name in a traceback tells one load from the next."""

    def __init__(
        self,
        load_seconds: float = LOAD_SECONDS,
        import_seconds: float = IMPORT_SECONDS,
        on_tick: Callable[[], None] = lambda: None,
    ) -> None:
        """Load with these limits; `on_tick` is called again and again while a file is loaded."""
        self._load_seconds, self._import_seconds, self._on_tick = load_seconds, import_seconds, on_tick
        self._numbers = count(1)
        if PluginFinder not in sys.meta_path:
            sys.meta_path.append(PluginFinder)

    def load(self, path: str, source: bytes, files: Mapping[str, bytes] | None = None) -> Plugin:
        """Execute a plugin file (`plugins/NAME.py`); its tools are named `NAME.FUNCTION`.

        Args:
            path: of the file, relative to the project.
            source: what it says.
            files: by path: what lies beside it, of which it may import the helpers.

        Raises:
            PluginError: with the line of the file at fault. It is raised too if the file's own code does not end.
        """
        beside = {**(files or {}), path: source}
        made_from = plugin_files(path, beside)
        package = PluginPackage(
            path, {name: text for name, text in made_from.items() if text is not None}, self._numbers
        )
        try:
            make = partial(_plugin, package, made_from)
            loading = call_within(
                self._load_seconds, make, is_exempt=partial(self._is_exempt, package), max_seconds=self._import_seconds
            )
            failure = loading.exception()
        except DeadlineExceededError as error:
            raise PluginHangsError(*plugin_problems(package, error, beside)) from None
        if isinstance(failure, PluginError):
            raise failure
        if failure is not None:  # its truth value is the plugin's code
            raise PluginError(*plugin_problems(package, failure, beside)) from None
        return loading.result()

    def _is_exempt(self, package: PluginPackage, frame: FrameType | None) -> bool:
        self._on_tick()
        return _is_importing(package, frame)


def _plugin(package: PluginPackage, made_from: Mapping[str, bytes | None]) -> Plugin:
    """Execute the file and look through what it defines, which may execute its code again."""
    module = package.execute()
    setup, teardown = (_lifetime_function(package.path, module, name) for name in ("setup", "teardown"))
    tools, extensions = tuple(_tools(package.path, module)), tuple(_extensions(package.path, module))
    plugin = Plugin(package.path, package, module, tools, extensions, made_from, setup, teardown)
    module.__dict__["__plugin__"] = plugin
    return plugin


def _tools(path: str, module: ModuleType) -> list[Tool]:
    stem = PurePosixPath(path).stem
    made_here = {
        id(value): value.named(f"{stem}.{value.name}", "plugin")
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
    """The module whose code it is: what is only imported is not adopted."""
    return getattr(registered.function, "__module__", None)


def _lifetime_function(path: str, module: ModuleType, name: str) -> Callable[..., Any] | None:
    function = vars(module).get(name)
    package = module.__name__.partition(".")[0]
    if not inspect.isfunction(function) or function.__module__.partition(".")[0] != package:
        return None
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        message = f"{name}() is called with one argument, a PluginContext; it must take that"
        line = function.__code__.co_firstlineno if function.__module__ == module.__name__ else None
        raise PluginError(Problem(path=path, line=line, message=message)) from None
    return function


def _is_importing(package: PluginPackage, frame: FrameType | None) -> bool:
    """Whether an installed package is being imported, rather than the plugin's own code being run."""
    while frame is not None and not package.file_of(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith(_IMPORTING):
            return True
        frame = frame.f_back
    return False
