"""Links the agents of a generation, from the parsed files and everything that they may refer to."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from framework.config.agents.compile import (
    Agent,
    CompileContext,
    build_agent,
    compile_agent,
    cycle_problems,
    extension_names,
    template_names,
)
from framework.config.agents.diff import LIST_EFFECTS, VALUE_EFFECTS
from framework.config.agents.findings import BrokenAgent, RejectedAgent, broken_agent, hidden_problems, read_valid_parts
from framework.config.agents.models import (
    Budgets,
    PriceList,
    are_models_known,
    budget_price_problems,
    model_setting_problems,
    price_problems,
)
from framework.config.agents.toolbox import Toolbox, find_problems, problem_from_exception
from framework.config.templates.prompts import Prompts
from framework.config.yaml.agent_keys import TOP_LEVEL, path_in_file, read_agent_keys
from framework.config.yaml.document import Document, DocumentError, KeyPath, PackedMarks, read_document
from framework.config.yaml.parse import JsonObject, ParseError, get_dotted, merge_valid
from framework.tools.tool import BY_KEY, source_of
from framework.tools.toolset import filter_tools, matching_names
from framework.types.problem import Problem
from framework.types.spec import AgentSpec, SkillPolicy
from framework.types.text import source_digest


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
            remote = (f"agent.{name}" for name in parsed.spec.sub_agents)
            names = [*(tool.name for tool in tools), *remote, *extension_names(parsed.spec)]
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
        names = sorted(matching_names(patterns, self.toolbox.skills))
        return [part for name in names for part in (name, self.toolbox.skills[name].digest)]

    def _external_parts(self, spec: AgentSpec, tools: Iterable[str]) -> list[str]:
        """Return the state of tool servers that affects whether an agent is valid and which tools it is offered."""
        external = self.toolbox.external
        drifted = sorted(external.drifted.intersection(tools))
        sources = {source_of(pattern) for pattern in spec.skill_policy.allow}
        sources |= {f"agent.{name}" for name in spec.sub_agents}
        servers = (source for source in sources if source.startswith(("mcp.", "skill.")))
        if not spec.mcp_policy and not any(servers) and sources.isdisjoint((*external.declared, *external.unavailable)):
            return drifted
        return [*sorted(external.declared), *sorted(external.unavailable), *drifted]

    def forget(self, parsed: ParsedAgent) -> None:
        """Remove the cached digest of a file that was replaced or deleted."""
        self.digests.pop(parsed.digest, None)


_PERMISSION_SECTIONS = tuple(dict.fromkeys(key.partition(".")[0] for key in (*LIST_EFFECTS, *VALUE_EFFECTS)))
"""The top-level keys of an agent file that control what the agent may do and consume."""
_PERMISSION_KEYS = (*_PERMISSION_SECTIONS, *TOP_LEVEL)
_ALLOW, _MCP_POLICY, _BUDGETS = "skill_policy.allow", "mcp_policy", "budgets"
_ANY_RISK = ("skill_policy.any_risk", "skill_policy.any_risk_if_asked")
_ADDING = frozenset(key for key, (adding, _) in LIST_EFFECTS.items() if adding == "tightens")
_ONE_SIDED = "it is not offered by both the last good version and the saved file"


@dataclass(frozen=True, slots=True)
class SavedPermissions:
    """The readable permissions of a saved file."""

    spec: AgentSpec
    """The spec of the last good version with the permissions of the saved file."""
    document: Document
    unread: tuple[KeyPath, ...] = ()
    """The paths of invalid values."""

    def indices(self, key: str, count: int) -> list[int]:
        """Return the positions in the file of the `count` valid items of a list."""
        path = tuple(key.split("."))
        skipped = {where[-1] for where in self.unread if where[:-1] == path}
        return [index for index in range(count + len(skipped)) if index not in skipped]


def read_permissions(path: str, source: bytes, last_good: AgentSpec) -> SavedPermissions | None:
    """Read the permissions in an invalid file. Return None if it is not YAML."""
    try:
        keys = read_agent_keys(read_document(path, source))
    except DocumentError:
        return None
    document = keys.document
    if document.data.get("name", last_good.name) != last_good.name:
        return SavedPermissions(last_good, document)  # the file now defines another agent
    permissions = {key: value for key, value in document.data.items() if key in _PERMISSION_SECTIONS}
    data, unread = merge_valid(AgentSpec, last_good.model_dump(mode="json", by_alias=True), permissions, _ADDING)
    unknown = (key for key in document.data.keys() - AgentSpec.model_fields.keys())
    unread += [*keys.unread, *((key,) for key in unknown if get_close_matches(key, _PERMISSION_KEYS, n=1))]
    return SavedPermissions(AgentSpec.model_validate(data), document, tuple(unread))


def tighten_agent(last_good: Agent, saved: SavedPermissions) -> Agent:
    """Return the last good version with the restrictions of its saved file; the same object without restrictions."""
    before = last_good.spec.model_dump(mode="json", by_alias=True)
    after = saved.spec.model_dump(mode="json", by_alias=True)
    data, origins = deepcopy(before), dict[KeyPath, KeyPath]()
    for key in LIST_EFFECTS:
        if key in _ADDING:
            _add_restrictions(data, key, get_dotted(after, key), origins, saved)
        elif key not in (_ALLOW, *_ANY_RISK):
            _set_at_key(data, key, [item for item in get_dotted(before, key) if item in get_dotted(after, key)])
    for key, effect in VALUE_EFFECTS.items():
        old, new = get_dotted(before, key), get_dotted(after, key)
        if key != _MCP_POLICY and old != new and effect(old, new) == "tightens":
            _set_at_key(data, key, new)
            origins[tuple(key.split("."))] = tuple(key.split("."))
    for name, policy in data[_MCP_POLICY].items():
        policy["pin"] = "block" if after[_MCP_POLICY].get(name, {}).get("pin") != "warn" else policy["pin"]
    data["skill_policy"] |= _lifted(before["skill_policy"], after["skill_policy"])
    _drop_missing_hooks(data, last_good)
    data[_BUDGETS] = [name for name in data[_BUDGETS] if name in (*before[_BUDGETS], *last_good.context.budgets)]
    _intersect_tools(data, last_good, saved.spec.skill_policy, origins)
    if data == before:
        return last_good
    checked = AgentSpec.model_validate(data)
    spec = last_good.spec.model_copy(update={section: getattr(checked, section) for section in _PERMISSION_SECTIONS})
    digest = source_digest(last_good.digest, json.dumps(data, sort_keys=True, default=str))
    return _restricted_agent(last_good, spec, _merge_marks(last_good.document, saved.document, origins), digest)


def _restricted_agent(last_good: Agent, spec: AgentSpec, document: Document, digest: str) -> Agent:
    """Return the last good version of an agent with a stricter spec."""
    agent = build_agent(spec, document, digest, last_good.context)
    return replace(agent, warnings=last_good.warnings, original=last_good)


def permission_warnings(agent: Agent, saved: SavedPermissions | None, path: str) -> Iterator[Problem]:
    """Yield warnings about an invalid file: which of its permissions are in effect, and which are not."""
    fallback = f"the last good version of {agent.name!r} stays in effect"
    if saved is None:
        message = f"the rules and limits in this file are NOT in effect: the file cannot be read; {fallback}"
        yield Problem(path=path, message=message, severity="warning")
        return
    for where in saved.unread:
        message = (
            f"{'.'.join(map(str, path_in_file(saved.document, where)))} is NOT in effect: it is invalid; {fallback}"
        )
        yield saved.document.warning(where, message, at_key=True)
    if agent.original is not None:
        message = f"only the restrictions in this file are in effect; otherwise {fallback}"
        yield Problem(path=path, message=message, severity="warning")


# --- restricting


def _add_restrictions(
    data: JsonObject, key: str, items: list[Any], origins: dict[KeyPath, KeyPath], saved: SavedPermissions
) -> None:
    """Append the items of a list in which every item restricts, such as deny rules."""
    path: KeyPath = tuple(key.split("."))
    own: list[Any] = get_dotted(data, key)
    existing = {json.dumps(item, sort_keys=True) for item in own}
    for index, item in zip(saved.indices(key, len(items)), items, strict=False):
        if json.dumps(item, sort_keys=True) not in existing:
            origins[(*path, len(own))] = (*path, index)
            own.append(item)


def _lifted(before: JsonObject, after: JsonObject) -> JsonObject:
    """Return the tools of any risk that both versions have: only in calls that an ask rule matches, if one says so."""
    always, both = (
        [name for name in dict.fromkeys(all_of(before)) if name in all_of(after)]
        for all_of in (
            lambda policy: policy["any_risk"],
            lambda policy: [*policy["any_risk"], *policy["any_risk_if_asked"]],
        )
    )
    return {"any_risk": always, "any_risk_if_asked": [name for name in both if name not in always]}


def _drop_missing_hooks(data: JsonObject, last_good: Agent) -> None:
    """Remove hooks that the plugins of the last good version do not define: they cannot be called."""
    extensions = last_good.context.toolbox.extensions
    for place, names in data["hooks"].items():
        data["hooks"][place] = [name for name in names if isinstance(name, dict) or name in extensions]


def _intersect_tools(data: JsonObject, last_good: Agent, saved: SkillPolicy, origins: dict[KeyPath, KeyPath]) -> None:
    """Allow only tools that both versions allow. Deny those that one asks about and the other does not offer."""
    policy, own = data["skill_policy"], last_good.spec.skill_policy
    asks = [[rule.tool for rule in rules] for rules in (own.ask, saved.ask)]
    if own.allow == saved.allow and asks[0] == asks[1]:
        return
    tools = [name for name, tool in last_good.toolset.tools.items() if tool.source not in BY_KEY]
    if own.allow != saved.allow:
        both = [name for name in tools if _matches(name, own.allow) and _matches(name, saved.allow)]
        policy["allow"] = [_literal(name) for name in both]
        origins |= {("skill_policy", "allow", index): ("skill_policy", "allow") for index in range(len(both))}
    for name in tools:
        offering = [_matches(name, (*version.allow, *ask)) for version, ask in zip((own, saved), asks, strict=True)]
        if offering[0] != offering[1] and _matches(name, (*asks[0], *asks[1])):
            origins["skill_policy", "deny", len(policy["deny"])] = ("skill_policy", "allow")
            policy["deny"].append({"tool": _literal(name), "when": {}, "reason": _ONE_SIDED})


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _literal(name: str) -> str:
    """Return a pattern that matches only this name."""
    return re.sub(r"[*?\[]", r"[\g<0>]", name)


def _merge_marks(last_good: Document, saved: Document, origins: Mapping[KeyPath, KeyPath]) -> Document:
    """Return the last good document, where each added item has its position in the saved document."""
    marks = dict(last_good.marks)
    for path, origin in origins.items():
        marks[path] = saved.marks[next(p for p in (origin[:n] for n in range(len(origin), -1, -1)) if p in saved.marks)]
    other_files = {} if saved.path == last_good.path else dict.fromkeys(origins, saved.path)
    return replace(last_good, marks=PackedMarks(marks), other_files=other_files)


def _set_at_key(data: JsonObject, key: str, value: Any) -> None:
    *above, last = key.split(".")
    for part in above:
        data = data[part]
    data[last] = value


def saved_permissions(parsed: ParsedAgent, last_good: Agent) -> SavedPermissions:
    """Return the permissions in a file; those of `last_good` if the file now defines another agent."""
    return SavedPermissions(parsed.spec if parsed.spec.name == last_good.name else last_good.spec, parsed.document)


def restrict_agents(
    live: Mapping[str, Agent],
    parsed: Mapping[str, ParsedAgent | ParseError],
    sources: Mapping[str, bytes],
    reasons: tuple[Problem, ...],
) -> tuple[dict[str, Agent], list[Problem]]:
    """Return the live agents with the restrictions of a rejected edit, and warnings about its files.

    Args:
        live: the agents by name.
        parsed: the agent files by path.
        sources: the bytes of the agent files by path. Unreadable files are missing here, but present in `parsed`.
        reasons: why the edit is rejected; empty if the rest of it only waits.
    """
    by_name = {result.spec.name: result for result in parsed.values() if isinstance(result, ParsedAgent)}
    agents: dict[str, Agent] = {}
    warnings: list[Problem] = []
    for name, agent in live.items():
        last_good, result = agent.last_good, parsed.get(agent.path, by_name.get(name))
        if result is None:
            continue  # its file was removed
        agents[name] = agent
        if isinstance(result, ParsedAgent):
            permissions: SavedPermissions | None = saved_permissions(result, last_good)
        else:
            source = sources.get(agent.path)
            permissions = read_permissions(agent.path, source, last_good.spec) if source is not None else None
        if permissions is None or permissions.spec != last_good.spec:
            stricter = tighten_agent(last_good, permissions) if permissions else last_good
            is_new = stricter.digest != agent.digest or (reasons and not agent.stale)
            if stricter.original and is_new:
                agents[name] = replace(stricter, stale=reasons or agent.stale)
            warnings.extend(permission_warnings(agents[name], permissions, agent.path))
    return agents, warnings


_ProblemsByPath = Mapping[str, Iterable[Problem]]


class Linker:
    """Links the agents of one generation. After `link`, `problems` contains the errors and warnings."""

    def __init__(self, context: LinkContext, parsed: Mapping[str, ParsedAgent], previous: Mapping[str, Agent]) -> None:
        """Prepare to link files.

        Args:
            context: everything that agents may refer to, except other agents.
            parsed: the valid files, by path.
            previous: the live agents, by name.
        """
        self._context, self._previous = context, previous
        self.parsed = dict(parsed)
        """The files that are not rejected, by path."""
        self._last_good = {agent.path: agent.last_good for agent in previous.values()}
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
        parsed, self._all_specs = self.parsed.pop(path, None), None
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

    def link(self) -> dict[str, Agent]:
        """Return the agents by name, sorted by path."""
        while problems_by_path := self._next_errors():
            for path, problems in problems_by_path.items():
                self.reject(path, problems)
        self._add_hidden_problems()
        stale = [self._stale(path, agent) for path, agent in self._fallbacks.items()]
        agents = sorted((*(self._compiled[path] for path in self.parsed), *stale), key=lambda agent: agent.path)
        return {agent.name: agent for agent in agents}

    @property
    def problems(self) -> list[Problem]:
        """The errors of rejected files, and the warnings about all files."""
        errors = [problem for problems in self._rejected.values() for problem in problems]
        own = (warning for path in self.parsed for warning in self._file_warnings(path))
        return [*errors, *self._name_warnings, *self._stale_warnings, *own]

    @property
    def broken(self) -> list[BrokenAgent]:
        """The agents whose files are rejected and have no last good version."""
        return [
            broken_agent(path, self._unparsed.get(path), self._rejected_agents.get(path), problems)
            for path, problems in self._rejected.items()
            if path not in self._fallbacks
        ]

    def _file_warnings(self, path: str) -> tuple[Problem, ...]:
        return (*self._price_warnings.get(path, ()), *self._compiled[path].warnings)

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
            if others := {other for other, name in claims if name == agent.spec.name and other != path}:
                found.append(_duplicate_name(agent.document, agent.spec.name, others))
            places = {(problem.path, problem.line, problem.column) for problem in self._rejected[path]}
            self._rejected[path] += (one for one in found if (one.path, one.line, one.column) not in places)

    def _moved(self, name: str) -> Agent | None:
        """Return the last good version of an agent whose file was moved to another path."""
        agent = self._previous.get(name)
        return None if agent is None or agent.path in self.parsed or agent.path in self._rejected else agent.last_good

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
            self._all_specs = fallbacks | {file.spec.name: file.spec for file in self.parsed.values()}
        return self._all_specs

    def _compile_context(self) -> CompileContext:
        context = self._context
        budgets = context.budgets.keys()
        return CompileContext(
            *(context.toolbox, context.prompts, self._specs(), context.executors, context.models, budgets),
            window=context.prices.window,
        )

    def _duplicate_names(self) -> _ProblemsByPath:
        """Return errors for duplicate names.

        The file that already owns the name keeps it. At the first load there is no owner: every claimant is rejected.
        """
        claims: dict[str, list[str]] = {}
        for path, name in self._claimed_names():
            claims.setdefault(name, []).append(path)
        rejected: dict[str, list[Problem]] = {}
        for name, paths in claims.items():
            owner = self._previous[name].path if name in self._previous else None
            for path in paths if len(paths) > 1 else ():
                if path in self.parsed:
                    problem = _duplicate_name(self.parsed[path].document, name, set(paths) - {path})
                    (self._name_warnings if path == owner else rejected.setdefault(path, [])).append(problem)
        return rejected

    def _claimed_names(self) -> Iterable[tuple[str, str]]:
        """Yield path and name of each agent."""
        yield from ((path, parsed.spec.name) for path, parsed in self.parsed.items())
        yield from ((path, agent.name) for path, agent in self._fallbacks.items())

    def _cycles(self) -> _ProblemsByPath:
        parents = {path: parsed for path, parsed in self.parsed.items() if parsed.spec.sub_agents}
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
        for path, parsed in self.parsed.items():
            spec = parsed.spec
            try:
                digest = self._digest(parsed, context.specs)
                agent = self._unchanged(path, digest)
                if agent is None:
                    others = (*spec.sub_agents, *spec.handoffs)
                    own = context.with_only(others) if others else without_agents
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
        for path, parsed in self.parsed.items():
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
        return last_good is not None and last_good.spec == self.parsed[path].spec

    def _digest(self, parsed: ParsedAgent, specs: Mapping[str, AgentSpec]) -> str:
        """Return the digest of a file and of everything it refers to; of other agents, only what this one sees."""
        digest = self._context.reference_digest(parsed)
        others = (*parsed.spec.sub_agents, *parsed.spec.handoffs)
        if not others:
            return digest
        visible = {"name", "description", "inputs", *(["output_schema"] if parsed.spec.plan.steps else ())}
        return source_digest(
            digest, *(specs[name].model_dump_json(include=visible) if name in specs else "" for name in others)
        )


def _depends_on_models(spec: AgentSpec) -> bool:
    """Return whether an agent has settings or cost limits that its models may not support."""
    return bool(spec.model_settings.model_fields_set or spec.budgets) or spec.runtime_policy.max_cost_usd is not None


def _duplicate_name(document: Document, name: str, others: Iterable[str]) -> Problem:
    return document.problem(("name",), f"the name {name!r} is also used by {', '.join(sorted(others))}")
