"""`agentsd config`: what differs between two versions of a project, and in which direction."""

from __future__ import annotations

import asyncio
import json

import click

from framework.cli.project import locate
from framework.config.candidate import Candidate
from framework.config.generation import Generation
from framework.engine.project import Project

STYLES = {"widens": "yellow", "tightens": "green", "neutral": None}


@click.group("config")
def command() -> None:
    """Compare configurations."""


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
