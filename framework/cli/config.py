"""`agentsd config`: compares two versions of a project; shows and rolls back the generations of a server."""

from __future__ import annotations

import asyncio
import json
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import click

from framework.cli.location import locate
from framework.cli.options import PROJECT_OPTION
from framework.cli.remote import Remote, encoded
from framework.config.generations.generation import Candidate, Generation
from framework.config.settings import API_KEY_VARIABLE
from framework.engine.runtime.project import Project
from framework.server.schemas import ConfigHistory, LiveConfig, PastConfig
from framework.types.errors import RequestError
from framework.types.text import visible

C = TypeVar("C", bound=Callable[..., Any])

SHOWN_CHANGES = 3
_STYLES = {"widens": "yellow", "tightens": "green", "neutral": None}


@click.group("config")
def command() -> None:
    """Compare configurations; show the generations of a server, and roll back to one."""


@command.command("diff")
@click.argument("old")
@click.argument("new", required=False)
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the changes as JSON.")
def diff(old: str, new: str | None, project: str, as_json: bool) -> int:
    """Show how the project NEW (default: that of -C) differs from the project OLD: folders, or revisions in git.

    Each change widens, tightens, or is neutral. Exit codes: 0 no differences, 1 differences.
    """
    before, after = _version(old, project), _version(new or project, project)
    candidate = Candidate.of(after, before)
    if as_json:
        click.echo(json.dumps([change.model_dump(exclude_none=True) for change in candidate.changes], indent=2))
    else:
        for change in candidate.changes:
            click.secho(str(change), fg=_STYLES[change.effect])
        if not candidate.changes:
            click.echo("no differences")
    return 1 if candidate.changes else 0


def _version(name: str, project: str) -> Generation:
    """Load a folder, or the project as it is in a revision of git, such as `HEAD~1`; raises RequestError."""
    if Path(name).exists():
        return asyncio.run(_load(name))
    git = ["git", "-C", project]
    try:
        found = subprocess.run(
            [*git, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        archive = subprocess.run([*git, "archive", found.stdout.strip()], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        raise RequestError(f"no such file or folder, nor a revision of git: {name}") from None
    with TemporaryDirectory(prefix="agentsd-") as folder:
        with tarfile.open(fileobj=BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        return asyncio.run(_load(folder))


async def _load(path: str) -> Generation:
    return (await Project.read(locate(path).root)).catalog.current


def _server_options(function: C) -> C:
    """Add the options that select a server."""
    for option in (
        click.option(
            "-C",
            "--project",
            default=".",
            show_default=True,
            metavar="FOLDER",
            help="The project whose settings contain the server's address.",
        ),
        click.option(
            "--key", metavar="KEY", envvar=API_KEY_VARIABLE, show_envvar=True, help="One of the server's keys."
        ),
        click.option(
            "--url",
            metavar="URL",
            help="URL of the server, e.g. http://127.0.0.1:8321. Default: server.host and server.port.",
        ),
    ):
        function = option(function)
    return function


@command.command("history")
@_server_options
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def history(url: str | None, key: str | None, project: str, as_json: bool) -> int:
    """Show the generations that a running server keeps, the live one (*) first."""
    found = Remote.of(url, key, project).get("/agent/config/history", ConfigHistory)
    if as_json:
        click.echo(encoded(found))
    else:
        _show_history(found)
    return 0


@command.command("rollback")
@click.argument("generation", type=click.IntRange(min=1))
@_server_options
@click.option("--json", "as_json", is_flag=True, help="Print the new live configuration as JSON.")
def rollback(generation: int, url: str | None, key: str | None, project: str, as_json: bool) -> int:
    """Make GENERATION of a running server live again, as a new one. It stays live until the files change again."""
    live = Remote.of(url, key, project).post("/agent/config/rollback", LiveConfig, {"generation": generation})
    if as_json:
        click.echo(encoded(live))
        return 0
    digest = visible(live.digest)
    click.echo(f"generation {live.generation} is live, with the content of generation {generation} (digest {digest})")
    if live.held:
        click.echo("the files differ from it: they are not loaded until they change again")
    return 0


def _show_history(found: ConfigHistory) -> None:
    rows = [_row(entry) for entry in found.generations]
    widths = [max(len(row[column]) for row in rows) for column in range(4)] if rows else []
    for entry, row in zip(found.generations, rows, strict=True):
        head = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
        click.secho(("* " if entry.live else "  ") + head, bold=entry.live, nl=False)
        for number, (text, style) in enumerate(_changes(entry)):
            click.echo(" " * (len(head) + 2) if number else "", nl=False)
            click.secho(f"  {visible(text)}", fg=style)


def _row(entry: PastConfig) -> tuple[str, str, str, str]:
    when = f"{entry.at.astimezone():%Y-%m-%d %H:%M:%S}"
    return str(entry.generation), when, visible(entry.digest), entry.trigger


def _changes(entry: PastConfig) -> Iterator[tuple[str, str | None]]:
    changes = entry.changes
    for change in changes[:SHOWN_CHANGES]:
        yield str(change), _STYLES[change.effect]
    if len(changes) > SHOWN_CHANGES:
        yield f"and {len(changes) - SHOWN_CHANGES} more", None
    if entry.unusable:
        yield f"invalid, last good version stays live: {', '.join(entry.unusable)}", "red"
    elif not changes:
        yield "no change of an agent file", None
