"""The names that a project's files may refer to, for editors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from framework.config.agents.compile import BUILTIN_EXECUTORS
from framework.config.files.snapshot import PROMPTS
from framework.config.generations.catalog import Catalog
from framework.config.generations.generation import Generation
from framework.config.schema import (
    EditorSchema,
    ProjectNames,
    agent_schema,
    cases_schema,
    settings_schema,
    sources_schema,
)
from framework.llm.providers import OFFLINE, PROVIDERS

SchemaKind = Literal["agent", "cases", "settings", "sources"]
"""The kinds of YAML files of a project."""
SCHEMAS: Mapping[SchemaKind, Callable[[ProjectNames], EditorSchema]] = {
    "agent": agent_schema,
    "cases": cases_schema,
    "settings": settings_schema,
    "sources": sources_schema,
}


def names_of(catalog: Catalog) -> ProjectNames:
    """Return the names that files of a project can refer to. Reads the names of its templates from the disk."""
    generation = catalog.current
    return ProjectNames(
        tools={name: tool.definition.description for name, tool in generation.tools.items()},
        agents={name: agent.spec.description for name, agent in generation.agents.items()},
        models={OFFLINE, *generation.settings.models, *(f"{provider.name}/" for provider in PROVIDERS)},
        executors=[*BUILTIN_EXECUTORS, *_executors(generation)],
        budgets={name: one.budget.describe() for name, one in generation.budgets.items()},
        templates=[path.removeprefix(PROMPTS + "/") for path in catalog.snapshot().files_in(PROMPTS)],
    )


def _executors(generation: Generation) -> Iterator[str]:
    """Yield the names of the executors of plugins."""
    extensions = (extension for plugin in generation.live_plugins for extension in plugin.extensions)
    return (extension.name for extension in extensions if extension.kind == "executor")
