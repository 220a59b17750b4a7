"""`agentsd init`: creates a working project to start from."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

import framework
from framework.cli.options import project_path
from framework.cli.project_files import SETTINGS_FILES, new_project
from framework.cli.show import counted
from framework.config.overlay import SETTINGS_FILE
from framework.config.snapshot import AGENTS
from framework.types.errors import RequestError

FOLDERS = ("agents.d", "prompts", "plugins", "data")
_LISTED = 5
"""Number of files up to which each is listed; of more, each folder is listed with the number of its files."""


@click.command("init")
@project_path
@click.option("--example", is_flag=True, help="Create the example: an agent for each feature, with tools and prompts.")
@click.option("--minimal", is_flag=True, help="Create one agent, one tool and one test case: the default.")
def command(path: str, example: bool, minimal: bool) -> int:
    """Create a project in the folder PATH (default: this folder). Existing files are not changed.

    It has one agent, one tool and one test case; with --example, an agent for each feature.
    """
    if example and minimal:
        raise click.UsageError("use --example or --minimal, not both")
    target = Path(path)
    _require_new(target, path)
    written, kept = copy_starter(target) if example else write_files(target, _encoded(new_project()))
    for line in _listed(written):
        click.echo(f"  {line}")
    if kept:
        click.echo(f"kept unchanged: {', '.join(kept)}")
    where = "" if path == "." else f"cd {shlex.quote(path)} && "
    message = "analyse data/logs/app.log" if example else "count the words in 'agents are files'"
    click.echo("Try it, no key needed:")
    click.secho(f'  {where}agentsd run "{message}"', bold=True)
    click.echo(f"  {where}agentsd chat   # edit agents.d/assistant.yaml meanwhile")
    return 0


def _require_new(target: Path, path: str) -> None:
    """Raise RequestError if the path is a file, or a folder that has a project."""
    if target.exists() and not target.is_dir():
        raise RequestError(f"{path} is a file")
    if found := next((name for name in (SETTINGS_FILE, AGENTS) if (target / name).exists()), None):
        where = "" if path == "." else f" -C {shlex.quote(path)}"
        raise RequestError(
            f"{target / found} exists: the folder has a project already. Add an agent to it with"
            f" `agentsd new agent{where} NAME`, or create a project in another folder: `agentsd init FOLDER`"
        )


def _listed(written: Sequence[str]) -> list[str]:
    """Return a line for each file, or for each folder if there are many files."""
    if len(written) <= _LISTED:
        return [*written]
    folders = Counter(name.partition("/")[0] for name in written if "/" in name)
    counts = [f"{folder + '/':<11} {counted(count, 'file')}" for folder, count in folders.items()]
    return [*counts, ", ".join(name for name in written if "/" not in name)]


def copy_starter(target: Path) -> tuple[list[str], list[str]]:
    """Copy the starter into a folder.

    Returns:
        The files written, and the existing ones that were kept.
    """
    starter = {name: source.read_bytes() for source, name in _starter_files()}
    return write_files(target, {**starter, **_encoded(SETTINGS_FILES)})


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
