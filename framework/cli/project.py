"""The project that a command works on: reads it or another version of it, writes its schemas, sends its traces."""

from __future__ import annotations

import asyncio
import json
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import fields
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol, cast

import click
from pydantic_core import to_json

import framework
from framework.cli.location import Location, lenient_settings, locate, project_path
from framework.cli.terminal import print_json, prints_on_stderr
from framework.config.editing import replace_file
from framework.config.generations.catalog import Catalog
from framework.config.schema import SCHEMAS, ProjectNames, SchemaKind, names_of
from framework.config.settings import Settings
from framework.config.snapshot import AGENTS
from framework.engine.runtime.project import Project
from framework.telemetry import setup
from framework.tools.tool import Tool
from framework.types.errors import RequestError
from framework.types.installation import DATA_FOLDER, make_private_folder
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


@contextmanager
def version_folder(name: str, project: str) -> Iterator[str]:
    """Yield a folder with a version of a project: a folder, or the project in a revision of git, such as `HEAD~1`.

    The files of a revision are in a temporary folder, which is deleted at the end. Raises RequestError.
    """
    if name and Path(name).exists():  # an empty name would be this folder
        yield name
        return
    git = ["git", "-C", project]
    try:
        found = subprocess.run(
            [*git, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        archive = subprocess.run([*git, "archive", found.stdout.strip()], capture_output=True, check=True).stdout
    except (OSError, ValueError, subprocess.CalledProcessError):  # ValueError: the name contains a null byte
        raise RequestError(f"no such file or folder, nor a revision of git: {name}") from None
    with TemporaryDirectory(prefix="agentsd-") as folder:
        with tarfile.open(fileobj=BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        yield folder


_MARK = "schemas.digest"
"""Name of the file by which schemas that are up to date are recognized without generating them."""


@click.command("schema")
@project_path
@click.option("--kind", type=click.Choice(list(SCHEMAS)), default="agent", show_default=True, help="Which files.")
@click.option("--write", is_flag=True, help=f"Write all schemas into {DATA_FOLDER}/, which files refer to.")
def schema_command(path: str, kind: SchemaKind, write: bool) -> int:
    """Print the JSON Schema of a project's files (default: this folder), with the names of its tools and agents."""
    name = Path(path).name
    if name in SCHEMAS and not Path(path).exists():  # `agentsd schema settings`
        path, kind = str(Path(path).parent), cast(SchemaKind, name)
    location = locate(path)
    if write and not location.root.is_dir():
        raise RequestError(f"{path} is a single file: schemas are written into a project folder")
    names = names_of(asyncio.run(Project.read(location.root)).catalog)
    if not write:
        print_json(SCHEMAS[kind](names))
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
    written = [path for path, make in files.items() if _replace(path, to_json(make(names), indent=2) + b"\n")]
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


SERVER_EXIT_SECONDS = 5.0
"""Time for the last export at the end of a server: it has more to send, and is killed after 30 seconds."""


def trace_export(
    settings: Settings, otlp: str | None = None, exit_seconds: float = setup.EXIT_SECONDS
) -> AbstractContextManager[None]:
    """Send traces while the context is open: to `--otlp`, else to the settings' endpoint, else to that of OTEL_*.

    At the end, a backend that does not answer is waited for at most `exit_seconds`.

    Raises:
        ConfigError: the URL is invalid, the exporter's package is missing, or OTEL_* ask for another protocol.
    """
    telemetry = settings.telemetry
    headers = {name: value.get_secret_value() for name, value in telemetry.otlp_headers.items()}
    return setup.export_traces(otlp or telemetry.otlp_endpoint, headers, telemetry.service_name, exit_seconds)
