"""Projects whose catalog is reloaded, with an agent, a tool and a plugin to edit."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from framework.config.agents.compile import Agent
from framework.config.generations.catalog import Catalog
from framework.config.generations.generation import Generation
from framework.tools.tool import Tool, tool
from framework.types.events import ConfigRejected, ConfigReloaded
from tests.support.projects import agent, write

BAD = "version: 1\nname: [\n"


@tool
def echo(text: str) -> str:
    """Repeat the text."""
    return text


class Project:
    """A folder with its catalog, and the events of the catalog."""

    def __init__(self, root: Path, files: Mapping[str, str] | None = None, tools: tuple[Tool, ...] = (echo,)) -> None:
        self.root = root
        write(root, files or {})
        self.catalog = Catalog(root, tools=tools, executors=["react", "plan"], models=["offline", "openai/"])
        self.events: list[ConfigReloaded | ConfigRejected] = []
        self.catalog.subscribe(self.events.append)
        self.reload()

    def reload(self, files: Mapping[str, str] | None = None, *, delete: tuple[str, ...] = ()) -> Generation:
        """Write and delete files, and reload once."""
        write(self.root, files or {})
        for path in delete:
            (self.root / path).unlink()
        return asyncio.run(self.catalog.reload())

    @property
    def live(self) -> Mapping[str, Agent]:
        return self.catalog.current.agents

    @property
    def errors(self) -> list[str]:
        """The errors as `file:line:column: message`."""
        return [f"{problem.place}: {problem.message}" for problem in self.catalog.current.errors]

    @property
    def warnings(self) -> list[str]:
        problems = self.catalog.current.problems
        return [f"{p.place}: {p.message}" for p in problems if p.severity == "warning"]

    def stale(self) -> set[str]:
        return {name for name, agent in self.live.items() if agent.stale}

    def last_changes(self) -> tuple[list[str], list[str], list[str]]:
        """Return the agents that the last event reports as added, changed and removed."""
        event = self.events[-1]
        assert isinstance(event, ConfigReloaded)
        return list(event.added), list(event.changed), list(event.removed)


def one(name: str, description: str = "", **keys: str) -> str:
    more = {"description": description} if description else {}
    return agent(name, **{"model": "offline", **more, **keys})


THREE = {f"agents.d/{name}.yaml": one(name) for name in "abc"}
PLUGIN = """
from framework import tool


@tool
def lookup(order: str) -> str:
    "{}"
    return order
"""
ORDERS = PLUGIN.format("Look an order up.")
USES_ORDERS = one("clerk", skill_policy="{allow: [orders.lookup]}")
