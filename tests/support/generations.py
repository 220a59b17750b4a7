"""Generations built from files in memory."""

from __future__ import annotations

from framework.config.agents.toolbox import ExternalTools
from framework.config.generations.builder import GenerationBuilder
from framework.config.generations.generation import Generation, empty_generation
from framework.config.generations.reload_effects import SettingsFile
from framework.config.settings import Settings
from framework.config.snapshot import Snapshot
from framework.tools.builtin import BUILTIN_TOOLS
from tests.support.projects import agent

GOOD_PLUGIN = (
    'from framework import tool\n\n@tool(risk="low")\ndef ping() -> str:\n    """Ping."""\n    return "pong"\n'
)


def build_generation(files: dict[str, bytes]) -> Generation:
    """Build the generation of a project with these files, a valid plugin and two agents."""
    everything = {
        "agents.d/good.yaml": agent("good", model="offline", skill_policy="{allow: [good.ping]}").encode(),
        "agents.d/all.yaml": agent(
            "all", model="offline", skill_policy="{deny: [{tool: bad.x, optional: true}], allow: ['*']}"
        ).encode(),
        "plugins/good.py": GOOD_PLUGIN.encode(),
        **files,
    }
    builder = GenerationBuilder(BUILTIN_TOOLS, ["react"], ["offline"], SettingsFile(Settings(), fixed=True))
    return builder.build(Snapshot(everything, (), "1"), empty_generation(Settings()), ExternalTools())
