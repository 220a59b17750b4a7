"""What templates need, read from their syntax trees without rendering them: variables, other templates, filters, tests.

A rendering with samples takes one way through a template; this looks at all of them. It is careful, for what it finds
keeps a template from being used: a name that any template in reach sets, or asks `is defined`, is never missed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from jinja2 import Environment, nodes

from framework.types.errors import did_you_mean

DECLARE = "declare it under `inputs`, or give it under `vars`"
WRITE_OUT = "write the name out, for instance `{% if brief %}{% include 'brief.j2' %}{% endif %}`"
_BY_JINJA = frozenset({"loop", "caller", "varargs", "kwargs", "self", "super"})
_GUARDS = frozenset({"defined", "undefined", "default", "d"})


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong at a line of a template."""

    template: str
    line: int
    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a template extends, includes or imports another."""

    line: int
    names: tuple[str, ...] | None
    """The first of them that there is; none where the name is computed."""
    may_be_missing: bool


@dataclass(slots=True)
class Needs:
    """What one template needs, and what it gives."""

    uses: list[tuple[str, int, frozenset[str]]] = field(default_factory=list)
    """Variables: name, line, and the blocks around it."""
    gives: set[str] = field(default_factory=set)
    """Names it sets somewhere, or asks about before it uses them."""
    references: list[Reference] = field(default_factory=list)
    extends: bool = False
    replaces: set[str] = field(default_factory=set)
    """Blocks that it has, without asking for the one they replace."""
    unknown: list[tuple[int, str, str, list[str]]] = field(default_factory=list)
    """Line, kind and name of a filter or test that does not exist, and those that do."""


def read_needs(environment: Environment, source: str, name: str) -> Needs:
    """Read a template; raises TemplateSyntaxError, or RecursionError if it nests too deeply."""
    found, body = Needs(), environment.parse(source, name).body
    extends = any(isinstance(node, nodes.Extends) for node in body)
    for node in body:
        if not (extends and isinstance(node, nodes.Output)):  # a child's own text is never rendered
            _read(node, frozenset(), environment, found)
    return found


def _read(node: nodes.Node, blocks: frozenset[str], environment: Environment, found: Needs) -> None:
    match node:
        case nodes.Name(ctx="load"):
            found.uses.append((node.name, node.lineno, blocks))
        case nodes.Name() | nodes.Macro():
            found.gives.add(node.name)
        case nodes.Import():
            found.gives.add(node.target)
        case nodes.FromImport():
            found.gives.update(name if isinstance(name, str) else name[1] for name in node.names)
        case nodes.Filter() | nodes.Test():
            _read_filter(node, environment, found)
        case nodes.Block():
            blocks |= {node.name}
            if not any(call.name == "super" for call in node.find_all(nodes.Name)):
                found.replaces.add(node.name)
    if isinstance(node, (nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport)):
        found.extends |= isinstance(node, nodes.Extends)
        may_be_missing = isinstance(node, nodes.Include) and node.ignore_missing
        found.references.append(Reference(node.lineno, _written_out(node.template), may_be_missing))
    for inner in node.iter_child_nodes():
        _read(inner, blocks, environment, found)


def _read_filter(node: nodes.Filter | nodes.Test, environment: Environment, found: Needs) -> None:
    kind, known = ("filter", environment.filters) if isinstance(node, nodes.Filter) else ("test", environment.tests)
    if node.name not in known:
        found.unknown.append((node.lineno, kind, node.name, sorted(known)))
    if node.name in _GUARDS and isinstance(node.node, nodes.Name):
        found.gives.add(node.node.name)


def _written_out(template: nodes.Expr) -> tuple[str, ...] | None:
    """The names in a reference, unless one of them is computed."""
    parts = template.items if isinstance(template, (nodes.List, nodes.Tuple)) else [template]
    names = [part.value for part in parts if isinstance(part, nodes.Const) and isinstance(part.value, str)]
    return tuple(names) if len(names) == len(parts) else None


@dataclass(frozen=True, slots=True)
class Library:
    """All templates there are."""

    names: Collection[str]
    needs: Callable[[str], Needs]
    """Of a template that there is; raises what is wrong with its syntax."""
    known: frozenset[str]
    """Names that are known to every template."""

    def reached(self, name: str) -> list[str]:
        """A template, and all that it extends, includes and imports, parents before what they extend."""
        found = [name]
        for here in found:
            found += [target for target in dict.fromkeys(self._targets(here)) if target not in found]
        return found

    def faults(self, name: str) -> Iterator[Fault]:
        """What is wrong with a template, whatever it is given."""
        needs = self.needs(name)
        for line, kind, unknown, known in needs.unknown:
            yield Fault(name, line, f"there is no {kind} {unknown!r}{did_you_mean(unknown, known)}")
        for reference in needs.references:
            if reference.names is None:
                yield Fault(name, reference.line, "the name of the other template is computed", WRITE_OUT)
            elif not reference.may_be_missing and not self._target(reference):
                missing = reference.names[0] if reference.names else ""
                meant = did_you_mean(missing, sorted(self.names))
                yield Fault(name, reference.line, f"there is no template {missing!r}{meant}")
            elif (target := self._target(reference)) and (way := self._way(target, name)):
                circle = " -> ".join((name, *way))
                yield Fault(name, reference.line, f"templates include each other in a circle: {circle}")

    def missing(self, name: str, given: Collection[str]) -> Iterator[Fault]:
        """The variables that are needed on some way through a template, and not given."""
        reached = self.reached(name)
        there = self.known.union(_BY_JINJA, given, *(self.needs(here).gives for here in reached))
        replaced: set[str] = set()
        for here in reached:
            needs = self.needs(here)
            for used, line, blocks in needs.uses:
                if used not in there and replaced.isdisjoint(blocks):
                    yield Fault(here, line, f"{used!r} is undefined{did_you_mean(used, sorted(given))}", DECLARE)
            if needs.extends:
                replaced |= needs.replaces

    def used(self, name: str) -> set[str]:
        """The variables that a template, or any it reaches, makes use of."""
        return {use for here in self.reached(name) for use, _, _ in self.needs(here).uses}

    def _target(self, reference: Reference) -> str | None:
        return next((name for name in reference.names or () if name in self.names), None)

    def _targets(self, name: str) -> Iterator[str]:
        return (target for reference in self.needs(name).references if (target := self._target(reference)))

    def _way(self, start: str, end: str) -> tuple[str, ...] | None:
        """How one template leads to another, both named, if it does."""
        ways: list[tuple[str, ...]] = [(start,)]
        seen = {start}
        for way in ways:
            if way[-1] == end:
                return way
            for target in self._targets(way[-1]):
                if target not in seen:
                    seen.add(target)
                    ways.append((*way, target))
        return None
