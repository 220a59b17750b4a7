"""What the agents of a generation are linked from: the parsed files, and everything that they may refer to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import TypeVar

from framework.config.agents.compile import Agent, extension_names, template_names
from framework.config.agents.models import Budgets, PriceList, are_models_known
from framework.config.agents.toolbox import Toolbox
from framework.config.files.snapshot import source_digest
from framework.config.templates.prompts import Prompts
from framework.config.yaml.document import Document
from framework.tools.tool_source import source_of
from framework.tools.toolset import Globs, filter_tools
from framework.types.problem import Problem
from framework.types.spec import AgentSpec


@dataclass(frozen=True, slots=True)
class ParsedAgent:
    """A valid agent file."""

    spec: AgentSpec
    document: Document
    digest: str
    models: tuple[str, ...] = ()
    """The models that the file names."""


@dataclass(frozen=True, slots=True)
class LinkContext:
    """Everything that agents may refer to, except other agents."""

    toolbox: Toolbox
    prompts: Prompts
    executors: Collection[str]
    models: Collection[str]
    prices: PriceList
    budgets: Budgets = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    """Cache of `reference_digest` by the digest of the agent file; kept from one build to the next."""

    def reference_digest(self, parsed: ParsedAgent) -> str:
        """Return the digest of an agent file, its templates, the tools its rules match, its executor and its hooks."""
        if parsed.digest not in self.digests:
            policy = parsed.spec.skill_policy
            patterns = [*policy.allow, *(rule.tool for rule in (*policy.deny, *policy.ask))]
            tools = filter_tools(self.toolbox.tools.values(), patterns) if patterns else []
            names = [*(tool.name for tool in tools), *extension_names(parsed.spec)]
            templates = self.prompts.closure(template_names(parsed.spec))
            self.digests[parsed.digest] = source_digest(
                parsed.digest,
                *(part for name, source in sorted(templates.items()) for part in (name, source)),
                *(part for name in names for part in (name, self.toolbox.digests.get(name, ""))),
                str(are_models_known(parsed.spec, self.models)),
                *(name for name in parsed.spec.budgets if name not in self.budgets),
                *self._skill_parts(parsed.spec),
                str(self.prices.window(parsed.spec.model) if policy.defer == "auto" else None),
                *self._external_parts(parsed.spec, names),
            )
        return self.digests[parsed.digest]

    def _skill_parts(self, spec: AgentSpec) -> list[str]:
        """Return the names and digests of the skills that an agent's patterns match, denied ones included."""
        allowed = spec.skills
        patterns = [*allowed.allow, *allowed.preload, *(rule.skill for rule in allowed.deny)]
        if not patterns:
            return []
        names = sorted(Globs(patterns).matching(self.toolbox.skills))
        return [part for name in names for part in (name, self.toolbox.skills[name].digest)]

    def _external_parts(self, spec: AgentSpec, tools: Iterable[str]) -> list[str]:
        """Return the state of tool servers that affects whether an agent is valid and which tools it is offered."""
        external = self.toolbox.external
        drifted = sorted(external.drifted.intersection(tools))
        sources = {source_of(pattern) for pattern in spec.skill_policy.allow}
        servers = (source for source in sources if source.startswith(("mcp.", "skill.")))
        if not spec.mcp_policy and not any(servers) and sources.isdisjoint((*external.declared, *external.unavailable)):
            return drifted
        return [*sorted(external.declared), *sorted(external.unavailable), *drifted]

    def forget(self, parsed: ParsedAgent) -> None:
        """Remove the cached digest of a file that was replaced or deleted."""
        self.digests.pop(parsed.digest, None)


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Linked:
    """The linked agents of one generation, from which the next one is linked."""

    context: LinkContext
    agents: Mapping[str, Agent]
    """All agents by name, sorted by path."""
    parsed: Mapping[str, ParsedAgent]
    """The files that are in effect, by path."""
    compiled: Mapping[str, Agent]
    """The agents of these files, by path."""
    rejected: tuple[Agent, ...]
    """The agents whose files are rejected, in their last good version."""
    specs: Mapping[str, AgentSpec]
    """The specs of both, by name."""
    parents: Set[str]
    """The paths of files whose agents have sub-agents; they also depend on other files."""
    warnings: Mapping[str, tuple[Problem, ...]]
    """The warnings about files in effect, by path; only of files with warnings."""
    relinked: tuple[Agent, ...]
    """The agents that were not settled."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The settled agents."""

    agents: Mapping[str, Agent]
    """By path."""
    specs: Mapping[str, AgentSpec]
    """By name."""
    warnings: Mapping[str, tuple[Problem, ...]]
    """By path."""
    last_good: Mapping[str, Agent]
    """The last good versions of all live agents, settled or not, by path."""
    live: Mapping[str, Agent]
    """All live agents by name, sorted by path; empty if none is settled."""
    others: Set[str]
    """The names of those that are not settled."""

    @classmethod
    def of(
        cls, context: LinkContext, parsed: Mapping[str, ParsedAgent], live: Mapping[str, Agent], base: Linked | None
    ) -> Settled:
        """Return the agents of these files that are settled. None is, unless `base` tells how all were linked."""
        if base is None or base.context is not context or base.agents is not live:
            return cls({}, {}, {}, {agent.path: agent.last_good for agent in live.values()}, {}, frozenset())
        before, parents = base.parsed, base.parents
        affected = [path for path, file in before.items() if parsed.get(path) is not file or path in parents]
        names = {base.compiled[path].name for path in affected} | {agent.name for agent in base.rejected}
        return cls(
            _without(base.compiled, affected),
            _without(base.specs, names),
            _without(base.warnings, affected),
            {**base.compiled, **{agent.path: agent for agent in base.rejected}},
            live,
            names,
        )

    def owner(self, name: str) -> str | None:
        """Return the path of the settled agent of this name."""
        agent = self.live.get(name)
        return None if agent is None or name in self.others else agent.path

    def with_others(self, agents: Collection[Agent]) -> dict[str, Agent]:
        """Return all agents by name, sorted by path. `agents` are those that are not settled."""
        combined = dict(self.live)
        if self.others == {agent.name for agent in agents} and all(
            combined[agent.name].path == agent.path for agent in agents
        ):
            combined.update((agent.name, agent) for agent in agents)
            return combined
        for name in self.others:
            del combined[name]
        everything = sorted((*combined.values(), *agents), key=lambda agent: agent.path)
        return {agent.name: agent for agent in everything}


def _without(entries: Mapping[str, T], keys: Collection[str]) -> dict[str, T]:
    remaining = dict(entries)
    for key in keys:
        remaining.pop(key, None)
    return remaining
