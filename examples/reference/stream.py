"""Events, from their classes."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from examples.reference.markdown import code, first_paragraph, prose, table, written_types
from framework.config.schema import field_docs
from framework.types.events import WIRE_NAMES, RunEvent

_OPENING = """\
Every event with its fields, as streams of runs (`runtime.stream`, `agentsd run --events`, the HTTP
API) and of the configuration carry them: JSON with the name in `event`. The classes are those of
`agentsd.events`. [Events](../embedding.md#events) shows how to read them.
"""


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
    if rows := [(code(name), code(types[name]), docs[name]) for name in kind.model_fields if name not in known]:
        yield from table(("field", "type", "meaning"), rows)
