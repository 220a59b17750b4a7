"""Builds a generation from a snapshot of the files.

An agent, plugin or template that fails keeps its last good version; the other files are not affected.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from weakref import WeakValueDictionary

from framework.config.agents.compile import Agent
from framework.config.agents.diff import diff_agents, diff_settings
from framework.config.agents.findings import BrokenAgent
from framework.config.agents.link import LinkContext, Linker, ParsedAgent, restrict_agents
from framework.config.agents.models import (
    Budgets,
    PriceList,
    define_budgets,
    missing_sdk_warnings,
    missing_sdks,
    named_models,
    setting_problems,
    unused_limit_warnings,
    with_used_budgets,
    zero_price_warnings,
)
from framework.config.agents.skills import SkillCache
from framework.config.agents.toolbox import (
    ExternalTools,
    PluginCache,
    SourceCache,
    SourceFiles,
    Toolbox,
    find_problems,
    problem_from_exception,
)
from framework.config.generations.generation import Generation
from framework.config.generations.reload_effects import SettingsFile
from framework.config.overlay import SETTINGS_FILE, SettingsSource, is_settings_file, settings_source
from framework.config.settings import Settings, unset_key_problems
from framework.config.snapshot import AGENTS, API_DOCUMENTS, PLUGINS, PROMPTS, Snapshot
from framework.config.templates.prompts import Prompts
from framework.config.triggers import TriggerCache
from framework.config.yaml.document import Document
from framework.config.yaml.parse import ParseError, parse_agent, sort_problems
from framework.tools.child_processes import SHELL, why_unusable
from framework.tools.logins import LoginStore
from framework.tools.plugins import Plugin, plugins_of
from framework.tools.tool import Tool
from framework.types.errors import ConfigError
from framework.types.frozen import Frozen
from framework.types.problem import Change, Problem
from framework.types.spec import AgentSpec
from framework.types.text import source_digest
from framework.types.tool_servers import SandboxLimits

_UNSET_KEY = {"severity": "warning", "hint": "set it: no client has this key, and `agentsd serve` does not start"}


_SANDBOX_HINT = "set `tools: {sandbox: bubblewrap}` in agentsd.yaml"


class _SpecInterner:
    """Shares equal parts of agent specs: a thousand agents often have only a handful of different policies."""

    def __init__(self) -> None:
        self._parts: WeakValueDictionary[tuple[type[Frozen], str], Frozen] = WeakValueDictionary()

    def spec(self, spec: AgentSpec) -> AgentSpec:
        """Return an equal spec whose parts are shared with other specs."""
        fields = {name: getattr(spec, name) for name in spec.model_fields_set}
        parts = {name: self._part(value) for name, value in fields.items() if isinstance(value, Frozen)}
        return spec.model_copy(update=parts) if parts else spec

    def _part(self, part: Frozen) -> Frozen:
        return self._parts.setdefault((type(part), part.model_dump_json(exclude_unset=True)), part)


@dataclass(frozen=True, slots=True)
class _AgentFiles:
    """Agent files and the results of parsing them, by path."""

    sources: Mapping[str, bytes] = field(default_factory=dict)
    valid: Mapping[str, ParsedAgent] = field(default_factory=dict)
    invalid: Mapping[str, ParseError] = field(default_factory=dict)


class GenerationBuilder:
    """Builds one generation after another. Parsed files and loaded plugins are reused while their bytes are the same.

    Thread-safe: a cancelled reload leaves its build running in a thread.
    """

    def __init__(
        self,
        tools: Iterable[Tool],
        executors: Collection[str],
        models: Collection[str],
        settings: SettingsFile,
        root: Path = Path(),
        skill_folders: Iterable[str] = (),
        logins: LoginStore | None = None,
    ) -> None:
        self.skill_folders = tuple(skill_folders)
        self._skills, self._triggers = SkillCache(self.skill_folders), TriggerCache()
        self._plugins = PluginCache(tools, root)
        self._models, self._settings, self._sources = models, settings, SourceCache(logins)
        self._link_context = LinkContext(Toolbox({}), Prompts({}), executors, frozenset(), PriceList("", None, {}, ()))
        self._templates: Mapping[str, str] = {}
        self._agent_files = _AgentFiles()
        self._interner = _SpecInterner()
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        """Held while plugins are loaded, so that two callers do not load the same ones."""

    def has_plugins_to_load(self, snapshot: Snapshot) -> bool:
        """Return whether `load_plugins` would load any plugin of a snapshot."""
        with self._lock:
            return bool(self._plugins.changed(snapshot.files_in(PLUGINS)))

    def load_plugins(self, snapshot: Snapshot, abandoned: threading.Event) -> tuple[Plugin, ...]:
        """Load the plugins of a snapshot that changed, while other generations are built, and return them.

        Raises:
            TrialAbandoned: the event `abandoned` was set.
        """
        files = snapshot.files_in(PLUGINS)
        with self._loading:
            with self._lock:
                paths = self._plugins.changed(files)
            loaded = self._plugins.load(paths, files, abandoned) if paths else {}
            with self._lock:
                self._plugins.add(loaded)
        return tuple(one.plugin for one in loaded.values() if one.plugin)

    def sources(self, snapshot: Snapshot) -> SourceFiles:
        """Return the tool servers and HTTP tools that a snapshot declares."""
        with self._lock:
            unreadable = snapshot.unreadable(PLUGINS, ()) | snapshot.unreadable(API_DOCUMENTS, ())
            return self._sources.read(snapshot.files_in(PLUGINS), unreadable, snapshot.files_in(API_DOCUMENTS))

    def build(self, snapshot: Snapshot, previous: Generation, external: ExternalTools) -> Generation:
        """Build the generation after `previous`. Its `problems` contain every file that was not usable."""
        with self._lock:
            try:
                return self._build(snapshot, previous, external)
            except ConfigError:
                raise
            except Exception as error:  # noqa: BLE001 - an edit that cannot be built is rejected; the process continues
                return _rejected(snapshot, previous, external, [problem_from_exception("the project's files", error)])

    def reject_plugins(self, failed: Mapping[Plugin, tuple[Problem, ...]]) -> None:
        """Use the last good versions of these plugins until their files change."""
        with self._lock:
            self._plugins.reject(failed)

    def build_restricted(
        self, snapshot: Snapshot, previous: Generation, external: ExternalTools, reasons: tuple[Problem, ...]
    ) -> Generation:
        """Build the generation after `previous` for a rejected edit: only the restrictions of the edit take effect.

        If the edit restricts nothing, the generation has a `rejection` and must not be published.
        """
        with self._lock:
            try:
                return self._build_restricted(snapshot, previous, external, reasons)
            except Exception as error:  # noqa: BLE001 - as in `build`
                unexpected = problem_from_exception("the project's files", error)
                return _rejected(snapshot, previous, external, [*reasons, unexpected])

    def build_restrictions(self, snapshot: Snapshot, previous: Generation, young: frozenset[str]) -> Generation | None:
        """Build the generation after `previous` with only the restrictions of an edit, the rest of which must wait.

        Its files and problems are those of `previous`. None if the edit restricts nothing. Of the `young` files, those
        that are invalid or grant permissions are left out.
        """
        with self._lock:
            try:
                restricted, _ = self._restrict(self._without_unfinished(snapshot, previous, young), previous, ())
            except Exception:  # noqa: BLE001 - the build of the whole edit reports it
                return None
        digest = source_digest("restrictions", snapshot.digest)
        return restricted and replace(restricted, number=previous.number + 1, digest=digest)

    def _without_unfinished(self, snapshot: Snapshot, previous: Generation, young: frozenset[str]) -> Snapshot:
        """Return a snapshot with the live version of the `young` files that are invalid or grant permissions."""
        if not young:
            return snapshot
        files = self._parse_all(snapshot.files_in(AGENTS))
        unfinished = {*young} & files.sources.keys()
        for agent in previous.agents.values():
            if agent.path in unfinished and (file := files.valid.get(agent.path)):
                changes = diff_agents({agent.name: agent.last_good.spec}, {file.spec.name: file.spec})
                unfinished -= set() if _grants(changes) else {agent.path}
        own = {path for path in young if is_settings_file(path)}
        if own and self._settings_grant(snapshot, previous.settings):
            unfinished |= own
        return snapshot.edited(
            {path: previous.files.get(path) for path in unfinished}, snapshot.problems, snapshot.cases
        )

    def _settings_grant(self, snapshot: Snapshot, live: Settings) -> bool:
        try:
            return _grants(diff_settings(live, self._settings.settings(snapshot)))
        except ConfigError:
            return True

    def _build_restricted(
        self, snapshot: Snapshot, previous: Generation, external: ExternalTools, reasons: tuple[Problem, ...]
    ) -> Generation:
        restricted, found = self._restrict(snapshot, previous, reasons)
        problems = tuple(dict.fromkeys(sort_problems([*reasons, *found])))
        rejected = _rejected(snapshot, restricted or previous, external, problems)
        if restricted is None:
            return rejected
        files = _shared_files(snapshot, previous)
        return replace(rejected, files=files, problems=problems, rejection=())

    def _restrict(
        self, snapshot: Snapshot, previous: Generation, reasons: tuple[Problem, ...]
    ) -> tuple[Generation | None, list[Problem]]:
        """Return `previous` with the restrictions of an edit, None if it has none, and the problems of its files."""
        files = self._parse_all(snapshot.files_in(AGENTS))
        unreadable = _unreadable_agents(snapshot, previous)
        parsed: dict[str, ParsedAgent | ParseError] = {**files.valid, **files.invalid}
        parsed |= {path: ParseError([problem]) for path, problem in unreadable.items()}
        agents, found = restrict_agents(previous.agents, parsed, files.sources, reasons)
        settings, settings_warnings = self._settings.restrict(snapshot, previous.settings)
        found += [*settings_warnings, *(problem for error in files.invalid.values() for problem in error.problems)]
        same = agents.keys() == previous.agents.keys() and all(agents[name] is previous.agents[name] for name in agents)
        if same and settings == previous.settings:
            return None, found
        defined = define_budgets(settings, settings_source(snapshot.files), previous.budgets)
        return replace(previous, agents=agents, settings=settings, budgets={**previous.budgets, **defined}), found

    def _build(self, snapshot: Snapshot, previous: Generation, external: ExternalTools) -> Generation:
        try:
            settings = self._settings.settings(snapshot)
        except ConfigError as error:
            return self._build_restricted(snapshot, previous, external, tuple(error.problems))
        problems = [*snapshot.problems, *self._settings.restart_warnings()]
        source = settings_source(snapshot.files)
        document = source.document_or_none()
        problems += find_problems(SETTINGS_FILE, lambda: setting_problems(settings, source, self._models))
        problems += find_problems(SETTINGS_FILE, lambda: zero_price_warnings(settings, document))
        problems += [problem.model_copy(update=_UNSET_KEY) for problem in unset_key_problems(settings, source)]
        skills, skill_problems = self._skills.read(snapshot)
        problems += skill_problems
        toolbox = replace(self._toolbox(snapshot, previous, external), skills=skills)
        prompts = self._prompts(snapshot.files_in(PROMPTS), problems)
        budgets = define_budgets(settings, source, previous.budgets)
        self._update_link_context(settings, toolbox, prompts, budgets)
        linker = self._linker(snapshot, previous)
        agents = linker.link()
        problems += find_problems(
            SETTINGS_FILE, lambda: unused_limit_warnings(settings, document, agents, self._models)
        )
        sdk_warnings = find_problems(
            SETTINGS_FILE, lambda: self._sdk_warnings(linker.parsed.values(), settings, document)
        )
        problems += find_problems(SETTINGS_FILE, lambda: self._sandbox_problems(settings.tools.sandbox, source, agents))
        broken = _broken_since_start(linker.broken, previous)
        triggers, trigger_problems = self._triggers.read(snapshot, agents, broken)
        problems += [*sdk_warnings, *toolbox.problems, *prompts.problems(), *linker.problems, *trigger_problems]
        return Generation(
            previous.number + 1,
            snapshot.digest,
            agents,
            toolbox.tools,
            tuple(sort_problems(problems)),
            _shared_files(snapshot, previous),
            snapshot.cases,
            toolbox.plugins,
            plugins=_plugins_in_use(toolbox, agents, previous),
            root=toolbox.root,
            settings=settings,
            external=external,
            skills=skills,
            triggers=triggers,
            missing_sdks=tuple(sdk_warnings),
            broken=broken,
            budgets=with_used_budgets(budgets, previous.budgets, (agent.spec for agent in agents.values())),
        )

    def _linker(self, snapshot: Snapshot, previous: Generation) -> Linker:
        files = self._parse_all(snapshot.files_in(AGENTS))
        linker = Linker(self._link_context, files.valid, previous.agents)
        for path, error in files.invalid.items():
            linker.reject(path, error.problems, files.sources[path])
        for path, problem in _unreadable_agents(snapshot, previous).items():
            linker.reject(path, [problem])
        return linker

    def _sdk_warnings(
        self, files: Collection[ParsedAgent], settings: Settings, document: Document | None
    ) -> Iterator[Problem]:
        names = {name for models in {file.models for file in files} for name in models}
        missing = missing_sdks({*names, settings.model}, settings, self._models)
        agents = [(file.spec, file.document) for file in files if not missing.keys().isdisjoint(file.models)]
        yield from missing_sdk_warnings(agents, settings, document, missing)

    def _sandbox_problems(
        self, limits: SandboxLimits, source: SettingsSource, agents: Mapping[str, Agent]
    ) -> Iterator[Problem]:
        """Yield an error if the sandbox does not start here, and a warning for each agent that needs one."""
        if limits.is_on and (reason := why_unusable(limits)):
            message = f"no command is executed, because the sandbox cannot be used: {reason}"
            yield source.document().problem(("tools", "sandbox"), message, at_key=True)
        for agent in agents.values() if not limits.is_on else ():
            if agent.spec.skills.scripts != "never":
                message, hint = "no script of a skill is executed without a sandbox", _SANDBOX_HINT
                yield agent.document.warning(("skills", "scripts"), message, hint=hint, at_key=True)
            policy = agent.spec.skill_policy  # a wildcard may mean any tool but this one
            if SHELL in (*policy.allow, *(rule.tool for rule in policy.ask)) and SHELL in agent.toolset.offered:
                message, hint = f"the tool {SHELL} executes nothing without a sandbox", _SANDBOX_HINT
                yield agent.document.warning(("skill_policy", "allow"), message, hint=hint, at_key=True)

    def _toolbox(self, snapshot: Snapshot, previous: Generation, external: ExternalTools) -> Toolbox:
        unreadable = snapshot.unreadable(PLUGINS, self._plugins.paths)
        toolbox = self._plugins.toolbox(snapshot.files_in(PLUGINS), unreadable, previous.live_plugins)
        return toolbox.with_external(external)

    def _update_link_context(self, settings: Settings, toolbox: Toolbox, prompts: Prompts, budgets: Budgets) -> None:
        """Replace the parts that changed. An unchanged context keeps its cached digests."""
        models = frozenset({*self._models, *settings.models})
        if (prices := PriceList.of(settings, self._models)) != self._link_context.prices:
            self._link_context = replace(self._link_context, prices=prices)
        if budgets != self._link_context.budgets:
            self._link_context = replace(self._link_context, budgets=budgets, digests={})
        context = self._link_context
        before = (context.toolbox.tools, context.toolbox.extensions, context.toolbox.external.digest)
        after = (toolbox.tools, toolbox.extensions, toolbox.external.digest)
        has_changed = after != before or toolbox.skills is not context.toolbox.skills
        if has_changed or (prompts, models) != (context.prompts, context.models):
            self._link_context = replace(context, toolbox=toolbox, prompts=prompts, models=models, digests={})

    def _prompts(self, files: Mapping[str, bytes], problems: list[Problem]) -> Prompts:
        sources = {}
        for path, source in files.items():
            try:
                sources[path.removeprefix(PROMPTS + "/")] = source.decode("utf-8-sig")
            except UnicodeDecodeError as error:
                text, start = error.object, error.start  # without a byte order mark
                line = text.count(b"\n", 0, start) + 1
                problems.append(Problem(path=path, line=line, message=f"not UTF-8: byte 0x{text[start]:02x}"))
        if sources != self._templates:
            self._templates = sources
            return Prompts(sources, self._link_context.prompts)
        return self._link_context.prompts

    def _parse_all(self, sources: Mapping[str, bytes]) -> _AgentFiles:
        """Parse the files whose bytes have changed since the previous call. `sources` is sorted by path."""
        before = self._agent_files
        changed = [path for path, source in sources.items() if before.sources.get(path) is not source]
        changed = [path for path in changed if before.sources.get(path) != sources[path]]
        removed = [path for path in before.sources if path not in sources]
        valid, invalid = dict(before.valid), dict(before.invalid)
        for path in removed:
            valid.pop(path, None)
            invalid.pop(path, None)
        for path in changed:
            result = self._parse(path, sources[path])
            if isinstance(result, ParsedAgent):
                invalid.pop(path, None)
                valid[path] = result
            else:
                valid.pop(path, None)
                invalid[path] = result
        for path in before.valid.keys() & {*changed, *removed}:
            self._link_context.forget(before.valid[path])
        if not before.valid.keys() >= {*changed}:
            valid = dict(sorted(valid.items()))
        self._agent_files = _AgentFiles(sources, valid, invalid)
        return self._agent_files

    def _parse(self, path: str, source: bytes) -> ParsedAgent | ParseError:
        try:
            spec, document = parse_agent(path, source)
            models = tuple(name for _, name in named_models(spec))
            return ParsedAgent(self._interner.spec(spec), document, source_digest(source), models)
        except ParseError as error:
            return error
        except Exception as error:  # noqa: BLE001 - one file must not keep the others from going live
            return ParseError([problem_from_exception(path, error)])


def _grants(changes: Iterable[Change]) -> bool:
    return any(change.effect == "widens" for change in changes)


def _rejected(
    snapshot: Snapshot, previous: Generation, external: ExternalTools, problems: Iterable[Problem]
) -> Generation:
    """Return the previous generation with the digest of these files and a `rejection`. It is never published."""
    number, rejection = previous.number + 1, tuple(problems)
    return replace(previous, number=number, digest=snapshot.digest, external=external, rejection=rejection)


def _broken_since_start(found: Iterable[BrokenAgent], previous: Generation) -> tuple[BrokenAgent, ...]:
    """Return the agents that no generation had. A file that is added later takes effect when it is valid."""
    known = {text for agent in previous.broken for text in (agent.path, agent.name)}
    return tuple(agent for agent in found if previous.number == 0 or not known.isdisjoint((agent.path, agent.name)))


def _shared_files(snapshot: Snapshot, previous: Generation) -> Mapping[str, bytes]:
    """Return the files of a snapshot. Generations share the bytes of unchanged files: the history keeps them all."""
    before, files = previous.files, snapshot.files
    return {path: before[path] if before.get(path) == source else source for path, source in files.items()}


def _unreadable_agents(snapshot: Snapshot, previous: Generation) -> dict[str, Problem]:
    if not snapshot.problems:
        return {}
    return snapshot.unreadable(AGENTS, [agent.path for agent in previous.agents.values()])


def _plugins_in_use(toolbox: Toolbox, agents: Mapping[str, Agent], previous: Generation) -> tuple[Plugin, ...]:
    """Return the current plugins, and earlier versions whose functions stale or unchanged agents still use."""
    users = [*agents.values()]
    if {*previous.plugins} <= {*toolbox.plugins}:  # the live agents use only current ones
        users = [agent for name, agent in agents.items() if previous.agents.get(name) is not agent]
    offered = {id(tool): tool.function for agent in users for tool in agent.toolset.offered.values()}
    extended = (agent for agent in users if agent.hooks or agent.executor)
    functions = [*offered.values(), *(function for agent in extended for function in agent.functions())]
    return tuple(dict.fromkeys([*toolbox.plugins, *plugins_of(functions)]))
