"""The tools that come with the runtime.

In reading order; each module imports only from those below it:

    calculator        The calculator tool; how it counts stands in `arithmetic`.
    logs              A log analyst's tool: what is in a log file, without reading it all into a conversation.
    querying          Taking JSON apart with JMESPath.
    search            Finding files by name or content, below the base path of the run.
    writing           Writing and changing text files, below the base path of the run.
    arithmetic        Arithmetic on exact fractions, from text, without running the text as code.
    asking            The model asks its user: the run pauses until there is an answer.
    files             Looking at folders and reading files, below the base path of the run.
    formatting        Bringing text and small tables into another form.
    http              One request to a server that the operator allows.
    jmespath_process  A process of its own that evaluates one JMESPath expression; run as a file, never imported.
    notes             What an agent notes for itself: values by name, and the list of what is to be done. Both ...
    text              The smallest tool there is: it shows that calls arrive and results come back.
"""

from __future__ import annotations

from framework.tools.builtin.asking import ask_user
from framework.tools.builtin.calculator import calculator
from framework.tools.builtin.files import list_dir, read_file
from framework.tools.builtin.formatting import format_text
from framework.tools.builtin.http import http_request
from framework.tools.builtin.logs import log_transform
from framework.tools.builtin.notes import session_get, session_set, todo
from framework.tools.builtin.querying import json_transform
from framework.tools.builtin.search import search_files
from framework.tools.builtin.text import echo
from framework.tools.builtin.writing import edit_file, write_file
from framework.tools.tool import Tool

_TOOLS = (
    *(echo, calculator, list_dir, read_file, search_files, log_transform),
    *(json_transform, format_text, write_file, edit_file),
    *(session_get, session_set, todo, ask_user, http_request),
)
BUILTIN_TOOLS: tuple[Tool, ...] = tuple(tool.named(tool.name, "builtin") for tool in _TOOLS)
