"""The tools that come with the runtime. Of the files they see, only write_file and edit_file change any.

None but `http_request` reaches beyond this machine.
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
