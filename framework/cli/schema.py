"""`agentsd schema`: JSON Schemas with which editors complete, explain and check a project's files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from typing import Protocol, cast

import click

import framework
from framework.cli.location import locate
from framework.cli.options import project_path
from framework.config.editing import replace_file
from framework.config.generations.catalog import Catalog
from framework.config.schema import SCHEMAS, EditorSchema, ProjectNames, SchemaKind, names_of
from framework.config.snapshot import AGENTS
from framework.engine.runtime.project import Project
from framework.types.errors import RequestError
from framework.types.private_folder import DATA_FOLDER, make_private_folder

_MARK = "schemas.digest"
"""Name of the file by which schemas that are up to date are recognized without generating them."""


@click.command("schema")
@project_path
@click.option("--kind", type=click.Choice(list(SCHEMAS)), default="agent", show_default=True, help="Which files.")
@click.option("--write", is_flag=True, help=f"Write all schemas into {DATA_FOLDER}/, which files refer to.")
def command(path: str, kind: SchemaKind, write: bool) -> int:
    """Print the JSON Schema of a project's files (default: this folder), with the names of its tools and agents."""
    name = Path(path).name
    if name in SCHEMAS and not Path(path).exists():  # `agentsd schema settings`
        path, kind = str(Path(path).parent), cast(SchemaKind, name)
    location = locate(path)
    if write and not location.root.is_dir():
        raise RequestError(f"{path} is a single file: schemas are written into a project folder")
    names = names_of(asyncio.run(Project.read(location.root)).catalog)
    if not write:
        click.echo(_text(SCHEMAS[kind](names)), nl=False)
        return 0
    try:
        written = write_schemas(location.root, names)
    except OSError as error:
        raise RequestError(f"{error.filename} cannot be written: {error.strerror}") from None
    click.echo("\n".join(f"wrote {file}" for file in written) or "all schemas are up to date")
    return 0


class _Loaded(Protocol):
    """A project or a runtime. The latter is not imported here: commands that run nothing do not need its imports."""

    @property
    def root(self) -> Path: ...

    @property
    def catalog(self) -> Catalog: ...


def refresh_schemas(project: _Loaded) -> None:
    """Update the schemas of a project folder; a folder that cannot be written is ignored."""
    if not project.catalog.is_single_file and (project.root / AGENTS).is_dir():
        with suppress(OSError):
            write_schemas(project.root, names_of(project.catalog))


def write_schemas(root: Path, names: ProjectNames) -> list[Path]:
    """Write the schemas that changed, each atomically; return the files written. Raises OSError."""
    folder = root / DATA_FOLDER
    files = {folder / f"{kind}.schema.json": make for kind, make in SCHEMAS.items()}
    mark = folder / _MARK
    if mark.is_file() and mark.read_text("utf-8") == _digest(files, names):
        return []  # generating them takes longer than everything else that `check` does
    written = [path for path, make in files.items() if _replace(path, _text(make(names)).encode())]
    _replace(mark, _digest(files, names).encode())
    return written


def _digest(files: Iterable[Path], names: ProjectNames) -> str:
    """Return a digest of the schemas as they are, and of what they are generated from: names, and this code."""
    digest = sha256()
    for field in fields(names):
        value = getattr(names, field.name)
        digest.update(json.dumps(sorted(value.items() if isinstance(value, Mapping) else value)).encode())
    package = Path(framework.__file__).parent
    for module in sorted((*package.glob("types/*.py"), *package.glob("config/*.py"))):
        known = module.stat()
        digest.update(f"{module.name} {known.st_size} {known.st_mtime_ns}\n".encode())
    for path in files:
        digest.update(path.read_bytes() if path.is_file() else b"missing")
    return digest.hexdigest()


def _replace(path: Path, content: bytes) -> bool:
    if path.is_file() and path.read_bytes() == content:
        return False
    make_private_folder(path.parent)
    replace_file(path, content)
    return True


def _text(schema: EditorSchema) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
