"""The tools of a generation: those of the process, of plugin files and of tool servers."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from inspect import unwrap
from pathlib import Path
from threading import Event
from types import MappingProxyType

from pydantic import ValidationError

from framework.config.yaml.document import Document, DocumentError, read_document
from framework.config.yaml.parse import (
    ParseError,
    data_path,
    expand,
    is_affected,
    mask_problems,
    sort_problems,
    validation_problems,
)
from framework.telemetry.redact import safe_traceback
from framework.tools.declaration import Extension
from framework.tools.logins import LoginStore
from framework.tools.openapi.operations import Fault
from framework.tools.openapi.source import ApiSource, BuiltApi, build_api, build_http_tool
from framework.tools.plugin_trial import TrialNotStarted, try_plugins
from framework.tools.plugins import Plugin, PluginError, PluginLoader, is_plugin, plugin_files
from framework.tools.remote_sources import ConnectionPool, PooledSource, SourceConfig
from framework.tools.skills import AgentSkill
from framework.tools.tool import Tool, source_of
from framework.tools.tool_source import ContractChange, Contracts
from framework.tools.toolset import index_tools
from framework.types.errors import ConfigError
from framework.types.installation import install_command, needs_only_extras
from framework.types.problem import Problem
from framework.types.redact import redact
from framework.types.text import bytes_digest, source_digest
from framework.types.tool_servers import A2aAgent, HttpTool, McpServer, OpenApi, SkillHost, Sources

log = logging.getLogger(__name__)


_MAX_CHARS = 500


def find_problems(path: str, find: Callable[[], Iterable[Problem]]) -> list[Problem]:
    """Return the problems that a check of the file at `path` finds, or the exception that it raises as a problem."""
    try:
        return list(find())
    except Exception as error:  # noqa: BLE001 - one file must not keep the others from going live
        return [problem_from_exception(path, error)]


def problem_from_exception(path: str, error: BaseException) -> Problem:
    """Return the problem of the file at `path`, and log where the exception was raised."""
    log.error("%s: unexpected error while reading the file: %s", path, safe_traceback(error))
    try:
        text = str(error)[:_MAX_CHARS]
    except BaseException:  # noqa: BLE001 - str() of a plugin's exception runs the plugin's code
        text = ""
    detail = f": {redact(text)}" if text else ""
    message = f"unexpected error: {type(error).__name__}{detail}".encode("utf-8", "backslashreplace").decode()
    return Problem(path=path, message=message)


_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class DeclaredSource:
    """The declaration of one MCP server, HTTP tool host, API or HTTP tool."""

    name: str
    """The prefix of its tool names: `mcp.docs`, `skill.files`, `billing`; of an HTTP tool or an agent, its name."""
    config: A2aAgent | McpServer | SkillHost | OpenApi | HttpTool
    document: Document
    path: tuple[str, str]

    def problem(self, message: str) -> Problem:
        """Return a warning at the line of the declaration. Only a warning: agents run without the source's tools."""
        problem = self.document.problem(self.path, message, at_key=True)
        return problem.model_copy(update={"severity": "warning", "excerpt": None})

    def error(self, message: str, *keys: str) -> Problem:
        """Return an error at the line of the declaration, or of a key of it."""
        problem = self.document.problem((*self.path, *keys), f"{self.name}: {message}", at_key=not keys)
        return problem.model_copy(update={"excerpt": None})


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """All sources that a project declares, by name."""

    declared: Mapping[str, DeclaredSource]
    problems: tuple[Problem, ...] = ()
    described: Mapping[str, DescribedTools] = field(default_factory=dict)
    """The tools that the files describe, by the name of the source."""

    @property
    def configs(self) -> dict[str, SourceConfig]:
        """The configurations, by name, of the sources that must be contacted."""
        configs = ((name, source.config) for name, source in self.declared.items() if name not in self.described)
        return {name: config for name, config in configs if not isinstance(config, HttpTool)}


@dataclass(frozen=True, slots=True)
class DescribedTools:
    """The tools of an API whose document is a file, or one HTTP tool."""

    made_from: tuple[HttpTool | OpenApi, bytes | None]
    """The entry, and the document; None without one."""
    number: int
    """Number that distinguishes it from earlier versions."""
    built: BuiltApi = field(default_factory=BuiltApi)
    faults: tuple[Fault, ...] = ()
    """Why the tools are not those of the current files, or why some are missing."""
    document: str = ""
    """Digest of the document that the tools are of, if the current one is usable."""

    def problems(self, source: DeclaredSource) -> Iterator[Problem]:
        """Yield the faults at the line of the document, or at the entry. A single operation is only a warning."""
        config = source.config
        is_warning = bool(self.document)
        for fault in self.faults:
            if fault.line is not None and isinstance(config, OpenApi):
                path, severity = config.document, "warning" if is_warning else "error"
                yield Problem.model_validate(
                    {"path": path, "line": fault.line, "message": fault.message, "severity": severity}
                )
            else:
                yield source.problem(f"{source.name}: {fault.message}") if is_warning else source.error(fault.message)


_ReadFile = tuple[bytes, tuple[DeclaredSource, ...], tuple[Problem, ...]]
"""The bytes of a file, the sources that it declares, and its problems."""


def _read_file(path: str, content: bytes, before: _ReadFile | None) -> _ReadFile:
    """Read a file. An invalid one keeps its last valid declarations."""
    last_valid = before[1] if before else ()
    try:
        return content, tuple(read_sources(path, content, os.environ)), ()
    except ParseError as error:
        return content, last_valid, error.problems
    except Exception as error:  # noqa: BLE001 - one file must not keep the others from being read
        return content, last_valid, (problem_from_exception(path, error),)


class SourceCache:
    """Reads the files when their bytes change. An invalid file keeps its last valid declarations."""

    def __init__(self, logins: LoginStore | None = None) -> None:
        """Create a cache; `logins` are those that tools use which the files describe."""
        self._logins = logins
        self._read: dict[str, _ReadFile] = {}
        self._described: dict[str, DescribedTools] = {}
        self._builds = 0

    def read(
        self,
        files: Mapping[str, bytes],
        unreadable: Mapping[str, Problem],
        documents: Mapping[str, bytes] = MappingProxyType({}),
    ) -> SourceFiles:
        """Return the sources that these files declare. For duplicate names, the first file by path wins.

        Args:
            files: files of plugins, by path.
            unreadable: files of plugins and documents that cannot be read, by path.
            documents: documents of APIs, by path.
        """
        before, self._read = self._read, {}
        for path in [path for path in unreadable if path in before]:
            self._read[path] = (b"", before[path][1], ())  # the snapshot reports the reason
        for path in (path for path in files if path.endswith(_SUFFIXES)):
            cached = before.get(path)
            self._read[path] = cached if cached and cached[0] == files[path] else _read_file(path, files[path], cached)
        declared: dict[str, DeclaredSource] = {}
        problems: list[Problem] = []
        for _, (_, sources, errors) in sorted(self._read.items()):
            problems.extend(errors)
            for source in sources:
                if first := declared.get(source.name):
                    message = f"{source.name} is already declared in {first.document.path}; this declaration is ignored"
                    problems.append(source.document.problem(source.path, message, at_key=True))
                else:
                    declared[source.name] = source
        self._described = self._described_tools(declared, documents, unreadable)
        for name, described in self._described.items():
            problems.extend(described.problems(declared[name]))
        return SourceFiles(declared, tuple(problems), self._described)

    def _described_tools(
        self,
        declared: Mapping[str, DeclaredSource],
        documents: Mapping[str, bytes],
        unreadable: Mapping[str, Problem],
    ) -> dict[str, DescribedTools]:
        """Return the tools that files describe. Those of entries and documents that did not change are the same."""
        found = {}
        for name, source in declared.items():
            config = source.config
            if isinstance(config, HttpTool) or (isinstance(config, OpenApi) and config.is_local):
                document = documents.get(config.document) if isinstance(config, OpenApi) else None
                before = self._described.get(name)
                if before is None or before.made_from != (config, document):
                    self._builds += 1
                    before = _describe(name, config, document, before, self._builds, self._logins)
                found[name] = before
                if isinstance(config, OpenApi) and config.document in unreadable:  # the snapshot reports the reason
                    found[name] = replace(before, faults=())
        return found


def _describe(
    name: str,
    config: HttpTool | OpenApi,
    document: bytes | None,
    before: DescribedTools | None,
    number: int,
    logins: LoginStore | None,
) -> DescribedTools:
    """Build the tools of an entry. If its document cannot be used, those of its last good version remain."""
    made_from = (config, document)
    last_good = before.built if before and before.made_from[0] == config else BuiltApi()
    try:
        if isinstance(config, HttpTool):
            return DescribedTools(made_from, number, BuiltApi((build_http_tool(name, config, logins),)))
        if document is None:
            return DescribedTools(made_from, number, last_good, (Fault(f"there is no file {config.document}"),))
        built = build_api(name, config, document, last_good, logins)
    except ConfigError as error:
        return DescribedTools(made_from, number, last_good, (Fault(error.message),))
    except Exception as error:  # noqa: BLE001 - one document must not keep the others from being read
        message = problem_from_exception(name, error).message
        return DescribedTools(made_from, number, last_good, (Fault(message),))
    if not built.is_usable:
        return DescribedTools(made_from, number, last_good, built.faults)
    return DescribedTools(made_from, number, built, built.faults, bytes_digest(document))


def read_sources(path: str, source: bytes, environ: Mapping[str, str]) -> Iterator[DeclaredSource]:
    """Yield the sources that one file declares. Raises ParseError, without lines that contain a secret."""
    try:
        document = read_document(path, source)
    except DocumentError as error:
        raise ParseError(mask_problems(error.problems, source)) from None
    data, unset = expand(document, environ)
    problems = [problem for _, problem in unset]
    try:
        sources = Sources.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False)
        own = [detail for detail in details if not is_affected(data_path(detail["loc"], data), unset)]
        problems += validation_problems(own if problems else details, document, Sources)
        raise ParseError(mask_problems(sort_problems(problems), source)) from None
    if problems := problems or document.empty_values():
        raise ParseError(mask_problems(problems, source))
    for name, server in sources.mcp_servers.items():
        yield DeclaredSource(f"mcp.{name}", server, document, ("mcp_servers", name))
    for name, host in sources.skill_hosts.items():
        yield DeclaredSource(f"skill.{name}", host, document, ("skill_hosts", name))
    for name, api in sources.openapi.items():
        yield DeclaredSource(name, api, document, ("openapi", name))
    for name, agent in sources.a2a_agents.items():
        yield DeclaredSource(f"agent.{name}", agent, document, ("a2a_agents", name))
    for name, tool in sources.http_tools.items():
        yield DeclaredSource(name, tool, document, ("http_tools", name))


_MCP_PREFIX = "mcp."
_CHANGE_TEXTS: Mapping[ContractChange, str] = {
    "changed": "has a different description or schema than the accepted one",
    "new": "was added after its server was accepted",
    "lower risk": "claims a lower risk, or to be idempotent, since it was accepted; the accepted values apply",
}
EDIT_WAIT_SECONDS = 3.0
"""Seconds that an edit waits for the servers it adds, after the first two seconds. Their tools may be added later."""


@dataclass(frozen=True, slots=True)
class ExternalTools:
    """The state of the tool servers at one moment. Immutable: later changes belong to a later generation."""

    declared: Mapping[str, str] = field(default_factory=dict)
    """`file:line` of the declaration of each source, by its name, such as `mcp.docs`."""
    sources: Mapping[str, PooledSource] = field(default_factory=dict)
    """The sources that were started, by name."""
    tools: tuple[Tool, ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict)
    """For each tool, its connection and its definition as text."""
    unavailable: frozenset[str] = frozenset()
    """Sources whose tools are not known."""
    drifted: frozenset[str] = frozenset()
    """Tools whose definition has changed since it was accepted, or that were added later."""
    problems: tuple[Problem, ...] = ()
    not_contacted: frozenset[str] = frozenset()
    """Sources that were not contacted because connecting is turned off."""
    configs: Mapping[str, SourceConfig | HttpTool] = field(default_factory=dict)
    """Configurations of the declared sources, by name."""

    def missing_for(self, patterns: Iterable[str]) -> Iterator[str]:
        """Yield why each unavailable source that these tool patterns name is unavailable, and where it is declared.

        Sources that were not contacted at all are not among them.
        """
        for name in sorted({source_of(pattern) for pattern in patterns} & (self.unavailable - self.not_contacted)):
            reason = next((problem for problem in self.problems if problem.message.startswith(f"{name} ")), None)
            yield f"{reason.message} ({reason.path}:{reason.line})" if reason else f"{name} is unavailable"

    @property
    def agents(self) -> dict[str, Tool]:
        """The tools of remote agents, by the names of the agents."""
        return {tool.name.removeprefix("agent."): tool for tool in self.tools if tool.source == "a2a"}

    @property
    def digest(self) -> str:
        """Equal as long as agents are offered the same tools. A reconnection alone does not change it."""
        tools = (part for name, digest in sorted(self.digests.items()) for part in (name, digest))
        return source_digest(*tools, *sorted(self.unavailable), *sorted(self.drifted))


async def discover(
    files: SourceFiles, pool: ConnectionPool | None, contracts: Contracts, *, starting: bool
) -> ExternalTools:
    """Connect to the declared sources and return their tools. Without a pool, no source is contacted.

    Args:
        files: the declarations.
        pool: the connections; None to contact no source.
        contracts: the accepted tool definitions.
        starting: wait until each source is connected or has failed. Otherwise wait a few seconds at most.
    """
    declared = {name: one.document.place(one.path) for name, one in files.declared.items()}
    opened = await pool.open(files.configs, None if starting else EDIT_WAIT_SECONDS) if pool else []
    rejected = pool.rejected if pool else {}
    tools = [tool for one in files.described.values() for tool in one.built.tools]
    tools += [tool for one in opened for tool in one.source.tools]
    accepted, changes = _compared(files, opened, tools, contracts, record=pool is not None)
    tools = [accepted.get(tool.name, tool) for tool in tools]
    faulty = {one.name for one in opened if one.source.faults and not one.source.tools}
    faulty |= {name for name, one in files.described.items() if not one.built.tools}
    silent = frozenset() if pool else frozenset(files.configs)
    return ExternalTools(
        declared,
        {one.name: one for one in opened},
        tuple(tools),
        _digests(files.described.values(), opened, accepted),
        frozenset({*silent, *rejected, *faulty, *(one.name for one in opened if not _is_known(one))}),
        frozenset(name for name, change in changes.items() if change != "lower risk"),
        (
            *files.problems,
            *(_without_sdk(files.declared) if pool is None else ()),
            *_problems(files.declared, opened, rejected, changes),
        ),
        silent,
        {name: one.config for name, one in files.declared.items()},
    )


def _compared(
    files: SourceFiles, opened: Iterable[PooledSource], tools: Iterable[Tool], contracts: Contracts, *, record: bool
) -> tuple[dict[str, Tool], dict[str, ContractChange]]:
    """Compare the tools whose definitions come from others with the accepted ones: those of MCP servers and APIs.

    Returns:
        The tools with accepted properties, and the changes that wait, both by name.
    """
    rated = [one.name for one in opened if isinstance(one.config, McpServer) and one.config.risk]
    documents = {name: one.document for name, one in files.described.items()}
    documents |= {one.name: one.source.document for one in opened if isinstance(one.source, ApiSource)}
    apis = {f"{name}." for name, one in files.declared.items() if isinstance(one.config, OpenApi)}
    described = [tool for tool in tools if tool.source == "a2a" or tool.name.startswith((_MCP_PREFIX, *apis))]
    pinned = [tool for tool in described if tool.name not in files.declared]  # an HTTP tool is the project's own
    documents = {name: digest for name, digest in documents.items() if digest}
    compared = contracts.compare(pinned, rated, documents, record=record) if pinned else []
    changes = {tool.name: change for tool, change in compared if change}
    return {tool.name: tool for tool, _ in compared}, changes


def _without_sdk(declared: Mapping[str, DeclaredSource]) -> Iterator[Problem]:
    """Yield a warning for each MCP server if the MCP SDK is not installed."""
    servers = [name for name in declared if name.startswith(_MCP_PREFIX)]
    if servers and find_spec("mcp") is None:
        for name in servers:
            yield declared[name].problem(f"{name} needs the MCP SDK: {install_command('agentsd[mcp]')}")


def _is_known(one: PooledSource) -> bool:
    return bool(one.source.tools or one.source.faults or one.is_started)


def _digests(
    described: Iterable[DescribedTools], opened: Iterable[PooledSource], accepted: Mapping[str, Tool]
) -> Mapping[str, str]:
    numbered = [(f"file {one.number}", one.built.tools) for one in described]
    numbered += [(str(one.number), one.source.tools) for one in opened]
    digests = {}
    for number, tools in numbered:
        for tool in (accepted.get(tool.name, tool) for tool in tools):
            digests[tool.name] = f"{number} {tool.contract} {tool.risk} {tool.idempotent} {tool.timeout}"
    return digests


def _problems(
    declared: Mapping[str, DeclaredSource],
    opened: Iterable[PooledSource],
    refused: Mapping[str, str],
    changes: Mapping[str, ContractChange],
) -> Iterator[Problem]:
    for name, reason in refused.items():
        yield declared[name].problem(f"{name} is unavailable: {reason}")
    for one in opened:
        for fault in one.source.faults:
            yield declared[one.name].problem(fault)
        if not _is_known(one):
            yield declared[one.name].problem(
                f"{one.name} has not responded yet: its tools become available when it does"
            )
    for name, change in changes.items():
        message = f"{name} {_CHANGE_TEXTS[change]}; review it, then run: agentsd tools accept {name}"
        yield declared[source_of(name)].problem(message)


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
    skills: Mapping[str, AgentSkill] = field(default_factory=dict)
    """The Agent Skills of the project, by name."""
    root: Path = Path()
    """The project's folder."""

    def with_external(self, external: ExternalTools) -> Toolbox:
        """Return a copy with the tools of servers. A tool whose wire name is already in use becomes a warning."""
        tools, problems = dict(self.tools), list(self.problems)
        names = {tool.definition.wire_name: tool.name for tool in tools.values()}
        for tool in external.tools:
            if tool.source == "a2a":  # only agents that list it under `agents` have it
                continue
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
        return Toolbox(self._index(plugins), extensions, digests, tuple(problems), plugins, root=self._root)

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
