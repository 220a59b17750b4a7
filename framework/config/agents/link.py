"""From files to agents that fit together. A file that does not fit leaves its last good version in its place.

All the agents of a generation are closed among themselves: whom they name is there, no name stands for two, no chain of
sub-agents bites its tail. Whatever breaks that is refused, and the rest is looked at again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from framework.config.agents.compile import (
    Agent,
    CompileContext,
    compile_agent,
    cycle_problems,
    remaining_problems,
    templates_of,
)
from framework.config.agents.extensions import extensions_of
from framework.config.agents.models import knows_models
from framework.config.agents.prices import PriceList, price_problems
from framework.config.agents.tightening import SavedPermissions, permission_warnings, read_permissions, tighten_agent
from framework.config.agents.toolbox import Toolbox
from framework.config.agents.unexpected_errors import problem_from_exception
from framework.config.files.snapshot import source_digest
from framework.config.templates.prompts import Prompts
from framework.config.yaml.document import Document
from framework.config.yaml.parse import ParseError
from framework.tools.toolset import filter_tools
from framework.types.problem import Problem
from framework.types.spec import AgentSpec

_ProblemsByPath = Mapping[str, Iterable[Problem]]
"""Problems by the path of the agent file they are about."""


@dataclass(frozen=True, slots=True)
class ParsedAgent:
    """An agent file that could be parsed."""

    spec: AgentSpec
    document: Document
    digest: str


@dataclass(frozen=True, slots=True)
class LinkContext:
    """What agents may refer to besides one another."""

    toolbox: Toolbox
    prompts: Prompts
    executors: Collection[str]
    models: Collection[str]
    prices: PriceList
    digests: dict[str, str] = field(default_factory=dict)
    """Kept from one build to the next: of a file and what it refers to here, by the digest of the file."""

    def reference_digest(self, own: ParsedAgent) -> str:
        """Of the file, the templates it reaches, the tools its rules match, its executor and hooks."""
        if own.digest not in self.digests:
            policy = own.spec.skill_policy
            patterns = [*policy.allow, *(rule.tool for rule in (*policy.deny, *policy.ask))]
            tools = filter_tools(self.toolbox.tools.values(), patterns) if patterns else []
            names = [*(tool.name for tool in tools), *extensions_of(own.spec)]
            templates = self.prompts.closure(templates_of(own.spec))
            self.digests[own.digest] = source_digest(
                own.digest,
                *(part for name, source in sorted(templates.items()) for part in (name, source)),
                *(part for name in names for part in (name, self.toolbox.digests.get(name, ""))),
                str(knows_models(own.spec, self.models)),
                *self._external_parts(own.spec, names),
            )
        return self.digests[own.digest]

    def _external_parts(self, spec: AgentSpec, tools: Iterable[str]) -> list[str]:
        """What of tool servers decides whether an agent can be used, and what it is offered."""
        if not spec.mcp_policy and not any(
            pattern.startswith(("mcp.", "skill.")) for pattern in spec.skill_policy.allow
        ):
            return sorted(self.toolbox.external.drifted.intersection(tools))
        external = self.toolbox.external
        return [
            *sorted(external.declared),
            *sorted(external.unavailable),
            *sorted(external.drifted.intersection(tools)),
        ]

    def retain_digests(self, used: Iterable[ParsedAgent]) -> None:
        """Let go of those of files that are no more as they were."""
        for digest in self.digests.keys() - {own.digest for own in used}:
            del self.digests[digest]


class Linker:
    """Links the agents of one generation; after `link`, `problems` says what could not be used."""

    def __init__(
        self, surroundings: LinkContext, parsed: Mapping[str, ParsedAgent], previous: Mapping[str, Agent]
    ) -> None:
        self._link_context = surroundings
        self._parsed = dict(parsed)
        self._previous = previous
        self._last_good = {agent.path: agent.last_good for agent in previous.values()}
        self._last_good_in_use: dict[str, Agent] = {}
        self._rejected: dict[str, list[Problem]] = {}
        self._compiled: dict[str, Agent] = {}
        self._name_warnings: list[Problem] = []
        self._stale_warnings: list[Problem] = []
        self._permissions: dict[str, SavedPermissions] = {}
        """What refused files say about rights."""
        self._unparsed: dict[str, bytes] = {}

    def reject(self, path: str, problems: Iterable[Problem], source: bytes | None = None) -> None:
        """Keep the last good version of a file, if there is one; `source`: the file, where it cannot be parsed."""
        self._rejected.setdefault(path, []).extend(problems)
        if source is not None:
            self._unparsed[path] = source
        own = self._parsed.pop(path, None)
        last_good = self._last_good.get(path) or (self._moved(own.spec.name) if own else None)
        if last_good is None:
            return
        self._last_good_in_use[path] = last_good
        if own:
            self._permissions[path] = _saved_permissions(own, last_good)
        elif source is not None and (saved := read_permissions(path, source, last_good.spec)):
            self._permissions[path] = saved

    def link(self) -> dict[str, Agent]:
        """The agents by name."""
        while (
            findings := self._duplicate_names() or self._cycles() or self._compile_errors() or self._cost_limit_errors()
        ):
            for path, problems in findings.items():
                self.reject(path, problems)
        for path, source in self._unparsed.items():
            self._rejected[path].extend(_remaining_problems(path, source, self._compile_context()))
        stale = [self._stale(path, agent) for path, agent in self._last_good_in_use.items()]
        fresh = (self._compiled[path] for path in self._parsed)
        return {agent.name: agent for agent in sorted((*fresh, *stale), key=lambda agent: agent.path)}

    @property
    def problems(self) -> list[Problem]:
        """Why files were refused, and what is odd about those that were not."""
        refused = [problem for problems in self._rejected.values() for problem in problems]
        warnings = [warning for path in self._parsed for warning in self._compiled[path].warnings]
        return [*refused, *self._name_warnings, *self._stale_warnings, *warnings]

    def _moved(self, name: str) -> Agent | None:
        """The last good version of an agent whose file has another path now."""
        agent = self._previous.get(name)
        return None if agent is None or agent.path in self._parsed or agent.path in self._rejected else agent.last_good

    def _stale(self, path: str, last_good: Agent) -> Agent:
        """The last good version, with what its file as saved restricts; the very object that is live, if it is that."""
        saved, why = self._permissions.get(path), tuple(self._rejected[path])
        agent = last_good
        if saved and saved.spec != last_good.spec:
            agent = tighten_agent(last_good, saved)
        self._stale_warnings.extend(permission_warnings(agent, saved, path))
        live = self._previous.get(agent.name)
        if live and (live.digest, live.stale, live.last_good.digest) == (agent.digest, why, last_good.digest):
            return live
        return replace(agent, stale=why)

    def _specs(self) -> dict[str, AgentSpec]:
        kept = {agent.name: agent.spec for agent in self._last_good_in_use.values()}
        return kept | {own.spec.name: own.spec for own in self._parsed.values()}

    def _compile_context(self) -> CompileContext:
        around = self._link_context
        return CompileContext(around.toolbox, around.prompts, self._specs(), around.executors, around.models)

    def _duplicate_names(self) -> _ProblemsByPath:
        """One file a name: of those that claim it, the one that served before goes on; at a first start none does."""
        claims: dict[str, list[str]] = {}
        for path, name in self._claimed_names():
            claims.setdefault(name, []).append(path)
        losers: dict[str, list[Problem]] = {}
        for name, paths in claims.items():
            owner = self._previous[name].path if name in self._previous else None
            for path in paths if len(paths) > 1 else ():
                others = ", ".join(sorted(set(paths) - {path}))
                if path in self._parsed:
                    document = self._parsed[path].document
                    problem = document.problem(("name",), f"the name {name!r} is also used by {others}")
                    (self._name_warnings if path == owner else losers.setdefault(path, [])).append(problem)
        return losers

    def _claimed_names(self) -> Iterable[tuple[str, str]]:
        yield from ((path, own.spec.name) for path, own in self._parsed.items())
        yield from ((path, agent.name) for path, agent in self._last_good_in_use.items())

    def _cycles(self) -> _ProblemsByPath:
        specs = self._specs()
        found = {path: list(cycle_problems(own.spec, own.document, specs)) for path, own in self._parsed.items()}
        return self._prefer_edited({path: problems for path, problems in found.items() if problems})

    def _compile_errors(self) -> _ProblemsByPath:
        """Compile what changed; what it is compiled from is all in its digest."""
        context = self._compile_context()
        alone = context.with_only(())
        found: dict[str, Iterable[Problem]] = {}
        for path, own in self._parsed.items():
            try:
                digest = self._digest(own, context.specs)
                versions = (self._compiled.get(path), self._last_good.get(path))
                known = next((agent for agent in versions if agent and agent.digest == digest), None)
                near = context.with_only(own.spec.sub_agents) if own.spec.sub_agents else alone
                fresh = known or replace(compile_agent(own.spec, own.document, digest, context)[0], context=near)
                self._compiled[path] = replace(fresh, stale=()) if fresh.stale else fresh
            except ParseError as error:
                found[path] = error.problems
            except Exception as error:  # noqa: BLE001 - whatever one file causes, the others go live
                found[path] = [problem_from_exception(path, error)]
        return self._prefer_edited(found)

    def _cost_limit_errors(self) -> _ProblemsByPath:
        """Cost limits that could not be enforced, of the agents as they are now."""
        specs, found = self._specs(), {}
        for path, own in self._parsed.items():
            if own.spec.runtime_policy.max_cost_usd is not None:
                found[path] = list(price_problems(own.spec, own.document, specs, self._link_context.prices))
        return self._prefer_edited({path: problems for path, problems in found.items() if problems})

    def _prefer_edited(self, found: _ProblemsByPath) -> _ProblemsByPath:
        """Blame those who changed: the others may fit again once these are back at their last good version."""
        edited = {path: found[path] for path in found if not self._is_unchanged(path)}
        return edited or found

    def _is_unchanged(self, path: str) -> bool:
        last_good = self._last_good.get(path)
        return last_good is not None and last_good.spec == self._parsed[path].spec

    def _digest(self, own: ParsedAgent, specs: Mapping[str, AgentSpec]) -> str:
        """Of the file, and of everything it refers to: of a sub-agent, what its parent sees of it."""
        digest = self._link_context.reference_digest(own)
        if not own.spec.sub_agents:
            return digest
        seen = {"name", "description", "inputs"}
        sub_agents = (
            specs[name].model_dump_json(include=seen) if name in specs else "" for name in own.spec.sub_agents
        )
        return source_digest(digest, *sub_agents)


def _remaining_problems(path: str, source: bytes, context: CompileContext) -> list[Problem]:
    try:
        return remaining_problems(path, source, context)
    except Exception as error:  # noqa: BLE001 - what is wrong with the file is known already
        return [problem_from_exception(path, error)]


def _saved_permissions(own: ParsedAgent, last_good: Agent) -> SavedPermissions:
    """What a file says about the rights of an agent; nothing, if it defines another one by now."""
    return SavedPermissions(own.spec if own.spec.name == last_good.name else last_good.spec, own.document)


def restrict_agents(
    live: Mapping[str, Agent],
    parsed: Mapping[str, ParsedAgent | ParseError],
    sources: Mapping[str, bytes],
    why: tuple[Problem, ...],
) -> tuple[dict[str, Agent], list[Problem]]:
    """The live agents, with whatever an edit that is refused as a whole restricts; and warnings about its files.

    Args:
        live: the agents by name.
        parsed: the agent files by path.
        sources: what they contain; a file that cannot be read is not among them, but in `parsed`.
        why: the edit is refused.
    """
    names = {result.spec.name: result for result in parsed.values() if isinstance(result, ParsedAgent)}
    held: dict[str, Agent] = {}
    found: list[Problem] = []
    for name, agent in live.items():
        last_good, result = agent.last_good, parsed.get(agent.path, names.get(name))
        if result is None:
            continue  # its file is gone
        held[name] = agent
        if isinstance(result, ParsedAgent):
            saved: SavedPermissions | None = _saved_permissions(result, last_good)
        else:
            source = sources.get(agent.path)
            saved = read_permissions(agent.path, source, last_good.spec) if source is not None else None
        if saved is None or saved.spec != last_good.spec:
            stricter = tighten_agent(last_good, saved) if saved else last_good
            if stricter.original and stricter.digest != agent.digest:
                held[name] = replace(stricter, stale=why)
            found.extend(permission_warnings(held[name], saved, agent.path))
    return held, found
