"""The tools that come with the runtime.

In reading order; each module imports only from those below it:

    json_query        `json_transform`: evaluates JMESPath expressions in a separate process.
    jmespath_process  The script of that process: evaluates one JMESPath expression within limits.
    files             `list_dir`, `read_file`, `search_files`, `write_file` and `edit_file`.
    calculator        `calculator`: arithmetic on exact fractions.
    shell             `shell`: one command in the sandbox that the operator sets up.
    notes             `session_set`, `session_get`, `todo`, `ask_user`, `echo`.
    results           `result.read` and `result.search`: the rest of a long result; the engine executes them.
    http              `http_request`: one request to an allowed server.
"""

from __future__ import annotations

from framework.tools.builtin.calculator import calculator
from framework.tools.builtin.files import edit_file, list_dir, read_file, search_files, write_file
from framework.tools.builtin.http import http_request
from framework.tools.builtin.json_query import json_transform
from framework.tools.builtin.notes import ask_user, echo, session_get, session_set, todo
from framework.tools.builtin.results import RESULT_READ, RESULT_SEARCH, result_read, result_search
from framework.tools.builtin.shell import shell
from framework.tools.tool import Tool
from framework.tools.tool_search import TOOL_SEARCH, tool_search

_TOOLS = (
    *(echo, calculator, list_dir, read_file, search_files),
    *(json_transform, write_file, edit_file),
    *(session_get, session_set, todo, ask_user, http_request, shell),
)
BUILTIN_TOOLS: tuple[Tool, ...] = (
    *(tool.named(tool.name, "builtin") for tool in _TOOLS),
    result_read.named(RESULT_READ, "run"),
    result_search.named(RESULT_SEARCH, "run"),
    tool_search.named(TOOL_SEARCH, "run"),
)
