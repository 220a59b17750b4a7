"""What tool servers give a generation: the tools they have now, and what is wrong with them."""

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
from framework.types.problem import Problem
from framework.types.tool_servers import McpServer

_MCP_PREFIX = "mcp."
_CHANGE_TEXTS: Mapping[ContractChange, str] = {
    "changed": "has another description or schema than when it was accepted",
    "new": "appeared after its server was accepted",
    "lower risk": "claims a lower risk, or to be repeatable, since it was accepted; what was accepted applies",
}
_EDIT_WAIT_SECONDS = 3.0
"""How long an edit waits for servers that it brings, after the first two seconds; their tools may come later."""


@dataclass(frozen=True, slots=True)
class ExternalTools:
    """Seen at one moment: a generation keeps it, whatever the servers say later."""

    declared: frozenset[str] = frozenset()
    """All sources by name, such as `mcp.docs`."""
    sources: Mapping[str, PooledSource] = field(default_factory=dict)
    """Those that were started."""
    tools: tuple[Tool, ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict)
    """By tool: whose it is and what it says of itself."""
    unavailable: frozenset[str] = frozenset()
    """Sources that cannot say which tools they have."""
    drifted: frozenset[str] = frozenset()
    """Tools that describe themselves differently than when they were accepted, or appeared later."""
    problems: tuple[Problem, ...] = ()
    not_contacted: frozenset[str] = frozenset()
    """Sources that were left alone, as nothing was to be connected to."""

    @property
    def digest(self) -> str:
        """Equal as long as agents are given the same; a connection that comes and goes is no other generation."""
        tools = (part for name, digest in sorted(self.digests.items()) for part in (name, digest))
        return source_digest(*tools, *sorted(self.unavailable), *sorted(self.drifted))


async def discover(
    files: SourceFiles, pool: ConnectionPool | None, contracts: Contracts, *, starting: bool
) -> ExternalTools:
    """Connect to what is declared, and see what is there. Without a pool nothing is connected to.

    When the process is `starting`, nobody is kept waiting by waiting for all; an edit waits a few seconds at most.
    """
    declared = frozenset(files.declared)
    if pool is None:
        problems = (*files.problems, *_without_sdk(files.declared))
        return ExternalTools(declared, not_contacted=declared, unavailable=declared, problems=problems)
    wanted = {name: source.config for name, source in files.declared.items()}
    opened = await pool.open(wanted, None if starting else _EDIT_WAIT_SECONDS)
    tools = [tool for one in opened for tool in one.source.tools]
    rated = [one.name for one in opened if isinstance(one.config, McpServer) and one.config.risk]
    compared = contracts.compare([tool for tool in tools if tool.name.startswith(_MCP_PREFIX)], rated) if tools else []
    held = {tool.name: tool for tool, _ in compared}
    tools = [held.get(tool.name, tool) for tool in tools]
    waiting = {tool.name: change for tool, change in compared if change}
    faulty = {one.name for one in opened if one.source.faults and not one.source.tools}
    return ExternalTools(
        declared,
        {one.name: one for one in opened},
        tuple(tools),
        _digests(opened, held),
        frozenset({*pool.rejected, *faulty, *(one.name for one in opened if not _has_said(one))}),
        frozenset(name for name, change in waiting.items() if change != "lower risk"),
        (*files.problems, *_problems(files.declared, opened, pool.rejected, waiting)),
    )


def _without_sdk(declared: Mapping[str, DeclaredSource]) -> Iterator[Problem]:
    """What connecting would say first of each MCP server where the extra is missing."""
    servers = [name for name in declared if name.startswith(_MCP_PREFIX)]
    if servers and find_spec("mcp") is None:
        for name in servers:
            yield declared[name].problem(f"{name} needs the MCP SDK: pip install 'agentsd[mcp]'")


def _has_said(one: PooledSource) -> bool:
    return bool(one.source.tools or one.source.faults or one.is_started)


def _digests(opened: Iterable[PooledSource], held: Mapping[str, Tool]) -> Mapping[str, str]:
    found = {}
    for one in opened:
        for tool in (held.get(tool.name, tool) for tool in one.source.tools):
            found[tool.name] = f"{one.number} {tool.contract} {tool.risk} {tool.idempotent} {tool.timeout}"
    return found


def _problems(
    declared: Mapping[str, DeclaredSource],
    opened: Iterable[PooledSource],
    refused: Mapping[str, str],
    waiting: Mapping[str, ContractChange],
) -> Iterator[Problem]:
    for name, why in refused.items():
        yield declared[name].problem(f"{name} cannot be used: {why}")
    for one in opened:
        for fault in one.source.faults:
            yield declared[one.name].problem(fault)
        if not _has_said(one):
            yield declared[one.name].problem(f"{one.name} has not answered yet: its tools come when it does")
    for name, change in waiting.items():
        message = f"{name} {_CHANGE_TEXTS[change]}; review it, then run: agentsd tools accept {name}"
        yield declared[source_of(name)].problem(message)
