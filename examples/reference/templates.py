"""Variables of templates."""

from __future__ import annotations

from collections.abc import Iterator

from examples.reference.markdown import code, table
from framework.config.templates.prompts import OWN_VARIABLE_TEXTS, RUN_VARIABLE_TEXTS

_OPENING = """\
What a prompt template can use. [Prompts](../agents.md#prompts) explains
how templates are found, checked and limited.
"""
_OWN = """
agentsd's own templates receive more; a template of `plan: {template: NAME}` receives what `plan.j2`
does, and `error.j2` only what this table lists. `agentsd templates NAME` lists the variables of one
template, and `agentsd templates NAME --text --shipped` prints agentsd's own:
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
    yield _OWN
    rows = [
        (code(template), code(name), text)
        for template, variables in OWN_VARIABLE_TEXTS.items()
        for name, text in sorted(variables.items())
    ]
    yield from table(("template", "variable", "value"), rows)
    yield _REST
