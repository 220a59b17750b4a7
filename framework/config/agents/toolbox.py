"""The tools there are: the process's own, and those of the plugin files, each at its last good version."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from framework.config.agents.external_tools import ExternalTools
from framework.config.agents.unexpected_errors import problem_from_exception
from framework.config.files.snapshot import source_digest
from framework.tools.extension import Extension
from framework.tools.plugins.helper_files import is_plugin, plugin_files
from framework.tools.plugins.loader import Plugin, PluginError, PluginLoader
from framework.tools.plugins.trial import trial_load
from framework.tools.tool import Tool
from framework.tools.toolset import index_tools
from framework.types.errors import ConfigError
from framework.types.problem import Problem

_LOADS_PER_COLLECTION = 20
"""Modules are in cycles, and what pydantic keeps for them is large: left to itself the collector comes too late."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A plugin file as it was last read."""

    source: Mapping[str, bytes | None] | None = None
    """The file and its helpers; none if it could not be read."""
    plugin: Plugin | None = None
    problems: tuple[Problem, ...] = ()

    def is_of(self, files: Mapping[str, bytes]) -> bool:
        """Whether these files are what was read."""
        return self.source is not None and all(files.get(path) == source for path, source in self.source.items())


@dataclass(frozen=True, slots=True)
class Toolbox:
    """All tools of one generation."""

    tools: Mapping[str, Tool]
    extensions: Mapping[str, Extension] = field(default_factory=dict)
    """Executors and hooks of plugins."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """Of the source of each tool and extension that comes from a file, by its name."""
    problems: tuple[Problem, ...] = ()
    plugins: tuple[Plugin, ...] = ()
    """Those that serve, with tools or without."""
    external: ExternalTools = field(default_factory=ExternalTools)
    """What tool servers give."""

    def with_external(self, external: ExternalTools) -> Toolbox:
        """The same, and the tools of servers; of one whose name is taken on the wire, a problem."""
        tools, problems = dict(self.tools), list(self.problems)
        taken = {tool.definition.wire_name: tool.name for tool in tools.values()}
        for tool in external.tools:
            wire = tool.definition.wire_name
            if wire in taken:
                message = f"{tool.name} cannot be used: to models its name is the same as that of {taken[wire]}"
                problems.append(Problem(path="plugins", message=message, severity="warning"))
            else:
                tools[tool.name], taken[wire] = tool, tool.name
        digests = {**self.digests, **external.digests}
        problems.extend(external.problems)
        return replace(self, tools=tools, digests=digests, problems=tuple(problems), external=external)


class PluginCache:
    """Loads plugin files when their bytes change."""

    def __init__(self, own_tools: Iterable[Tool]) -> None:
        self._own_tools = tuple(own_tools)
        self._loader = PluginLoader()
        self._loaded: dict[str, _Loaded] = {}
        self._loads = 0

    @property
    def paths(self) -> list[str]:
        """The plugin files there were last."""
        return list(self._loaded)

    def toolbox(
        self,
        files: Mapping[str, bytes],
        unreadable: Mapping[str, Problem],
        live: Iterable[Plugin] = (),
        *,
        is_serving: bool = False,
    ) -> Toolbox:
        """The tools of these files. One that fails, or takes names that are in use, keeps the tools it has `live`.

        Where the process is serving already, a file that changed is loaded in a child process first.
        """
        before = self._loaded
        self._loaded = {path: _Loaded() for path in filter(is_plugin, unreadable)}
        for path in filter(is_plugin, files):
            known = before.get(path, _Loaded())
            self._loaded[path] = known if known.is_of(files) else self._load(path, files, trial=is_serving)
        kept = {plugin.path: plugin for plugin in live if plugin.path in self._loaded}
        problems: list[Problem] = []
        for path, loaded in sorted(self._loaded.items()):
            problems.extend(loaded.problems)
            if loaded.plugin:
                try:
                    self._index({**kept, path: loaded.plugin}.values())
                    kept[path] = loaded.plugin
                except ConfigError as error:
                    problems.append(Problem(path=path, message=error.message))
                except Exception as error:  # noqa: BLE001 - what a plugin defines may raise when it is looked at
                    problems.append(problem_from_exception(path, error))
        plugins = tuple(plugin for _, plugin in sorted(kept.items()))
        extensions = {extension.name: extension for plugin in plugins for extension in plugin.extensions}
        digests = {tool.name: _digest(plugin) for plugin in plugins for tool in plugin.tools}
        digests |= {extension.name: _digest(plugin) for plugin in plugins for extension in plugin.extensions}
        return Toolbox(self._index(plugins), extensions, digests, tuple(problems), plugins)

    def reject(self, failed: Mapping[Plugin, tuple[Problem, ...]]) -> None:
        """Take back plugins that cannot be used after all, and why."""
        for plugin, problems in failed.items():
            loaded = self._loaded.get(plugin.path)
            if loaded and loaded.plugin is plugin:
                self._loaded[plugin.path] = replace(loaded, plugin=None, problems=problems)

    def _load(self, path: str, files: Mapping[str, bytes], *, trial: bool) -> _Loaded:
        self._loads += 1
        if self._loads % _LOADS_PER_COLLECTION == 0:
            gc.collect()
        try:
            if trial and (problems := trial_load(path, _present(plugin_files(path, files)))):
                return _Loaded(plugin_files(path, files), problems=problems)
            plugin = self._loader.load(path, files[path], files)
            return _Loaded(plugin.files, plugin)
        except PluginError as error:
            return _Loaded(plugin_files(path, files), problems=error.problems)
        except Exception as error:  # noqa: BLE001 - whatever one plugin causes, the others are loaded
            return _Loaded(plugin_files(path, files), problems=(problem_from_exception(path, error),))

    def _index(self, plugins: Iterable[Plugin]) -> dict[str, Tool]:
        return index_tools([*self._own_tools, *(tool for plugin in plugins for tool in plugin.tools)])


def _digest(plugin: Plugin) -> str:
    """Of all that it was made from."""
    return source_digest(*(part for file in sorted(_present(plugin.files).items()) for part in file))


def _present(files: Mapping[str, bytes | None]) -> dict[str, bytes]:
    return {path: source for path, source in files.items() if source is not None}
