"""Prompt templates: the variables that a run gives them, rendering by name and locale, problems with positions.

A generation has one sandboxed environment, in which the project's templates override the shipped ones. Templates
receive plain data only. Text from users, tools and agent files is never rendered as a template, only inserted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple, TypeVar

from jinja2 import (
    Environment,
    FunctionLoader,
    StrictUndefined,
    TemplateNotFound,
    TemplateSyntaxError,
    UndefinedError,
    nodes,
)

from framework.config.templates.sandbox import BoundedEnvironment, start_budget
from framework.config.yaml.document import problem_at
from framework.tools.threads import DeadlineExceededError, call_within
from framework.types.http import HttpLimits
from framework.types.messages import Message
from framework.types.problem import Problem
from framework.types.redact import redact
from framework.types.text import did_you_mean

DECLARE_HINT = "declare it under `inputs`, or set it under `vars`"
_LITERAL_HINT = "use literal names, for instance `{% if brief %}{% include 'brief.j2' %}{% endif %}`"
_JINJA_NAMES = frozenset({"loop", "caller", "varargs", "kwargs", "self", "super"})
_GUARDS = frozenset({"defined", "undefined", "default", "d"})


@dataclass(frozen=True, slots=True)
class TemplateFault:
    """An error at a line of a template."""

    template: str
    line: int
    message: str
    hint: str | None = None


class TemplateReference(NamedTuple):
    """A template that another one extends, includes or imports."""

    line: int
    names: tuple[str, ...] | None
    """Candidates, of which the first existing one is used; None if the name is computed."""
    may_be_missing: bool


@dataclass(slots=True)
class TemplateAnalysis:
    """The names that one template uses and defines."""

    variables: list[tuple[str, int, frozenset[str]]] = field(default_factory=list)
    """Variables it reads: name, line, and enclosing blocks."""
    defines: set[str] = field(default_factory=set)
    """Names it sets, or tests before use."""
    references: list[TemplateReference] = field(default_factory=list)
    extends: bool = False
    overrides: set[str] = field(default_factory=set)
    """Blocks that do not call `super()`, so that they replace those of the parent."""
    unknown: list[tuple[int, str, str, list[str]]] = field(default_factory=list)
    """Unknown filters and tests: line, kind, name, and the known names."""


def analyze(environment: Environment, source: str, name: str) -> TemplateAnalysis:
    """Analyze a template; raise TemplateSyntaxError, or RecursionError if it is nested too deeply."""
    analysis, body = TemplateAnalysis(), environment.parse(source, name).body
    extends = any(isinstance(node, nodes.Extends) for node in body)
    for node in body:
        if not (extends and isinstance(node, nodes.Output)):  # text outside blocks of a child template is not rendered
            _visit(node, frozenset(), environment, analysis)
    return analysis


def _visit(node: nodes.Node, blocks: frozenset[str], environment: Environment, analysis: TemplateAnalysis) -> None:
    match node:
        case nodes.Name(ctx="load"):
            analysis.variables.append((node.name, node.lineno, blocks))
        case nodes.Name() | nodes.Macro():
            analysis.defines.add(node.name)
        case nodes.Import():
            analysis.defines.add(node.target)
        case nodes.FromImport():
            analysis.defines.update(name if isinstance(name, str) else name[1] for name in node.names)
        case nodes.Filter() | nodes.Test():
            _visit_filter(node, environment, analysis)
        case nodes.Block():
            blocks |= {node.name}
            if not any(call.name == "super" for call in node.find_all(nodes.Name)):
                analysis.overrides.add(node.name)
    if isinstance(node, (nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport)):
        analysis.extends |= isinstance(node, nodes.Extends)
        may_be_missing = isinstance(node, nodes.Include) and node.ignore_missing
        analysis.references.append(TemplateReference(node.lineno, _literal_names(node.template), may_be_missing))
    for inner in node.iter_child_nodes():
        _visit(inner, blocks, environment, analysis)


def _visit_filter(node: nodes.Filter | nodes.Test, environment: Environment, analysis: TemplateAnalysis) -> None:
    kind, known = ("filter", environment.filters) if isinstance(node, nodes.Filter) else ("test", environment.tests)
    if node.name not in known:
        analysis.unknown.append((node.lineno, kind, node.name, sorted(known)))
    if node.name in _GUARDS and isinstance(node.node, nodes.Name):
        analysis.defines.add(node.node.name)


def _literal_names(template: nodes.Expr) -> tuple[str, ...] | None:
    """Return the names in a reference, or None if one of them is computed."""
    parts = template.items if isinstance(template, (nodes.List, nodes.Tuple)) else [template]
    names = [part.value for part in parts if isinstance(part, nodes.Const) and isinstance(part.value, str)]
    return tuple(names) if len(names) == len(parts) else None


class TemplateGraph(NamedTuple):
    """The templates of a project and the references between them."""

    names: Collection[str]
    analysis_of: Callable[[str], TemplateAnalysis]
    """Return the analysis of an existing template; raise its syntax error."""
    global_names: frozenset[str]
    """Names that are defined in every template."""

    def reachable(self, name: str) -> list[str]:
        """Return a template and all templates that it extends, includes or imports, children before their parents."""
        names = [name]
        for current in names:
            names += [target for target in dict.fromkeys(self._target_names(current)) if target not in names]
        return names

    def faults(self, name: str) -> Iterator[TemplateFault]:
        """Yield the errors of a template that do not depend on its variables."""
        analysis = self.analysis_of(name)
        for line, kind, unknown, known in analysis.unknown:
            yield TemplateFault(name, line, f"there is no {kind} {unknown!r}{did_you_mean(unknown, known)}")
        for reference in analysis.references:
            if reference.names is None:
                yield TemplateFault(name, reference.line, "the template name is computed", _LITERAL_HINT)
            elif not reference.may_be_missing and not self._target(reference):
                missing = reference.names[0] if reference.names else ""
                suggestion = did_you_mean(missing, sorted(self.names))
                yield TemplateFault(name, reference.line, f"there is no template {missing!r}{suggestion}")
            elif (target := self._target(reference)) and (path := self._path_between(target, name)):
                cycle = " -> ".join((name, *path))
                yield TemplateFault(name, reference.line, f"template includes form a cycle: {cycle}")

    def undefined(self, name: str, given: Collection[str]) -> Iterator[TemplateFault]:
        """Yield the variables that some path through a template reads but nothing defines."""
        reachable = self.reachable(name)
        defined = self.global_names.union(
            _JINJA_NAMES, given, *(self.analysis_of(other).defines for other in reachable)
        )
        replaced: set[str] = set()
        for other in reachable:
            analysis = self.analysis_of(other)
            for used, line, blocks in analysis.variables:
                if used not in defined and replaced.isdisjoint(blocks):
                    yield TemplateFault(
                        other, line, f"{used!r} is undefined{did_you_mean(used, sorted(given))}", DECLARE_HINT
                    )
            if analysis.extends:
                replaced |= analysis.overrides

    def variables(self, name: str) -> set[str]:
        """Return the variables that a template, or any reachable one, reads."""
        return {use for other in self.reachable(name) for use, _, _ in self.analysis_of(other).variables}

    def _target(self, reference: TemplateReference) -> str | None:
        return next((name for name in reference.names or () if name in self.names), None)

    def _target_names(self, name: str) -> Iterator[str]:
        return (target for reference in self.analysis_of(name).references if (target := self._target(reference)))

    def _path_between(self, start: str, end: str) -> tuple[str, ...] | None:
        """Return the path of references between two templates, including both, or None."""
        paths: list[tuple[str, ...]] = [(start,)]
        visited = {start}
        for path in paths:
            if path[-1] == end:
                return path
            for target in self._target_names(path[-1]):
                if target not in visited:
                    visited.add(target)
                    paths.append((*path, target))
        return None


HTTP_TOOL = "http_request"
_SHOWN_DOMAINS = 20
CONVERSATION_VARIABLES = frozenset({"message", "history"})
"""Variables whose values differ between runs."""
RUN_VARIABLES = CONVERSATION_VARIABLES | {"http", "parallel_calls"}
RUN_VARIABLE_TEXTS: Mapping[str, str] = {
    "agent": "the agent: `name`, `description`",
    "history": "the earlier messages that are sent to the model, oldest first, each with `role` and `content`",
    "http": "limits of `http_request`: `domains`, `methods`, `timeout`; `none` if the agent does not have this tool",
    "limits": "the current limits, such as `limits.timeout`, in seconds",
    "locale": "the language",
    "message": "the current user message",
    "parallel_calls": "whether the model can call several tools in one turn",
    "tools": "the offered tools, each with `name`, `description`, `parameters`",
    "user": "the user; in instructions only",
}
"""Descriptions of the variables that every template of a run receives, for editors."""
PLAN_TEMPLATE = "plan.j2"
"""Template that asks for a plan, unless the agent names another."""
OWN_VARIABLE_TEXTS: Mapping[str, Mapping[str, str]] = {
    PLAN_TEMPLATE: {
        "feedback": "what a person wants changed in the last plan; empty if nobody was asked",
        "findings": "why the last plan is invalid, one text each; empty if it is not",
        "max_plan_steps": "how many steps the plan may have",
        "progress": "steps of the plan in progress that have started, each with `id`, `status`, `description`",
    },
    "summary.j2": {
        "plan": "the executed plan: `goal`, and `steps`, each with `id`, `status`, `description`, `replaced`"
    },
    "compress.j2": {"requests": "the start of each user message that is summarized"},
    "earlier.j2": {"summary": "the summary of the start of the conversation: `text`, `events`, `facts`"},
    "error.j2": {
        "findings": "invalid arguments, each with `field`, `kind`, `problem`, `value`, `expected`, `fix`",
        "hint": "what to do; may be empty",
        "message": "why the call failed",
        "tool": "the tool that was called",
    },
}
"""Descriptions of the variables that only one of the runtime's own templates receives, by template."""


@dataclass(frozen=True, slots=True)
class RunVariables:
    """The values of one run. They are data: templates insert them without rendering them."""

    message: str = ""
    """The current user message."""
    history: Sequence[Message] = ()
    """Earlier messages of the conversation, as far as they are sent to the model."""
    http: HttpLimits | None = None
    """Limits of `http_request`; None if the agent does not have this tool."""
    parallel_calls: bool = True
    """Whether the model can call several tools in one turn."""

    def data(self) -> dict[str, Any]:
        """Return all variables by name, as plain data."""
        history = [{"role": message.role, "content": message.content} for message in self.history]
        return {"message": self.message, "history": history, **self.limits()}

    def limits(self) -> dict[str, Any]:
        """Return the variables that are equal for many runs."""
        if self.http is None:
            return {"http": None, "parallel_calls": self.parallel_calls}
        domains = self.http.domains
        more = len(domains) - _SHOWN_DOMAINS
        shown = [*domains[:_SHOWN_DOMAINS], *([f"{more} more"] if more > 0 else [])]
        http = {"domains": shown, "methods": list(self.http.methods), "timeout": self.http.timeout}
        return {"http": http, "parallel_calls": self.parallel_calls}


NO_RUN = RunVariables()
"""The values outside a run: no message, no history, no HTTP access."""
PROMPTS_FOLDER = "prompts"
MAX_RENDERED_CHARS = 64 * 1024
_MAX_LOCALE_PARTS = 3
_OPTIONS: Mapping[str, Any] = {"undefined": StrictUndefined, "keep_trailing_newline": True}
_MAX_SHARED = 500
"""Number of templates whose code and analysis the projects of the process share."""
MAX_RENDER_SECONDS = 1.0
"""Timeout of rendering with sample values."""
_JINJA_MARKS = ("{{", "{%", "{#")
_TAG = re.compile(r"\{[{%#]")
_QUOTED = re.compile(r"'([^']+)'")


class PromptError(Exception):
    """Raised for a template that cannot be rendered; `problem` has the position and the cause."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@cache
def shipped_templates() -> Mapping[str, str]:
    """Return the default templates by name, in English and Chinese."""
    folder = Path(__file__).with_name("shipped")
    return {path.name: path.read_text("utf-8") for path in sorted(folder.glob("*.j2"))}


@lru_cache(maxsize=_MAX_SHARED)
def _compiled(source: str, name: str) -> CodeType:
    return BoundedEnvironment(**_OPTIONS).compile(source, name, f"{PROMPTS_FOLDER}/{name}")


@lru_cache(maxsize=_MAX_SHARED)
def _analyzed(source: str, name: str) -> TemplateAnalysis:
    return analyze(BoundedEnvironment(**_OPTIONS), source, name)


T = TypeVar("T")


class _Made:
    """The code and analyses of one generation's templates. Those of the generation before are taken over.

    The shared ones alone do not suffice: each edit would evict all of a project that has more templates.
    """

    def __init__(self, before: _Made | None) -> None:
        self._results: dict[tuple[object, str, str], Any] = {}
        self._before = before._results if before else {}

    def get(self, make: Callable[[str, str], T], source: str, name: str) -> T:
        """Return the result of a function of a template's source and name."""
        key = (make, source, name)
        if key not in self._results:
            self._results[key] = self._before[key] if key in self._before else make(source, name)
        result: T = self._results[key]
        return result


class _Environment(BoundedEnvironment):
    def __init__(self, made: _Made, loader: FunctionLoader) -> None:
        super().__init__(**_OPTIONS, auto_reload=False, cache_size=-1, loader=loader)
        self._made = made
        for name in ("lipsum", "cycler", "joiner"):
            self.globals.pop(name, None)

    def compile(  # type: ignore[override]  # as in its base class
        self, source: str | nodes.Template, name: str | None = None, *_: Any, **__: Any
    ) -> CodeType:
        return self._made.get(_compiled, str(source), name or "")


class Prompts:
    """The templates of one generation.

    A template is chosen by name and locale: `system.zh-TW.j2`, else `system.zh.j2`, else `system.j2`.
    """

    def __init__(self, sources: Mapping[str, str], before: Prompts | None = None) -> None:
        """Load sources by name. Those that are the same in `before` are not compiled and analyzed again."""
        self.project_names = frozenset(sources)
        """Names of the project's templates; only these can be invalid."""
        self._sources = {**shipped_templates(), **sources}
        self._variables: dict[str, frozenset[str]] = {}
        self._check_results: dict[tuple[str, frozenset[str]], tuple[Problem, ...]] = {}
        self._made: _Made = _Made(before._made if before else None)
        self._environment = _Environment(self._made, FunctionLoader(self._load))
        self._graph = TemplateGraph(self._sources.keys(), self._analyze, frozenset(self._environment.globals))

    def names(self) -> list[str]:
        """Return the names of all templates, including the shipped ones."""
        return sorted(self._sources)

    def text(self, name: str) -> str:
        """Return the text of a template; raise KeyError if there is none."""
        return self._sources[name]

    def has(self, name: str) -> bool:
        """Return whether a template of exactly this name exists."""
        return name in self._sources

    def problems(self) -> Iterator[Problem]:
        """Yield the errors of the project's templates that do not depend on their variables."""
        for name in sorted(self.project_names):
            try:
                faults = list(self._graph.faults(name))
                yield from map(self._fault_problem, faults)
                if not faults:
                    self._environment.get_template(name)
            except Exception as error:  # noqa: BLE001 - Jinja's compiler also raises errors of Python's compiler
                yield self._problem(name, error)

    def check(self, name: str, given: Iterable[str]) -> tuple[Problem, ...]:
        """Return the problems of a template, on every path through it, if variables of these names are given."""
        names = frozenset(given)
        if (name, names) not in self._check_results:
            self._check_results[name, names] = tuple(dict.fromkeys(self._check(name, names)))
        return self._check_results[name, names]

    def variables(self, name: str) -> set[str]:
        """Return the variables that a valid template, or any reachable one, reads."""
        return self._graph.variables(name)

    def variables_for(self, name: str, locale: str) -> frozenset[str]:
        """Return the variables that the variant for a locale reads."""
        chosen = self.variant_for(name, locale)
        if chosen not in self._variables:
            self._variables[chosen] = frozenset(self.variables(chosen))
        return self._variables[chosen]

    def variants(self, name: str) -> list[str]:
        """Return the names of a template and its locale variants."""
        stem, _, suffix = name.rpartition(".")
        return [n for n in self.names() if n == name or (n.startswith(f"{stem}.") and n.endswith(f".{suffix}"))]

    def locales(self, name: str) -> list[str]:
        """Return the locales that a template has a variant for."""
        stem, _, suffix = name.rpartition(".")
        return [n.removeprefix(f"{stem}.").removesuffix(f".{suffix}") for n in self.variants(name) if n != name]

    def closure(self, names: Iterable[str]) -> dict[str, str]:
        """Return the sources of templates, of their variants, and of all templates that those refer to.

        A missing template has an empty source.
        """
        pending = [variant for name in names for variant in (name, *self.variants(name))]
        sources: dict[str, str] = {}
        while pending:
            name = pending.pop()
            if name not in sources:
                sources[name] = self._sources.get(name, "")
                pending.extend(self._referenced(name))
        return sources

    def render(self, name: str, locale: str, variables: Mapping[str, Any]) -> str:
        """Render a template. A template without Jinja syntax is returned unchanged.

        Raises:
            PromptError: the template is missing, uses an unknown variable, fails, or renders too much text.
        """
        return self.render_variant(self.variant_for(name, locale), variables)

    def variant_for(self, name: str, locale: str) -> str:
        """Return the name of the variant for a locale; every project template precedes the shipped ones."""
        candidates = list(_candidates(name, locale))
        own = (candidate for candidate in candidates if candidate in self.project_names)
        shipped = (candidate for candidate in candidates if candidate in self._sources)
        return next(own, None) or next(shipped, name)

    def render_variant(self, name: str, variables: Mapping[str, Any]) -> str:
        """Render a template without selecting a variant; raise the errors of `render`."""
        text = self._sources.get(name, "")
        if name not in self._sources or any(mark in text for mark in _JINJA_MARKS):
            text = self._render(name, variables)
        if len(text) > MAX_RENDERED_CHARS:
            message = f"the rendered text exceeds {MAX_RENDERED_CHARS} characters"
            raise PromptError(Problem(path=f"{PROMPTS_FOLDER}/{name}", message=message))
        return text

    def render_within_timeout(self, name: str, variables: Mapping[str, Any]) -> None:
        """Render a template with a timeout; raise PromptError if it fails or exceeds `MAX_RENDER_SECONDS`."""
        render = partial(self.render_variant, name, variables)
        try:
            call_within(MAX_RENDER_SECONDS, render, is_exempt=lambda _: False, max_seconds=MAX_RENDER_SECONDS).result()
        except DeadlineExceededError as error:
            inside = [(path.removeprefix(PROMPTS_FOLDER + "/"), line) for path, line in error.stack]
            name, line = next((place for place in reversed(inside) if place[0] in self._sources), (name, 0))
            line = self._environment.get_template(name).get_corresponding_lineno(line)
            raise PromptError(self._problem_at(name, line, f"{error} with sample values", None)) from None

    def _render(self, name: str, variables: Mapping[str, Any]) -> str:
        parts: list[str] = []
        length = 0
        start_budget()
        try:
            for part in self._environment.get_template(name).generate(variables):
                parts.append(part)
                length += len(part)
                if length > MAX_RENDERED_CHARS:
                    break
        except Exception as error:  # noqa: BLE001 - filters and values may raise any exception
            raise PromptError(self._problem(name, error)) from None
        return "".join(parts)

    def _load(self, name: str) -> tuple[str, str, None] | None:
        """Return the source, and a file name that identifies the template in tracebacks."""
        return (self._sources[name], f"{PROMPTS_FOLDER}/{name}", None) if name in self._sources else None

    def _analyze(self, name: str) -> TemplateAnalysis:
        return self._made.get(_analyzed, self._sources[name], name)

    def _referenced(self, name: str) -> Iterator[str]:
        try:
            references = self._analyze(name).references if self.has(name) else ()
        except (TemplateSyntaxError, RecursionError):
            return  # reported by `problems`
        for reference in references:
            yield from reference.names or ()

    def _check(self, name: str, given: frozenset[str]) -> Iterator[Problem]:
        if not self.has(name):
            return  # reported by `render`
        try:
            faults = [fault for here in self._graph.reachable(name) for fault in self._graph.faults(here)]
            yield from map(self._fault_problem, [*faults, *self._graph.undefined(name, given)])
        except (TemplateSyntaxError, RecursionError) as error:
            yield self._problem(name, error)

    def _problem(self, name: str, error: Exception) -> Problem:
        name, line = self._locate(name, error)
        message, hint = redact(str(error)) or type(error).__name__, None
        if isinstance(error, TemplateNotFound):
            message = f"there is no template {error.name!r}{did_you_mean(str(error.name), self.names())}"
        elif isinstance(error, UndefinedError) and message.endswith("is undefined"):
            hint = DECLARE_HINT
        elif isinstance(error, RecursionError):
            message = "template includes form a cycle or nest too deeply"
        return self._problem_at(name, line, message, hint)

    def _fault_problem(self, fault: TemplateFault) -> Problem:
        return self._problem_at(fault.template, fault.line, fault.message, fault.hint)

    def _problem_at(self, name: str, line: int | None, message: str, hint: str | None) -> Problem:
        lines = tuple(self._sources.get(name, "").splitlines())
        column = _column_of(message, lines[line - 1]) if line and line <= len(lines) else None
        problem = problem_at(f"{PROMPTS_FOLDER}/{name}", lines, line or 0, column or 1, message, hint)
        return problem.model_copy(update={"line": line, "column": column})

    def _locate(self, name: str, error: Exception) -> tuple[str, int | None]:
        """Return the innermost template and line of an error; Jinja maps tracebacks to template lines."""
        if isinstance(error, TemplateSyntaxError):
            return error.name or name, error.lineno
        place: tuple[str, int | None] = (name, None)
        trace = error.__traceback__
        while trace is not None:
            template = trace.tb_frame.f_code.co_filename.removeprefix(PROMPTS_FOLDER + "/")
            if template in self._sources:
                place = (template, trace.tb_lineno)
            trace = trace.tb_next
        return place


def _column_of(message: str, text: str) -> int | None:
    """Return the column of an error in a line of a template, because Jinja reports lines only.

    That is the place of the name which the message quotes, or of the line's only tag; None if neither is found.
    """
    starts = [found.start() for found in _TAG.finditer(text)]
    for quoted in _QUOTED.findall(message) if starts else ():
        if found := re.compile(rf"(?<!\w){re.escape(quoted)}(?!\w)").search(text, starts[0]):
            return found.start() + 1
    return starts[0] + 1 if len(starts) == 1 else None


def base_name(variant: str) -> str:
    """Return the name of the template that a variant for a locale belongs to: `plan.j2` for `plan.zh.j2`."""
    folder, _, file = variant.rpartition("/")
    stem, _, suffix = file.rpartition(".")
    base = f"{stem.partition('.')[0]}.{suffix}"
    return f"{folder}/{base}" if folder else base


def _candidates(name: str, locale: str) -> Iterator[str]:
    stem, _, suffix = name.rpartition(".")
    parts = locale.replace("_", "-").split("-", _MAX_LOCALE_PARTS)[:_MAX_LOCALE_PARTS]
    for length in range(len(parts), 0, -1):
        yield f"{stem}.{'-'.join(parts[:length])}.{suffix}"
    yield name
