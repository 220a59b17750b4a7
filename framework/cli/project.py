"""What a command works on: a project that was read, its agents and its tools."""

from __future__ import annotations

from collections.abc import Mapping

from framework.cli.location import Location, lenient_settings
from framework.cli.screen import prints_on_stderr
from framework.config.agents.compile import Agent
from framework.config.generations.generation import Generation
from framework.engine.runtime.project import Project
from framework.tools.tool import Tool
from framework.types.errors import AgentNotFound, RequestError
from framework.types.text import did_you_mean


async def read_project(location: Location, *, connect: bool = False) -> Project:
    """What a location names, read as it is, whatever is wrong with it; nothing of it may be run.

    Args:
        location: what to read.
        connect: ask the tool servers that it declares for their tools.
    """
    with prints_on_stderr():
        project = await Project.read(location.root, lenient_settings(location), connect=connect)
        await project.catalog.close()
    return project


def find_agent(generation: Generation, name: str) -> Agent:
    """An agent by its name; raises AgentNotFound."""
    if name not in generation.agents:
        raise AgentNotFound(name, sorted(generation.agents), generation.errors)
    return generation.agents[name]


def find_tool(tools: Mapping[str, Tool], name: str) -> Tool:
    """A tool by its name; raises RequestError."""
    if name not in tools:
        raise RequestError(f"there is no tool {name!r}{did_you_mean(name, sorted(tools))}")
    return tools[name]
