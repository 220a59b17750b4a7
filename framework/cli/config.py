"""`agentsd config`: what differs between two versions of a project; what a server has served, and the way back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from framework.cli.location import locate
from framework.cli.remote import Remote, encoded
from framework.cli.show import visible
from framework.config.generations.candidate import Candidate
from framework.config.generations.generation import Generation
from framework.config.settings import API_KEY_VARIABLE
from framework.engine.runtime.project import Project
from framework.server.schemas import ConfigHistory, LiveConfig, PastConfig

C = TypeVar("C", bound=Callable[..., Any])

SHOWN_CHANGES = 3
STYLES = {"widens": "yellow", "tightens": "green", "neutral": None}


@click.group("config")
def command() -> None:
    """Compare configurations; see what a server has served, and go back to it."""


@command.command("diff")
@click.argument("old")
@click.argument("new", default=".")
@click.option("--json", "as_json", is_flag=True, help="Print the changes as JSON.")
def diff(old: str, new: str, as_json: bool) -> int:
    """Show how the project NEW (default: this folder) differs from the project OLD.

    Each change widens, tightens, or is neutral. Exit codes: 0 nothing differs, 1 something does.
    """
    before, after = asyncio.run(_load(old)), asyncio.run(_load(new))
    candidate = Candidate.of(after, before)
    if as_json:
        click.echo(json.dumps([change.model_dump(exclude_none=True) for change in candidate.changes], indent=2))
    else:
        for change in candidate.changes:
            click.secho(str(change), fg=STYLES[change.effect])
        if not candidate.changes:
            click.echo("no agent's file says anything else")
    return 1 if candidate.changes else 0


async def _load(path: str) -> Generation:
    return (await Project.read(locate(path).root)).catalog.current


def _of_a_server(function: C) -> C:
    """The options that say which server is meant."""
    for option in (
        click.option("-C", "--project", default=".", show_default=True, help="Whose settings say where the server is."),
        click.option("--key", envvar=API_KEY_VARIABLE, show_envvar=True, help="One of the server's keys."),
        click.option("--url", help="The server, e.g. http://127.0.0.1:8321; otherwise as server.host and port say."),
    ):
        function = option(function)
    return function


@command.command("history")
@_of_a_server
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
@_of_a_server
@click.option("--json", "as_json", is_flag=True, help="Print what is live then as JSON.")
def rollback(generation: int, url: str | None, key: str | None, project: str, as_json: bool) -> int:
    """Make GENERATION of a running server live again, as a new one. It stays until the files change once more."""
    live = Remote.of(url, key, project).post("/agent/config/rollback", LiveConfig, {"generation": generation})
    if as_json:
        click.echo(encoded(live))
        return 0
    click.echo(f"generation {live.generation} is live, as generation {generation} was (digest {visible(live.digest)})")
    if live.held:
        click.echo("the files say something else: they are held back until they change once more")
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
        yield str(change), STYLES[change.effect]
    if len(changes) > SHOWN_CHANGES:
        yield f"and {len(changes) - SHOWN_CHANGES} more", None
    if entry.unusable:
        yield f"last good versions stay live: {', '.join(entry.unusable)} cannot be used", "red"
    elif not changes:
        yield "nothing that an agent's file says", None
