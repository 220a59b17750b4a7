"""The tools that come with the runtime.

In reading order; each module imports only from those below it:

    jmespath_process  The script of that process: evaluates one JMESPath expression within limits.
    notes             `session_set`, `session_get`, `todo`, `ask_user`, `echo`, the rest of long results, `memory.*`.
    data              `calculator` and `json_transform`.
    files             `list_dir`, `read_file`, `search_files`, `write_file`, `edit_file` and `shell`.
"""

from __future__ import annotations

from framework.tools.builtin.data import calculator, json_transform
from framework.tools.builtin.files import edit_file, list_dir, read_file, search_files, shell, write_file
from framework.tools.builtin.notes import (
    RESULT_READ,
    RESULT_SEARCH,
    ask_user,
    echo,
    result_read,
    result_search,
    session_get,
    session_set,
    todo,
)
from framework.tools.http import http_request
from framework.tools.tool import Tool
from framework.tools.toolset import TOOL_SEARCH, tool_search

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
