"""Definitions of MCP tools and servers, as a server lists them and as a file declares them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.support.paths import SUPPORT

OBJECT = {"type": "object"}
ANY_ARGUMENTS: dict[str, Any] = {"type": "object", "additionalProperties": True}


def tool_definition(name: str, schema: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Build a definition; `schema` is the input schema."""
    return {"name": name, "description": f"Does {name}.", "inputSchema": schema or OBJECT, **more}


def open_tool_definition(
    name: str, description: str = "Says it.", schema: dict[str, Any] = ANY_ARGUMENTS
) -> dict[str, Any]:
    """Build a definition of a tool that, by default, accepts any arguments."""
    return {"name": name, "description": description, "inputSchema": schema}


def server_file(root: Path, **more: str) -> str:
    """Return a file that declares the server `docs`, configured by `config.json` in `root`."""
    command = json.dumps([sys.executable, str(SUPPORT / "mcp_raw.py"), str(root / "config.json")])
    lines = "".join(f"    {key}: {value}\n" for key, value in more.items())
    return f"version: 1\nmcp_servers:\n  docs:\n    command: {command}\n{lines}"
