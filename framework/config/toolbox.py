"""The tools there are: the process's own, and those of the plugin files, each at its last good version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from framework.config.snapshot import digest_of
from framework.tools.plugins import Plugin, PluginError, PluginLoader
from framework.tools.relative import files_of, is_plugin
from framework.tools.tool import Tool
from framework.tools.toolset import index_tools
from framework.types.errors import ConfigError
from framework.types.problem import Problem


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A plugin file as it was last read, and as it last served."""

    source: Mapping[str, bytes | None] | None = None
    """The file and its helpers; none if it could not be read."""
    plugin: Plugin | None = None
    problems: tuple[Problem, ...] = ()
    serving: Plugin | None = None

    def is_of(self, files: Mapping[str, bytes]) -> bool:
        """Whether these files are what was read."""
        return self.source is not None and all(files.get(path) == source for path, source in self.source.items())


@dataclass(frozen=True, slots=True)
class Toolbox:
    """All tools of one generation."""

    tools: Mapping[str, Tool]
    digests: Mapping[str, str] = field(default_factory=dict)
    """Of the source of each tool that comes from a file, by the tool's name."""
    problems: tuple[Problem, ...] = ()
    plugins: tuple[Plugin, ...] = ()
    """Those that serve, with tools or without."""


class PluginShelf:
    """Loads plugin files when their bytes change, and remembers which version of each worked last."""

    def __init__(self, own_tools: Iterable[Tool]) -> None:
        self._own_tools = tuple(own_tools)
        self._loader = PluginLoader()
        self._loaded: dict[str, _Loaded] = {}

    @property
    def paths(self) -> list[str]:
        """The plugin files there were last."""
        return list(self._loaded)

    def toolbox(self, files: Mapping[str, bytes], unreadable: Mapping[str, Problem]) -> Toolbox:
        """The tools of these files. One that fails, or takes names that are in use, keeps its last good tools."""
        before, self._loaded = self._loaded, {}
        for path in filter(is_plugin, unreadable):
            self._loaded[path] = replace(before.get(path, _Loaded()), source=None, plugin=None, problems=())
        for path in filter(is_plugin, files):
            known = before.get(path, _Loaded())
            self._loaded[path] = known if known.is_of(files) else self._load(path, files, known)
        tools = {path: loaded.serving.tools for path, loaded in self._loaded.items() if loaded.serving}
        problems: list[Problem] = []
        for path in sorted(self._loaded):
            tools[path] = self._replace(path, tools, problems)
        serving = tuple(loaded.serving for _, loaded in sorted(self._loaded.items()) if loaded.serving)
        digests = {tool.name: _digest(plugin) for plugin in serving for tool in plugin.tools}
        return Toolbox(self._index(tools.values()), digests, tuple(problems), serving)

    def refuse(self, failed: Mapping[Plugin, tuple[Problem, ...]], serving: Iterable[Plugin]) -> None:
        """Take back plugins that cannot be used after all; those that `serving` has of the same files go on."""
        last_good = {plugin.path: plugin for plugin in serving}
        for plugin, problems in failed.items():
            loaded = self._loaded.get(plugin.path)
            if loaded and loaded.serving is plugin:
                good = last_good.get(plugin.path)
                self._loaded[plugin.path] = replace(loaded, plugin=None, problems=problems, serving=good)

    def _load(self, path: str, files: Mapping[str, bytes], known: _Loaded) -> _Loaded:
        try:
            plugin = self._loader.load(path, files[path], files)
            return replace(known, source=plugin.files, plugin=plugin, problems=())
        except PluginError as error:
            return replace(known, source=files_of(path, files), plugin=None, problems=error.problems)

    def _replace(self, path: str, tools: Mapping[str, tuple[Tool, ...]], problems: list[Problem]) -> tuple[Tool, ...]:
        """The tools of a file, if they fit beside those that serve already; else those that it served with last."""
        loaded = self._loaded[path]
        problems.extend(loaded.problems)
        if loaded.plugin:
            try:
                self._index([*(added for other, added in tools.items() if other != path), loaded.plugin.tools])
                self._loaded[path] = replace(loaded, serving=loaded.plugin)
            except ConfigError as error:
                problems.append(Problem(path=path, message=error.message))
        serving = self._loaded[path].serving
        return serving.tools if serving else ()

    def _index(self, added: Iterable[tuple[Tool, ...]]) -> dict[str, Tool]:
        return index_tools([*self._own_tools, *(tool for tools in added for tool in tools)])


def _digest(plugin: Plugin) -> str:
    """Of all that it was made from."""
    there = sorted((path, source) for path, source in plugin.files.items() if source is not None)
    return digest_of(*(part for file in there for part in file))
