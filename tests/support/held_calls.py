"""A project whose tool waits until the test ends its call."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.support.projects import agent, write

HELD_TOOL = '''
import asyncio
from pathlib import Path

from framework import tool


@tool(risk="low", idempotent=True)
async def hello() -> str:
    """Say hello. Ends when the other side closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(Path("port").read_text()))
    try:
        await reader.read()
    finally:
        writer.close()
    return "hello"
'''
"""A plugin `say` with a tool that connects to the test, and returns when the test closes the connection."""


def write_held_project(root: Path, gate: socket.socket, plugin: str = HELD_TOOL, **keys: str) -> Path:
    """Write a project with the agent `one`, whose calls of `say.hello` connect to a listening socket; return its root.

    Args:
        root: the folder.
        gate: where the calls connect.
        plugin: source of the plugin `say`.
        keys: more keys of the agent file.
    """
    one = agent("one", model="offline", skill_policy="{allow: [say.hello]}", **keys)
    port = str(gate.getsockname()[1])
    return write(root, {"agents.d/one.yaml": one, "plugins/say.py": plugin, "port": port})
