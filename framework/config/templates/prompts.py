"""Renders templates by name and locale, and reports their problems with positions.

A generation has one sandboxed environment, in which the project's templates override the shipped ones. Templates
receive plain data only. Text from users, tools and agent files is never rendered as a template, only inserted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from types import CodeType
from typing import Any

from jinja2 import BytecodeCache, FunctionLoader, StrictUndefined, TemplateNotFound, TemplateSyntaxError, UndefinedError
from jinja2.bccache import Bucket

from framework.config.templates import render_budget
from framework.config.templates.analysis import DECLARE_HINT, TemplateAnalysis, TemplateFault, TemplateGraph, analyze
from framework.config.templates.sandbox import BoundedEnvironment
from framework.config.yaml.document import problem_at
from framework.tools.deadline import DeadlineExceededError, call_within
from framework.types.problem import Problem
from framework.types.redact import redact
from framework.types.text import did_you_mean

PROMPTS_FOLDER = "prompts"
MAX_RENDERED_CHARS = 64 * 1024
_MAX_LOCALE_PARTS = 3
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


@cache
def _shipped_code(name: str) -> CodeType:
    """Compile a shipped template, once for all generations of the process."""
    return _environment().compile(shipped_templates()[name], name, f"{PROMPTS_FOLDER}/{name}")


@cache
def _shipped_analysis(name: str) -> TemplateAnalysis:
    return analyze(_environment(), shipped_templates()[name], name)


def _environment(**options: Any) -> BoundedEnvironment:
    environment = BoundedEnvironment(
        undefined=StrictUndefined, auto_reload=False, cache_size=-1, keep_trailing_newline=True, **options
    )
    for name in ("lipsum", "cycler", "joiner"):
        environment.globals.pop(name, None)
    return environment


class Prompts:
    """The templates of one generation.

    A template is chosen by name and locale: `system.zh-TW.j2`, else `system.zh.j2`, else `system.j2`.
    """

    def __init__(self, sources: Mapping[str, str], earlier: Prompts | None = None) -> None:
        """Load sources by name; those that are unchanged since `earlier` are not analyzed and compiled again."""
        self.project_names = frozenset(sources)
        """Names of the project's templates; only these can be invalid."""
        self._sources = {**shipped_templates(), **sources}
        self._compiled: _CompiledTemplates = _CompiledTemplates(earlier._compiled if earlier else None)
        self._analyses: dict[str, TemplateAnalysis] = earlier._reusable_analyses(self._sources) if earlier else {}
        self._variables: dict[str, frozenset[str]] = {}
        self._check_results: dict[tuple[str, frozenset[str]], tuple[Problem, ...]] = {}
        self._environment = _environment(loader=FunctionLoader(self._load), bytecode_cache=self._compiled)
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
        render_budget.begin()
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

    def _reusable_analyses(self, sources: Mapping[str, str]) -> dict[str, TemplateAnalysis]:
        return {name: needs for name, needs in list(self._analyses.items()) if sources.get(name) == self._sources[name]}

    def _analyze(self, name: str) -> TemplateAnalysis:
        if name not in self._analyses:
            is_own = name in self.project_names
            analysis = analyze(self._environment, self._sources[name], name) if is_own else _shipped_analysis(name)
            self._analyses[name] = analysis
        return self._analyses[name]

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


@cache
def _shipped_places() -> Mapping[tuple[str, str], str]:
    """Return the names of the shipped templates by their keys and checksums in a cache of Jinja."""
    cached = BytecodeCache()
    return {
        (cached.get_cache_key(name, f"{PROMPTS_FOLDER}/{name}"), cached.get_source_checksum(source)): name
        for name, source in shipped_templates().items()
    }


class _CompiledTemplates(BytecodeCache):
    """In-memory cache of compiled templates, keyed by name and source.

    Entries of the previous set of templates are reused, and dropped unless this set loads them.
    """

    def __init__(self, earlier: _CompiledTemplates | None = None) -> None:
        self.codes: dict[tuple[str, str], CodeType] = {}
        self._earlier = earlier.codes if earlier else {}

    def load_bytecode(self, bucket: Bucket) -> None:
        place = bucket.key, bucket.checksum
        bucket.code = self.codes.get(place) or self._earlier.get(place)
        if bucket.code is None and (shipped := _shipped_places().get(place)):
            bucket.code = _shipped_code(shipped)
        if bucket.code:
            self.codes[place] = bucket.code

    def dump_bytecode(self, bucket: Bucket) -> None:
        if bucket.code:
            self.codes[bucket.key, bucket.checksum] = bucket.code
