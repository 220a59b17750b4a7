"""`agentsd init`: creates a working project to start from."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import click

import framework
from framework.types.errors import RequestError

FOLDERS = ("agents.d", "prompts", "plugins", "data")


@click.command("init")
@click.argument("folder", default=".")
def command(folder: str) -> int:
    """Create the starter project in FOLDER (default: this folder). Existing files are not changed."""
    target = Path(folder)
    if target.exists() and not target.is_dir():
        raise RequestError(f"{folder} is a file")
    written, kept = copy_starter(target)
    for name in written:
        click.echo(f"  {name}")
    if kept:
        click.echo(f"kept unchanged: {', '.join(kept)}")
    where = "" if folder == "." else f"cd {shlex.quote(folder)} && "
    click.echo("\nTry it, no key needed:")
    click.secho(f'  {where}agentsd run "analyse data/logs/app.log"', bold=True)
    click.echo(f"  {where}agentsd chat        # and edit agents.d/assistant.yaml while you talk")
    return 0


def copy_starter(target: Path) -> tuple[list[str], list[str]]:
    """Copy the starter into a folder.

    Returns:
        The files written, and the existing ones that were kept.
    """
    written, kept = [], []
    for source, name in _starter_files():
        path = target / name
        if path.exists():
            kept.append(name)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, path)
        written.append(name)
    return written, kept


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
