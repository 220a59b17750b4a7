"""Calls of the built-in file tools, and the spellings of a path, for tests of rules on paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FILE_TOOL_CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "read_file": ("path", {}),
    "list_dir": ("path", {}),
    "json_transform": ("path", {"expression": "@"}),
    "search_files": ("root_dir", {"query": "x"}),
    "write_file": ("path", {"content": "{}\n", "mode": "overwrite"}),
    "edit_file": ("path", {"old": "{}", "new": "{ }"}),
}
"""Built-in tools with a path: the name of its argument, and the other arguments of a call."""


def path_spellings(base: Path, path: str) -> list[str]:
    """Return other spellings of the same path."""
    doubled = path.replace("/", "//")
    return [f"./{path}", f".//{path}", f"././{path}", doubled, path.replace("/", "/./"), f"{base}/{path}", f"{path}/."]
