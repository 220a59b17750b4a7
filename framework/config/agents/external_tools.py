"""Discovers the tools of MCP servers and skill hosts, and reports those that are unavailable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec

from framework.config.agents.sources import DeclaredSource, SourceFiles
from framework.config.files.snapshot import source_digest
from framework.tools.connection_pool import ConnectionPool, PooledSource
from framework.tools.contracts import ContractChange, Contracts
from framework.tools.tool import Tool
from framework.tools.tool_source import source_of
from framework.types.extras import install_command
from framework.types.problem import Problem
from framework.types.tool_servers import McpServer

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

    def missing_for(self, patterns: Iterable[str]) -> Iterator[str]:
        """Yield why each unavailable source that these tool patterns name is unavailable, and where it is declared.

        Sources that were not contacted at all are not among them.
        """
        for name in sorted({source_of(pattern) for pattern in patterns} & (self.unavailable - self.not_contacted)):
            reason = next((problem for problem in self.problems if problem.message.startswith(f"{name} ")), None)
            yield f"{reason.message} ({reason.path}:{reason.line})" if reason else f"{name} is unavailable"

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
    if pool is None:
        names, problems = frozenset(declared), (*files.problems, *_without_sdk(files.declared))
        return ExternalTools(declared, not_contacted=names, unavailable=names, problems=problems)
    opened = await pool.open(files.configs, None if starting else EDIT_WAIT_SECONDS)
    tools = [tool for one in opened for tool in one.source.tools]
    rated = [one.name for one in opened if isinstance(one.config, McpServer) and one.config.risk]
    compared = contracts.compare([tool for tool in tools if tool.name.startswith(_MCP_PREFIX)], rated) if tools else []
    accepted = {tool.name: tool for tool, _ in compared}
    tools = [accepted.get(tool.name, tool) for tool in tools]
    changes = {tool.name: change for tool, change in compared if change}
    faulty = {one.name for one in opened if one.source.faults and not one.source.tools}
    return ExternalTools(
        declared,
        {one.name: one for one in opened},
        tuple(tools),
        _digests(opened, accepted),
        frozenset({*pool.rejected, *faulty, *(one.name for one in opened if not _is_known(one))}),
        frozenset(name for name, change in changes.items() if change != "lower risk"),
        (*files.problems, *_problems(files.declared, opened, pool.rejected, changes)),
    )


def _without_sdk(declared: Mapping[str, DeclaredSource]) -> Iterator[Problem]:
    """Yield a warning for each MCP server if the MCP SDK is not installed."""
    servers = [name for name in declared if name.startswith(_MCP_PREFIX)]
    if servers and find_spec("mcp") is None:
        for name in servers:
            yield declared[name].problem(f"{name} needs the MCP SDK: {install_command('agentsd[mcp]')}")


def _is_known(one: PooledSource) -> bool:
    return bool(one.source.tools or one.source.faults or one.is_started)


def _digests(opened: Iterable[PooledSource], accepted: Mapping[str, Tool]) -> Mapping[str, str]:
    digests = {}
    for one in opened:
        for tool in (accepted.get(tool.name, tool) for tool in one.source.tools):
            digests[tool.name] = f"{one.number} {tool.contract} {tool.risk} {tool.idempotent} {tool.timeout}"
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
