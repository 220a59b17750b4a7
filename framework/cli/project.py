"""Reads the project that a command works on, and finds its tools."""

from __future__ import annotations

from collections.abc import Mapping

from framework.cli.location import Location, lenient_settings
from framework.cli.terminal import prints_on_stderr
from framework.engine.runtime.project import Project
from framework.tools.tool import Tool
from framework.types.errors import RequestError
from framework.types.text import did_you_mean


async def read_project(location: Location, *, connect: bool = False) -> Project:
    """Read a project, also one with problems. Nothing of it can be run.

    Args:
        location: the folder or file.
        connect: connect to its tool servers to list their tools.
    """
    with prints_on_stderr():
        project = await Project.read(location.root, lenient_settings(location), connect=connect)
        await project.catalog.close()
    return project


def find_tool(tools: Mapping[str, Tool], name: str) -> Tool:
    """Return a tool by name; raises RequestError."""
    if name not in tools:
        raise RequestError(f"there is no tool {name!r}{did_you_mean(name, sorted(tools))}")
    return tools[name]
