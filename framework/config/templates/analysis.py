"""Finds the variables, includes, filters and tests that templates use, from their syntax trees.

Rendering with sample values covers one path through a template; this covers every path. It avoids false alarms,
because a finding rejects the template: a name that any reachable template sets, or tests with `is defined`, counts as
defined.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from jinja2 import Environment, nodes

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


@dataclass(frozen=True, slots=True)
class TemplateReference:
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


@dataclass(frozen=True, slots=True)
class TemplateGraph:
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
