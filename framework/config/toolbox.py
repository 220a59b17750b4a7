"""The tools there are: the process's own, and those of the plugin files, each at its last good version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from framework.config.snapshot import digest_of
from framework.tools.plugins import Plugin, PluginError, PluginLoader
from framework.tools.tool import Tool
from framework.tools.toolset import index_tools
from framework.types.errors import ConfigError
from framework.types.problem import Problem


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A plugin file as it was last read, and as it last served."""

    source: bytes | None = None
    plugin: Plugin | None = None
    problem: Problem | None = None
    serving: Plugin | None = None
    digest: str = ""
    """Of the source that serves."""


@dataclass(frozen=True, slots=True)
class Toolbox:
    """All tools of one generation."""

    tools: Mapping[str, Tool]
    digests: Mapping[str, str] = field(default_factory=dict)
    """Of the source of each tool that comes from a file, by the tool's name."""
    problems: tuple[Problem, ...] = ()


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
        for path in unreadable:
            self._loaded[path] = replace(before.get(path, _Loaded()), source=None, plugin=None, problem=None)
        for path, source in files.items():
            known = before.get(path, _Loaded())
            self._loaded[path] = known if known.source == source else self._load(path, source, known)
        tools = {path: loaded.serving.tools for path, loaded in self._loaded.items() if loaded.serving}
        problems: list[Problem] = []
        for path in sorted(self._loaded):
            tools[path] = self._replace(path, tools, problems)
        digests = {tool.name: self._loaded[path].digest for path, added in tools.items() for tool in added}
        return Toolbox(self._index(tools.values()), digests, tuple(problems))

    def _load(self, path: str, source: bytes, known: _Loaded) -> _Loaded:
        try:
            return replace(known, source=source, plugin=self._loader.load(path, source), problem=None)
        except PluginError as error:
            return replace(known, source=source, plugin=None, problem=error.problem)

    def _replace(self, path: str, tools: Mapping[str, tuple[Tool, ...]], problems: list[Problem]) -> tuple[Tool, ...]:
        """The tools of a file, if they fit beside those that serve already; else those that it served with last."""
        loaded = self._loaded[path]
        if loaded.problem:
            problems.append(loaded.problem)
        if loaded.plugin and loaded.source is not None:
            try:
                self._index([*(added for other, added in tools.items() if other != path), loaded.plugin.tools])
                self._loaded[path] = replace(loaded, serving=loaded.plugin, digest=digest_of(loaded.source))
            except ConfigError as error:
                problems.append(Problem(path=path, message=error.message))
        serving = self._loaded[path].serving
        return serving.tools if serving else ()

    def _index(self, added: Iterable[tuple[Tool, ...]]) -> dict[str, Tool]:
        return index_tools([*self._own_tools, *(tool for tools in added for tool in tools)])
