"""The tools that come with the runtime. All of them only read."""

from __future__ import annotations

from framework.tools.builtin.calculator import calculator
from framework.tools.builtin.files import list_dir, read_file
from framework.tools.builtin.logs import log_transform
from framework.tools.builtin.notes import session_get, session_set, todo
from framework.tools.builtin.search import search_files
from framework.tools.builtin.text import echo
from framework.tools.tool import Tool

BUILTIN_TOOLS: tuple[Tool, ...] = tuple(
    tool.named(tool.name, "builtin")
    for tool in (
        echo,
        calculator,
        list_dir,
        read_file,
        search_files,
        log_transform,
        session_get,
        session_set,
        todo,
    )
)
