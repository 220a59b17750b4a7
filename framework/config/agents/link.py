"""Links the agents of a generation; a file with errors keeps its last good version.

The agents of a generation form a closed set: every referenced agent exists, names are unique, and sub-agent references
contain no cycle. A file that violates this is rejected, and the remaining files are linked again without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from framework.config.agents.compile import Agent, CompileContext, compile_agent, cycle_problems
from framework.config.agents.findings import (
    BrokenAgent,
    RejectedAgent,
    broken_agent,
    hidden_problems,
    read_valid_parts,
)
from framework.config.agents.link_context import LinkContext, ParsedAgent
from framework.config.agents.model_settings import model_setting_problems
from framework.config.agents.prices import budget_price_problems, price_problems
from framework.config.agents.settled import Linked, Settled
from framework.config.agents.tightening import (
    SavedPermissions,
    permission_warnings,
    read_permissions,
    saved_permissions,
    tighten_agent,
)
from framework.config.agents.unexpected_errors import find_problems, problem_from_exception
from framework.config.files.snapshot import source_digest
from framework.config.yaml.document import Document
from framework.config.yaml.parse import ParseError
from framework.types.problem import Problem
from framework.types.spec import AgentSpec

_ProblemsByPath = Mapping[str, Iterable[Problem]]


class Linker:
    """Links the agents of one generation. After `link`, `problems` contains the errors and warnings."""

    def __init__(
        self,
        context: LinkContext,
        parsed: Mapping[str, ParsedAgent],
        previous: Mapping[str, Agent],
        base: Linked | None = None,
    ) -> None:
        """Prepare to link files.

        Args:
            context: everything that agents may refer to, except other agents.
            parsed: the valid files, by path.
            previous: the live agents, by name.
            base: how the live agents were linked, if that is known.
        """
        self._context = context
        self._parsed = dict(parsed)
        self._previous = previous
        self._settled = settled = Settled.of(context, parsed, previous, base)
        self._unsettled = {path: file for path, file in parsed.items() if path not in settled.agents}
        """The files whose agents are compiled and checked."""
        self._last_good = settled.last_good
        self._all_specs: Mapping[str, AgentSpec] | None = None
        """The result of `_specs`, until a file is rejected."""
        self._fallbacks: dict[str, Agent] = {}
        """The last good versions that replace rejected files, by path."""
        self._rejected: dict[str, list[Problem]] = {}
        self._compiled: dict[str, Agent] = {}
        self._name_warnings: list[Problem] = []
        self._price_warnings: dict[str, tuple[Problem, ...]] = {}
        self._stale_warnings: list[Problem] = []
        self._permissions: dict[str, SavedPermissions] = {}
        """The permissions in rejected files, by path."""
        self._unparsed: dict[str, bytes] = {}
        """The rejected files that do not parse, by path."""
        self._rejected_agents: dict[str, RejectedAgent] = {}
        """The valid parts of rejected files, by path."""

    def reject(self, path: str, problems: Iterable[Problem], source: bytes | None = None) -> None:
        """Reject a file, and use its last good version if there is one. Pass `source` if the file does not parse."""
        self._rejected.setdefault(path, []).extend(problems)
        if source is not None:
            self._unparsed[path] = source
        parsed, self._all_specs = self._parsed.pop(path, None), None
        self._unsettled.pop(path, None)
        if parsed:
            self._rejected_agents[path] = RejectedAgent(parsed.spec, parsed.document)
        last_good = self._last_good.get(path) or (self._moved(parsed.spec.name) if parsed else None)
        if last_good is None:
            return
        self._fallbacks[path] = last_good
        if parsed:
            self._permissions[path] = saved_permissions(parsed, last_good)
        elif source is not None:
            self._read_permissions(path, source, last_good)

    def _read_permissions(self, path: str, source: bytes, last_good: Agent) -> None:
        try:
            if permissions := read_permissions(path, source, last_good.spec):
                self._permissions[path] = permissions
        except Exception as error:  # noqa: BLE001 - one file must not keep the others from going live
            self._rejected[path].append(problem_from_exception(path, error))

    def link(self) -> Linked:
        """Return the agents."""
        while problems_by_path := self._next_errors():
            for path, problems in problems_by_path.items():
                self.reject(path, problems)
        self._add_hidden_problems()
        stale = [self._stale(path, agent) for path, agent in self._fallbacks.items()]
        fresh = {path: self._compiled[path] for path in self._unsettled}
        relinked = (*fresh.values(), *stale)
        agents = self._settled.with_others(relinked)
        return Linked(
            self._context,
            agents,
            self._parsed,
            {**self._settled.agents, **fresh},
            tuple(self._fallbacks.values()),
            self._specs(),
            {path for path, file in self._unsettled.items() if file.spec.sub_agents},
            self._file_warnings(),
            relinked,
        )

    @property
    def problems(self) -> list[Problem]:
        """The errors of rejected files, and the warnings about all files."""
        errors = [problem for problems in self._rejected.values() for problem in problems]
        warnings = [warning for warnings in self._file_warnings().values() for warning in warnings]
        return [*errors, *self._name_warnings, *self._stale_warnings, *warnings]

    @property
    def broken(self) -> list[BrokenAgent]:
        """The agents whose files are rejected and have no last good version."""
        return [
            broken_agent(path, self._unparsed.get(path), self._rejected_agents.get(path), problems)
            for path, problems in self._rejected.items()
            if path not in self._fallbacks
        ]

    def _file_warnings(self) -> dict[str, tuple[Problem, ...]]:
        """Return the warnings about each file that is in effect, except for those that other files cause."""
        found = dict(self._settled.warnings)
        for path in self._unsettled:
            if warnings := (*self._price_warnings.get(path, ()), *self._compiled[path].warnings):
                found[path] = warnings
        return found

    def _next_errors(self) -> _ProblemsByPath:
        return self._duplicate_names() or self._cycles() or self._compile_errors() or self._model_errors()

    def _add_hidden_problems(self) -> None:
        """Add the errors of rejected files that their first errors hid; a place with an error gets no second one."""
        for path, source in self._unparsed.items():
            try:
                if valid := read_valid_parts(path, source):
                    self._rejected_agents[path] = valid
            except Exception as error:  # noqa: BLE001 - the file has been rejected already
                self._rejected[path].append(problem_from_exception(path, error))
        if not self._rejected_agents:
            return
        named = [(path, agent) for path, agent in self._rejected_agents.items() if agent.is_named]
        specs = {**{agent.spec.name: agent.spec for _, agent in named}, **self._specs()}
        claims = {*self._claimed_names(), *((path, agent.spec.name) for path, agent in named)}
        for path, agent in self._rejected_agents.items():
            context = replace(self._compile_context(), specs={**specs, agent.spec.name: agent.spec})
            prices, budgets = self._context.prices, self._context.budgets
            found = find_problems(path, partial(hidden_problems, agent, context, prices, budgets))
            owner = self._settled.owner(agent.spec.name)
            owners = {owner} if owner else set[str]()
            if others := owners | {other for other, name in claims if name == agent.spec.name and other != path}:
                found.append(_duplicate_name(agent.document, agent.spec.name, others))
            places = {(problem.path, problem.line, problem.column) for problem in self._rejected[path]}
            self._rejected[path] += (one for one in found if (one.path, one.line, one.column) not in places)

    def _moved(self, name: str) -> Agent | None:
        """Return the last good version of an agent whose file was moved to another path."""
        agent = self._previous.get(name)
        return None if agent is None or agent.path in self._parsed or agent.path in self._rejected else agent.last_good

    def _stale(self, path: str, last_good: Agent) -> Agent:
        """Return the last good version with the restrictions in its saved file; the live object if that is equal."""
        permissions, reasons = self._permissions.get(path), tuple(self._rejected[path])
        live = self._previous.get(last_good.name)
        agent = last_good
        try:
            if permissions and permissions.spec != last_good.spec:
                agent = tighten_agent(last_good, permissions)
            self._stale_warnings.extend(permission_warnings(agent, permissions, path))
        except Exception as error:  # noqa: BLE001 - one file must not keep the others from going live
            reasons = (*reasons, problem_from_exception(path, error))
            self._rejected[path] = list(reasons)
            return replace(live or last_good, stale=reasons)
        if live and (live.digest, live.stale, live.last_good.digest) == (agent.digest, reasons, last_good.digest):
            return live
        return replace(agent, stale=reasons)

    def _specs(self) -> Mapping[str, AgentSpec]:
        """Return the specs of all agents by name."""
        if self._all_specs is None:
            fallbacks = {agent.name: agent.spec for agent in self._fallbacks.values()}
            others = {file.spec.name: file.spec for file in self._unsettled.values()}
            self._all_specs = {**self._settled.specs, **fallbacks, **others}
        return self._all_specs

    def _compile_context(self) -> CompileContext:
        context = self._context
        budgets = context.budgets.keys()
        return CompileContext(
            context.toolbox, context.prompts, self._specs(), context.executors, context.models, budgets
        )

    def _duplicate_names(self) -> _ProblemsByPath:
        """Return errors for duplicate names.

        The file that already owns the name keeps it. At the first load there is no owner: every claimant is rejected.
        """
        claimed = list(self._claimed_names())
        names = {name for _, name in claimed}
        owners = {name: owner for name in names if (owner := self._settled.owner(name))}
        if len(names) == len(claimed) and not owners:
            return {}
        claims: dict[str, list[str]] = {name: [owner] for name, owner in owners.items()}
        for path, name in claimed:
            claims.setdefault(name, []).append(path)
        rejected: dict[str, list[Problem]] = {}
        for name, paths in claims.items():
            owner = self._previous[name].path if name in self._previous else None
            for path in paths if len(paths) > 1 else ():
                if path in self._parsed:
                    problem = _duplicate_name(self._parsed[path].document, name, set(paths) - {path})
                    (self._name_warnings if path == owner else rejected.setdefault(path, [])).append(problem)
        return rejected

    def _claimed_names(self) -> Iterable[tuple[str, str]]:
        """Yield path and name of each agent that is not settled."""
        yield from ((path, parsed.spec.name) for path, parsed in self._unsettled.items())
        yield from ((path, agent.name) for path, agent in self._fallbacks.items())

    def _cycles(self) -> _ProblemsByPath:
        parents = {path: parsed for path, parsed in self._unsettled.items() if parsed.spec.sub_agents}
        if not parents:
            return {}
        specs = self._specs()
        problems = {
            path: find_problems(path, partial(cycle_problems, parsed.spec, parsed.document, specs))
            for path, parsed in parents.items()
        }
        return self._prefer_edited({path: errors for path, errors in problems.items() if errors})

    def _compile_errors(self) -> _ProblemsByPath:
        """Compile the agents whose digest changed: it covers everything that an agent is compiled from."""
        context = self._compile_context()
        without_agents = context.with_only(())
        problems: dict[str, Iterable[Problem]] = {}
        for path, parsed in self._unsettled.items():
            spec = parsed.spec
            try:
                digest = self._digest(parsed, context.specs)
                agent = self._unchanged(path, digest)
                if agent is None:
                    own = context.with_only(spec.sub_agents) if spec.sub_agents else without_agents
                    agent = replace(compile_agent(spec, parsed.document, digest, context)[0], context=own)
                self._compiled[path] = replace(agent, stale=()) if agent.stale else agent
            except ParseError as error:
                problems[path] = error.problems
            except Exception as error:  # noqa: BLE001 - one file must not keep the others from going live
                problems[path] = [problem_from_exception(path, error)]
        return self._prefer_edited(problems)

    def _unchanged(self, path: str, digest: str) -> Agent | None:
        """Return the version of an agent that was compiled with this digest."""
        for agent in (self._compiled.get(path), self._last_good.get(path)):
            if agent is not None and agent.digest == digest:
                return agent
        return None

    def _model_errors(self) -> _ProblemsByPath:
        """Return errors for cost limits and settings that the agents' models do not support, and keep warnings."""
        specs, problems = self._specs(), {}
        self._price_warnings = {}
        for path, parsed in self._unsettled.items():
            if not _depends_on_models(parsed.spec):
                continue
            found = find_problems(path, partial(self._model_problems, parsed, specs))
            self._price_warnings[path] = tuple(problem for problem in found if problem.severity == "warning")
            problems[path] = [problem for problem in found if problem.severity == "error"]
        return self._prefer_edited({path: errors for path, errors in problems.items() if errors})

    def _model_problems(self, parsed: ParsedAgent, specs: Mapping[str, AgentSpec]) -> Iterator[Problem]:
        prices, budgets = self._context.prices, self._context.budgets
        yield from model_setting_problems(parsed.spec, parsed.document, prices)
        yield from price_problems(parsed.spec, parsed.document, specs, prices)
        yield from budget_price_problems(parsed.spec, parsed.document, specs, prices, budgets)

    def _prefer_edited(self, problems: _ProblemsByPath) -> _ProblemsByPath:
        """Reject edited files first: the others may be valid again with the last good versions of these."""
        edited = {path: problems[path] for path in problems if not self._is_unchanged(path)}
        return edited or problems

    def _is_unchanged(self, path: str) -> bool:
        last_good = self._last_good.get(path)
        return last_good is not None and last_good.spec == self._parsed[path].spec

    def _digest(self, parsed: ParsedAgent, specs: Mapping[str, AgentSpec]) -> str:
        """Return the digest of a file and of everything it refers to; of sub-agents, only what the parent sees."""
        digest = self._context.reference_digest(parsed)
        if not parsed.spec.sub_agents:
            return digest
        visible = {"name", "description", "inputs"}
        sub_agents = (
            specs[name].model_dump_json(include=visible) if name in specs else "" for name in parsed.spec.sub_agents
        )
        return source_digest(digest, *sub_agents)


def _depends_on_models(spec: AgentSpec) -> bool:
    """Return whether an agent has settings or cost limits that its models may not support."""
    return bool(spec.model_settings.model_fields_set or spec.budgets) or spec.runtime_policy.max_cost_usd is not None


def _duplicate_name(document: Document, name: str, others: Iterable[str]) -> Problem:
    return document.problem(("name",), f"the name {name!r} is also used by {', '.join(sorted(others))}")
