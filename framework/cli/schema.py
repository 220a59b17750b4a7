"""`agentsd schema`: JSON Schemas with which editors complete, explain and check a project's files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import click

from framework.cli.location import locate
from framework.cli.writing import replace_file
from framework.config.agents.extensions import BUILTIN_EXECUTORS
from framework.config.files.snapshot import AGENTS, PROMPTS
from framework.config.generations.generation import Generation
from framework.config.schema import (
    EditorSchema,
    ProjectNames,
    agent_schema,
    cases_schema,
    settings_schema,
    sources_schema,
)
from framework.engine.runtime.project import Project
from framework.engine.runtime.runtime import Runtime
from framework.llm.providers import OFFLINE, PROVIDERS
from framework.types.errors import RequestError
from framework.types.private_folder import DATA_FOLDER, make_private_folder

KINDS: Mapping[str, Callable[[ProjectNames], EditorSchema]] = {
    "agent": agent_schema,
    "cases": cases_schema,
    "settings": settings_schema,
    "sources": sources_schema,
}


@click.command("schema")
@click.argument("path", default=".")
@click.option("--kind", type=click.Choice(list(KINDS)), default="agent", show_default=True, help="Which files.")
@click.option("--write", is_flag=True, help=f"Write all schemas into {DATA_FOLDER}/, which files refer to.")
def command(path: str, kind: str, write: bool) -> int:
    """Print the JSON Schema of a project's files (default: this folder), with the names of its tools and agents."""
    location = locate(path)
    if write and not location.root.is_dir():
        raise RequestError(f"{path} is a single file: schemas are written into a project folder")
    names = names_of(asyncio.run(Project.read(location.root)))
    if not write:
        click.echo(_text(KINDS[kind](names)), nl=False)
        return 0
    try:
        written = write_schemas(location.root, names)
    except OSError as error:
        raise RequestError(f"{error.filename} cannot be written: {error.strerror}") from None
    click.echo("\n".join(f"wrote {file}" for file in written) or "all schemas are up to date")
    return 0


def names_of(project: Project | Runtime) -> ProjectNames:
    """Return the names that files of a project can refer to."""
    generation = project.catalog.current
    return ProjectNames(
        tools={name: tool.definition.description for name, tool in generation.tools.items()},
        agents={name: agent.spec.description for name, agent in generation.agents.items()},
        models={OFFLINE, *project.settings.models, *(f"{provider.name}/" for provider in PROVIDERS)},
        executors=[*BUILTIN_EXECUTORS, *_executors(generation)],
        budgets={name: one.budget.describe() for name, one in generation.budgets.items()},
        templates=[path.removeprefix(PROMPTS + "/") for path in project.catalog.snapshot().files_in(PROMPTS)],
    )


def _executors(generation: Generation) -> Iterator[str]:
    """Yield the names of the executors of plugins."""
    extensions = (extension for plugin in generation.live_plugins for extension in plugin.extensions)
    return (extension.name for extension in extensions if extension.kind == "executor")


def refresh_schemas(project: Project | Runtime) -> None:
    """Update the schemas of a project folder; a folder that cannot be written is ignored."""
    if not project.catalog.is_single_file and (project.root / AGENTS).is_dir():
        with suppress(OSError):
            write_schemas(project.root, names_of(project))


def write_schemas(root: Path, names: ProjectNames) -> list[Path]:
    """Write the schemas that changed, each atomically; return the files written. Raises OSError."""
    texts = {root / DATA_FOLDER / f"{kind}.schema.json": _text(make(names)) for kind, make in KINDS.items()}
    return [path for path, text in texts.items() if _replace(path, text.encode())]


def _replace(path: Path, content: bytes) -> bool:
    if path.is_file() and path.read_bytes() == content:
        return False
    make_private_folder(path.parent)
    replace_file(path, content)
    return True


def _text(schema: EditorSchema) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
