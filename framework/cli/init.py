"""`agentsd init`: creates a working project to start from."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

import framework
from framework.cli.options import project_path
from framework.cli.project_files import GITIGNORE, STARTER_SETTINGS, agent_files
from framework.types.errors import RequestError

FOLDERS = ("agents.d", "prompts", "plugins", "data")
MINIMAL_AGENT = "assistant"
"""Name of the only agent of a minimal project."""
_PROJECT_FILES = {"agentsd.yaml": STARTER_SETTINGS, ".gitignore": GITIGNORE}


@click.command("init")
@project_path
@click.option("--minimal", is_flag=True, help="Create one agent with a test case, instead of the whole starter.")
def command(path: str, minimal: bool) -> int:
    """Create a project in the folder PATH (default: this folder). Existing files are not changed.

    The starter has an agent for each feature, with prompts, plugins and test cases.
    """
    target = Path(path)
    if target.exists() and not target.is_dir():
        raise RequestError(f"{path} is a file")
    written, kept = write_files(target, minimal_files()) if minimal else copy_starter(target)
    for name in written:
        click.echo(f"  {name}")
    if kept:
        click.echo(f"kept unchanged: {', '.join(kept)}")
    where = "" if path == "." else f"cd {shlex.quote(path)} && "
    message = "calculate 2 + 3" if minimal else "analyse data/logs/app.log"
    click.echo("\nTry it, no key needed:")
    click.secho(f'  {where}agentsd run "{message}"', bold=True)
    click.echo(f"  {where}agentsd chat        # and edit agents.d/assistant.yaml while you talk")
    return 0


def copy_starter(target: Path) -> tuple[list[str], list[str]]:
    """Copy the starter into a folder.

    Returns:
        The files written, and the existing ones that were kept.
    """
    starter = {name: source.read_bytes() for source, name in _starter_files()}
    return write_files(target, {**starter, **_encoded(_PROJECT_FILES)})


def minimal_files() -> Mapping[str, bytes]:
    """Return the files of a project with one agent, by path relative to the project."""
    return _encoded({**agent_files(MINIMAL_AGENT), **_PROJECT_FILES})


def write_files(target: Path, files: Mapping[str, bytes]) -> tuple[list[str], list[str]]:
    """Write files into a folder; return the paths written, and the existing ones that were kept."""
    written, kept = [], []
    for name, content in files.items():
        path = target / name
        if path.exists():
            kept.append(name)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        written.append(name)
    return written, kept


def _encoded(texts: Mapping[str, str]) -> dict[str, bytes]:
    return {name: text.encode() for name, text in texts.items()}


def _starter_files() -> Iterator[tuple[Path, str]]:
    """Yield the starter's files, from the installed package or from this repository's own folders."""
    package = Path(framework.__file__).parent
    packed = package / "starter"
    root = packed if packed.is_dir() else package.parent
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            hidden = any(part.startswith((".", "__")) for part in path.relative_to(root).parts)
            if path.is_file() and not hidden:
                yield path, path.relative_to(root).as_posix()
