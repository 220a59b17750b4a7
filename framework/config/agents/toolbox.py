"""The tools of a generation: those of the process, of plugin files and of tool servers."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import unwrap
from pathlib import Path
from threading import Event

from framework.config.agents.external_tools import ExternalTools
from framework.config.agents.unexpected_errors import find_problems, problem_from_exception
from framework.config.files.snapshot import source_digest
from framework.tools.declaration import Extension
from framework.tools.plugins.loader import Plugin, PluginError, PluginLoader
from framework.tools.plugins.modules import is_plugin, plugin_files
from framework.tools.plugins.trial import TrialNotStarted, try_plugins
from framework.tools.tool import Tool
from framework.tools.toolset import index_tools
from framework.types.errors import ConfigError
from framework.types.extras import needs_only_extras
from framework.types.problem import Problem

_LOADS_PER_COLLECTION = 20
"""Plugin loads per forced garbage collection. Modules are in reference cycles with large Pydantic data, and automatic
collections come too late for them."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The result of the last read of a plugin file."""

    source: Mapping[str, bytes | None] | None = None
    """The bytes of the file and its helper files (None: missing); None if the file was unreadable."""
    plugin: Plugin | None = None
    problems: tuple[Problem, ...] = ()
    is_untried: bool = False
    """It was not loaded because no process could be started to try it. That may succeed later, so it is not final."""

    def is_of(self, files: Mapping[str, bytes]) -> bool:
        """Return whether these files still have the bytes that were read."""
        return self.source is not None and all(files.get(path) == source for path, source in self.source.items())


@dataclass(frozen=True, slots=True)
class Toolbox:
    """All tools of one generation."""

    tools: Mapping[str, Tool]
    extensions: Mapping[str, Extension] = field(default_factory=dict)
    """Executors and hooks that plugins define, by name."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """Digest of the source of each tool and extension that comes from a file or a server, by its name."""
    problems: tuple[Problem, ...] = ()
    plugins: tuple[Plugin, ...] = ()
    """The current plugins, each in its last good version."""
    external: ExternalTools = field(default_factory=ExternalTools)
    """The tools of tool servers."""

    def with_external(self, external: ExternalTools) -> Toolbox:
        """Return a copy with the tools of servers. A tool whose wire name is already in use becomes a warning."""
        tools, problems = dict(self.tools), list(self.problems)
        names = {tool.definition.wire_name: tool.name for tool in tools.values()}
        for tool in external.tools:
            wire = tool.definition.wire_name
            if wire in names:
                message = (
                    f"{tool.name} is not available: its name in requests to models is already used by {names[wire]}"
                )
                problems.append(Problem(path="plugins", message=message, severity="warning"))
            else:
                tools[tool.name], names[wire] = tool, tool.name
        digests = {**self.digests, **external.digests}
        problems.extend(external.problems)
        return replace(self, tools=tools, digests=digests, problems=tuple(problems), external=external)


class PluginCache:
    """Loads plugin files when their bytes change, and keeps the loaded plugins."""

    def __init__(self, own_tools: Iterable[Tool], root: Path = Path()) -> None:
        """Create a cache without plugins. `root` is the project's folder."""
        self._own_tools, self._root = tuple(own_tools), root
        self._loader = PluginLoader(root=root)
        self._loaded: dict[str, _Loaded] = {}
        """The results that the last toolbox contains, by path."""
        self._ahead: dict[str, _Loaded] = {}
        """Later results, which no toolbox contains yet."""
        self._loads = 0

    @property
    def paths(self) -> list[str]:
        """The paths of the plugin files at the last call of `toolbox`."""
        return list(self._loaded)

    def changed(self, files: Mapping[str, bytes]) -> list[str]:
        """Return the plugin files that are not loaded with these contents."""
        return [path for path in filter(is_plugin, files) if not self._is_loaded(path, files)]

    def load(self, paths: Sequence[str], files: Mapping[str, bytes], abandoned: Event) -> dict[str, _Loaded]:
        """Load plugin files while other generations are built: first in a child process, because loading may hang.

        Raises:
            TrialAbandoned: the event `abandoned` was set.
        """
        try:
            tried = try_plugins(paths, _used(paths, files), abandoned, self._root)
        except TrialNotStarted as error:
            return {path: _untried(path, files, str(error)) for path in paths}
        return {path: self._load(path, files, tried[path]) for path in paths}

    def add(self, loaded: Mapping[str, _Loaded]) -> None:
        """Use these results in the next toolbox of the same files."""
        self._ahead |= loaded

    def toolbox(
        self, files: Mapping[str, bytes], unreadable: Mapping[str, Problem], live: Iterable[Plugin] = ()
    ) -> Toolbox:
        """Return the tools of these files, and those of the process. Files that are not loaded yet are loaded.

        A file that fails to load, or whose tool names are in use, keeps its plugin from `live`.
        """
        results = {path: _Loaded() for path in filter(is_plugin, unreadable)}
        for path in filter(is_plugin, files):
            results[path] = self._known(path, files) or self._load(path, files)
        self._loaded = results
        self._ahead = {path: later for path, later in self._ahead.items() if later is not results.get(path)}
        current = {plugin.path: plugin for plugin in live if plugin.path in self._loaded}
        problems: list[Problem] = []
        for path, loaded in sorted(self._loaded.items()):
            problems.extend(loaded.problems)
            if loaded.plugin:
                try:
                    self._index({**current, path: loaded.plugin}.values())
                    current[path] = loaded.plugin
                except ConfigError as error:
                    problems.append(Problem(path=path, message=error.message))
                except Exception as error:  # noqa: BLE001 - objects that a plugin defines may raise when they are inspected
                    problems.append(problem_from_exception(path, error))
        plugins = tuple(plugin for _, plugin in sorted(current.items()))
        extensions = {extension.name: extension for plugin in plugins for extension in plugin.extensions}
        digests = {tool.name: _digest(plugin) for plugin in plugins for tool in plugin.tools}
        digests |= {extension.name: _digest(plugin) for plugin in plugins for extension in plugin.extensions}
        for plugin in plugins:
            problems.extend(find_problems(plugin.path, partial(_missing_packages, plugin)))
        return Toolbox(self._index(plugins), extensions, digests, tuple(problems), plugins)

    def reject(self, failed: Mapping[Plugin, tuple[Problem, ...]]) -> None:
        """Remove plugins whose setup failed; `failed` maps each to the reasons."""
        for plugin, problems in failed.items():
            for results in (self._loaded, self._ahead):
                loaded = results.get(plugin.path)
                if loaded and loaded.plugin is plugin:
                    results[plugin.path] = replace(loaded, plugin=None, problems=problems)

    def _known(self, path: str, files: Mapping[str, bytes]) -> _Loaded | None:
        known = (self._ahead.get(path), self._loaded.get(path))
        return next((loaded for loaded in known if loaded and loaded.is_of(files)), None)

    def _is_loaded(self, path: str, files: Mapping[str, bytes]) -> bool:
        loaded = self._known(path, files)
        return loaded is not None and not (loaded.is_untried and loaded is self._loaded.get(path))

    def _load(self, path: str, files: Mapping[str, bytes], problems: tuple[Problem, ...] = ()) -> _Loaded:
        """Load a plugin file, unless its trial found problems."""
        self._loads += 1
        if self._loads % _LOADS_PER_COLLECTION == 0:
            gc.collect()
        try:
            if problems:
                return _Loaded(plugin_files(path, files), problems=problems)
            plugin = self._loader.load(path, files[path], files)
            return _Loaded(plugin.files, plugin)
        except PluginError as error:
            return _Loaded(plugin_files(path, files), problems=error.problems)
        except Exception as error:  # noqa: BLE001 - one plugin must not keep the others from loading
            return _Loaded(plugin_files(path, files), problems=(problem_from_exception(path, error),))

    def _index(self, plugins: Iterable[Plugin]) -> dict[str, Tool]:
        return index_tools([*self._own_tools, *(tool for plugin in plugins for tool in plugin.tools)])


def _used(paths: Iterable[str], files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the plugin files and their helpers."""
    return {name: source for path in paths for name, source in _present(plugin_files(path, files)).items()}


def _untried(path: str, files: Mapping[str, bytes], reason: str) -> _Loaded:
    message = f"is not loaded, because no process could be started to try it: {reason}"
    problem = Problem(path=path, message=message, hint="it is tried again when a file of the project is saved")
    return _Loaded(plugin_files(path, files), problems=(problem,), is_untried=True)


def _missing_packages(plugin: Plugin) -> Iterator[Problem]:
    """Yield a warning at each tool that needs a package that is not installed, unless it is in an extra of agentsd."""
    for tool in plugin.tools:
        if not needs_only_extras(tool.needs) and (missing := tool.missing_packages):
            code = getattr(unwrap(tool.function), "__code__", None)
            line = code and code.co_firstlineno
            yield Problem(path=plugin.path, line=line, message=missing, severity="warning")


def _digest(plugin: Plugin) -> str:
    """Return the digest of a plugin's file and its helper files."""
    return source_digest(*(part for file in sorted(_present(plugin.files).items()) for part in file))


def _present(files: Mapping[str, bytes | None]) -> dict[str, bytes]:
    return {path: source for path, source in files.items() if source is not None}
