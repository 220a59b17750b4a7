"""`agentsd runs prune`: deletes runs and conversations past their retention."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict

import click

from framework.cli.location import lenient_settings, locate
from framework.cli.options import PROJECT_OPTION
from framework.cli.records import open_project_store
from framework.cli.show import counted
from framework.store.types import Pruned
from framework.types.frozen import parse_duration


def _duration(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:  # noqa: ARG001 - click's
    try:
        return None if value is None else float(parse_duration(value))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command("prune")
@click.option(
    "--older-than",
    callback=_duration,
    metavar="DURATION",
    help="Use this retention instead of `store.retention`, e.g. 7d.",
)
@click.option("--dry-run", is_flag=True, help="Only count, delete nothing.")
@click.option("--trust-clock", is_flag=True, help="Delete although nothing was saved for more than a day.")
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def command(older_than: float | None, dry_run: bool, trust_clock: bool, project: str, as_json: bool) -> int:
    """Delete runs that ended longer ago than `store.retention`, and conversations past their `conversation.ttl`.

    Runs in progress, paused runs and the turns of remaining conversations are kept. A SQLite file shrinks by its free
    pages; a file of an older version shrinks once no run is in progress.

    If nothing was saved for more than a day, the clock may be wrong: nothing is deleted without `--trust-clock`.
    """
    pruned = asyncio.run(_prune(project, older_than, dry_run=dry_run, trust_clock=trust_clock))
    if as_json:
        click.echo(json.dumps({**asdict(pruned), "dry_run": dry_run}))
        return 0
    verb = "would be deleted" if dry_run else "deleted"
    *first, last = [counted(count, what) for count, what in _counts(pruned)]
    freed = f", the file is {pruned.freed_bytes / 1e6:.1f} MB smaller" if pruned.freed_bytes else ""
    click.echo(f"{', '.join(first)} and {last} {verb}{freed}")
    return 0


def _counts(pruned: Pruned) -> Iterator[tuple[int, str]]:
    yield from ((pruned.runs, "run"), (pruned.conversations, "conversation"))
    yield from ((count, what) for count, what in ((pruned.files, "file"), (pruned.versions, "agent version")) if count)


async def _prune(project: str, older_than: float | None, *, dry_run: bool, trust_clock: bool) -> Pruned:
    location = locate(project)
    retention = lenient_settings(location).store.retention if older_than is None else older_than
    async with open_project_store(location) as store:
        now = store.now()
        before = None if retention is None else now - retention
        return await store.prune(before, now, dry_run=dry_run, trust_clock=trust_clock)
