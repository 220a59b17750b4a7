"""What templates need, read from their syntax trees without rendering them: variables, other templates, filters, tests.

A rendering with samples takes one way through a template; this looks at all of them. It is careful, for what it finds
keeps a template from being used: a name that any template in reach sets, or asks `is defined`, is never missed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from jinja2 import Environment, nodes

from framework.types.text import did_you_mean

DECLARE_HINT = "declare it under `inputs`, or give it under `vars`"
_LITERAL_HINT = "write the name out, for instance `{% if brief %}{% include 'brief.j2' %}{% endif %}`"
_JINJA_NAMES = frozenset({"loop", "caller", "varargs", "kwargs", "self", "super"})
_GUARDS = frozenset({"defined", "undefined", "default", "d"})


@dataclass(frozen=True, slots=True)
class TemplateFault:
    """What is wrong at a line of a template."""

    template: str
    line: int
    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class TemplateReference:
    """Where a template extends, includes or imports another."""

    line: int
    names: tuple[str, ...] | None
    """The first of them that there is; none where the name is computed."""
    may_be_missing: bool


@dataclass(slots=True)
class TemplateAnalysis:
    """What one template needs, and what it gives."""

    variables: list[tuple[str, int, frozenset[str]]] = field(default_factory=list)
    """Variables: name, line, and the blocks around it."""
    defines: set[str] = field(default_factory=set)
    """Names it sets somewhere, or asks about before it uses them."""
    references: list[TemplateReference] = field(default_factory=list)
    extends: bool = False
    overrides: set[str] = field(default_factory=set)
    """Blocks that it has, without asking for the one they replace."""
    unknown: list[tuple[int, str, str, list[str]]] = field(default_factory=list)
    """Line, kind and name of a filter or test that does not exist, and those that do."""


def analyze(environment: Environment, source: str, name: str) -> TemplateAnalysis:
    """Read a template; raises TemplateSyntaxError, or RecursionError if it nests too deeply."""
    found, body = TemplateAnalysis(), environment.parse(source, name).body
    extends = any(isinstance(node, nodes.Extends) for node in body)
    for node in body:
        if not (extends and isinstance(node, nodes.Output)):  # a child's own text is never rendered
            _visit(node, frozenset(), environment, found)
    return found


def _visit(node: nodes.Node, blocks: frozenset[str], environment: Environment, found: TemplateAnalysis) -> None:
    match node:
        case nodes.Name(ctx="load"):
            found.variables.append((node.name, node.lineno, blocks))
        case nodes.Name() | nodes.Macro():
            found.defines.add(node.name)
        case nodes.Import():
            found.defines.add(node.target)
        case nodes.FromImport():
            found.defines.update(name if isinstance(name, str) else name[1] for name in node.names)
        case nodes.Filter() | nodes.Test():
            _visit_filter(node, environment, found)
        case nodes.Block():
            blocks |= {node.name}
            if not any(call.name == "super" for call in node.find_all(nodes.Name)):
                found.overrides.add(node.name)
    if isinstance(node, (nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport)):
        found.extends |= isinstance(node, nodes.Extends)
        may_be_missing = isinstance(node, nodes.Include) and node.ignore_missing
        found.references.append(TemplateReference(node.lineno, _literal_names(node.template), may_be_missing))
    for inner in node.iter_child_nodes():
        _visit(inner, blocks, environment, found)


def _visit_filter(node: nodes.Filter | nodes.Test, environment: Environment, found: TemplateAnalysis) -> None:
    kind, known = ("filter", environment.filters) if isinstance(node, nodes.Filter) else ("test", environment.tests)
    if node.name not in known:
        found.unknown.append((node.lineno, kind, node.name, sorted(known)))
    if node.name in _GUARDS and isinstance(node.node, nodes.Name):
        found.defines.add(node.node.name)


def _literal_names(template: nodes.Expr) -> tuple[str, ...] | None:
    """The names in a reference, unless one of them is computed."""
    parts = template.items if isinstance(template, (nodes.List, nodes.Tuple)) else [template]
    names = [part.value for part in parts if isinstance(part, nodes.Const) and isinstance(part.value, str)]
    return tuple(names) if len(names) == len(parts) else None


@dataclass(frozen=True, slots=True)
class TemplateGraph:
    """All templates there are."""

    names: Collection[str]
    analysis_of: Callable[[str], TemplateAnalysis]
    """Of a template that there is; raises what is wrong with its syntax."""
    global_names: frozenset[str]
    """Names that are known to every template."""

    def reachable(self, name: str) -> list[str]:
        """A template, and all that it extends, includes and imports, parents before what they extend."""
        found = [name]
        for here in found:
            found += [target for target in dict.fromkeys(self._target_names(here)) if target not in found]
        return found

    def faults(self, name: str) -> Iterator[TemplateFault]:
        """What is wrong with a template, whatever it is given."""
        needs = self.analysis_of(name)
        for line, kind, unknown, known in needs.unknown:
            yield TemplateFault(name, line, f"there is no {kind} {unknown!r}{did_you_mean(unknown, known)}")
        for reference in needs.references:
            if reference.names is None:
                yield TemplateFault(name, reference.line, "the name of the other template is computed", _LITERAL_HINT)
            elif not reference.may_be_missing and not self._target(reference):
                missing = reference.names[0] if reference.names else ""
                meant = did_you_mean(missing, sorted(self.names))
                yield TemplateFault(name, reference.line, f"there is no template {missing!r}{meant}")
            elif (target := self._target(reference)) and (way := self._path_between(target, name)):
                circle = " -> ".join((name, *way))
                yield TemplateFault(name, reference.line, f"templates include each other in a circle: {circle}")

    def undefined(self, name: str, given: Collection[str]) -> Iterator[TemplateFault]:
        """The variables that are needed on some way through a template, and not given."""
        reached = self.reachable(name)
        there = self.global_names.union(_JINJA_NAMES, given, *(self.analysis_of(here).defines for here in reached))
        replaced: set[str] = set()
        for here in reached:
            needs = self.analysis_of(here)
            for used, line, blocks in needs.variables:
                if used not in there and replaced.isdisjoint(blocks):
                    yield TemplateFault(
                        here, line, f"{used!r} is undefined{did_you_mean(used, sorted(given))}", DECLARE_HINT
                    )
            if needs.extends:
                replaced |= needs.overrides

    def variables(self, name: str) -> set[str]:
        """The variables that a template, or any it reaches, makes use of."""
        return {use for here in self.reachable(name) for use, _, _ in self.analysis_of(here).variables}

    def _target(self, reference: TemplateReference) -> str | None:
        return next((name for name in reference.names or () if name in self.names), None)

    def _target_names(self, name: str) -> Iterator[str]:
        return (target for reference in self.analysis_of(name).references if (target := self._target(reference)))

    def _path_between(self, start: str, end: str) -> tuple[str, ...] | None:
        """How one template leads to another, both named, if it does."""
        ways: list[tuple[str, ...]] = [(start,)]
        seen = {start}
        for way in ways:
            if way[-1] == end:
                return way
            for target in self._target_names(way[-1]):
                if target not in seen:
                    seen.add(target)
                    ways.append((*way, target))
        return None
