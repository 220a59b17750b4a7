"""Loads plugin files, each as a fresh module, from bytes already in memory."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path, PurePosixPath
from types import FrameType, ModuleType
from typing import Any

from framework.tools.deadline import DeadlineExceededError, call_within
from framework.tools.declaration import check_name, collected_declaration_errors
from framework.tools.extension import Extension
from framework.tools.plugins.errors import declaration_problems, plugin_problems
from framework.tools.plugins.helper_files import plugin_files
from framework.tools.plugins.modules import PluginFinder, PluginPackage
from framework.tools.tool import Tool
from framework.types.errors import ConfigError
from framework.types.problem import Problem

LOAD_SECONDS = 1.0
"""Time limit for a plugin's own code while loading."""
IMPORT_SECONDS = 30.0
"""Time limit that includes imports of installed packages, some of which take seconds the first time."""
_IMPORTING = "<frozen importlib"


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
        """Execute a plugin file (`plugins/NAME.py`); its tools are named `NAME.FUNCTION`.

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
    """Return whether the frame belongs to the import of an installed package, not to the plugin's own code."""
    while frame is not None and not package.file_of(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith(_IMPORTING):
            return True
        frame = frame.f_back
    return False
