"""Variables of templates."""

from __future__ import annotations

from collections.abc import Iterator

from examples.reference.markdown import code, table
from framework.config.templates.variables import RUN_VARIABLE_TEXTS

_OPENING = """\
After this page you know what a prompt template can use. [Prompts](../agents.md#prompts) explains
how templates are found, checked and limited.
"""
_REST = """
An agent's `inputs` and the `vars` of its template come first: a name of theirs replaces a name
above. Values of users and tools are data: they are inserted and never rendered.

The filters, tests and functions are Jinja2's own, in its sandbox. A template that uses a name that
does not exist is reported when the file is saved.
"""


def templates_page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Variables of templates\n"
    yield _OPENING
    yield "## Variables\n"
    yield from table(("variable", "value"), [(code(name), text) for name, text in sorted(RUN_VARIABLE_TEXTS.items())])
    yield _REST
