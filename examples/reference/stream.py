"""Events, from their classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import BaseModel

from examples.reference.markdown import code, first_paragraph, prose, table, written_types
from framework.config.schema import field_docs
from framework.types.events import WIRE_NAMES, ConfirmationRequested, RunEvent
from framework.types.state import Confirmation

_OPENING = """\
Every event with its fields, as streams of runs (`runtime.stream`, `agentsd run --events`, the HTTP
API) and of the configuration carry them: JSON with the name in `event`. The classes are those of
`agentsd.events`. [Events](../embedding.md#events) shows how to read them.
"""
_CONTENTS: Mapping[type[BaseModel], type[BaseModel]] = {ConfirmationRequested: Confirmation}
"""Events that carry the data of a class on the page of results."""


def events_page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Events\n"
    yield _OPENING
    yield "## Fields of all events of a run\n"
    yield from _fields(RunEvent, frozenset())
    before: list[str] = []
    for kind, name in WIRE_NAMES.items():
        fields = list(_fields(kind, frozenset(RunEvent.model_fields) if issubclass(kind, RunEvent) else frozenset()))
        is_same = fields == before and bool(fields)
        text = f"{first_paragraph(kind.__doc__)} `{kind.__name__}`{', with the same fields' if is_same else ''}."
        yield f"\n## {name}\n"
        yield prose(text) + "\n"
        yield from () if is_same else fields
        before = fields


def _fields(kind: type[BaseModel], known: frozenset[str]) -> Iterator[str]:
    docs, types = field_docs(kind), written_types(kind)
    if whole := _CONTENTS.get(kind):
        theirs = field_docs(whole)
        known |= {name for name in docs if docs[name] == theirs.get(name)}
    rows = [(code(name), code(types[name]), docs[name]) for name in kind.model_fields if name not in known]
    if whole:
        link = f"[{whole.__name__}](python-results.md#agentsd{whole.__name__.lower()})"
        yield f"It has the fields of {link}{', and:' if rows else '.'}\n"
    if rows:
        yield from table(("field", "type", "meaning"), rows)
