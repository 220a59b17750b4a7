"""`agentsd runs list`: lists the stored runs."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, get_args

import click

from framework.cli.location import locate
from framework.cli.options import PROJECT_OPTION, tenant_option, user_option
from framework.cli.records import ago, open_project_store, status_of, times_as_text
from framework.cli.show import show_table
from framework.store.types import RunInfo, RunQuery
from framework.types.report import Status
from framework.types.state import RatingValue

_COLUMNS = ("run", "status", "agent", "started", "steps", "tokens", "conversation", "message")
SHORT_ID = len("run_") + 8
"""Characters of an id that are enough to name the run."""
STATUSES = (*get_args(Status), "orphaned")


@click.command("list")
@click.option(
    "-s", "--status", "statuses", multiple=True, type=click.Choice(STATUSES), help="Only runs with this status."
)
@click.option("-a", "--agent", metavar="AGENT", help="Only runs of this agent.")
@click.option("-c", "--conversation", metavar="ID", help="Only runs of this conversation.")
@user_option("Only runs of this user.")
@tenant_option("Only runs of this tenant.")
@click.option("--rated", type=click.Choice(get_args(RatingValue)), help="Only runs whose answer was rated so.")
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), metavar="N", default=20, show_default=True, help="Maximum number."
)
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def command(
    statuses: tuple[str, ...],
    agent: str | None,
    conversation: str | None,
    user: str | None,
    tenant: str | None,
    rated: RatingValue | None,
    limit: int,
    project: str,
    as_json: bool,
) -> int:
    """List the stored runs, the newest first.

    A run is `queued` until a process begins it. If it waits for more than a free process, that is in parentheses. It is
    `orphaned` if its process ended before it: resume it with `agentsd runs resume`.
    """
    wanted: set[Status] = {status for status in get_args(Status) if status in statuses}
    if "orphaned" in statuses:
        wanted.add("running")
    query = RunQuery(
        statuses=wanted,
        agent=agent,
        conversation_id=conversation,
        user=user,
        tenant=tenant,
        rating=rated,
        orphaned=set(statuses) == {"orphaned"},
        newest_first=True,
        limit=limit,
    )
    found = asyncio.run(_runs(project, query))
    if as_json:
        click.echo(json.dumps([as_data(info) for info in found], ensure_ascii=False, indent=2))
    elif not found:
        is_filtered = statuses or agent or conversation or user or tenant or rated
        click.echo("no such runs are stored" if is_filtered else "no runs are stored")
    else:
        show_table(_COLUMNS, [_row(info) for info in found])
    return 0


async def _runs(project: str, query: RunQuery) -> Sequence[RunInfo]:
    async with open_project_store(locate(project)) as store:
        return await store.runs(query)


def as_data(info: RunInfo) -> dict[str, Any]:
    """Return a run as JSON data."""
    rating = info.rating and info.rating.model_dump(mode="json")
    return {**times_as_text(asdict(info)), "status": status_of(info), "rating": rating}


def _row(info: RunInfo) -> list[str]:
    return [
        info.run_id[:SHORT_ID] if sys.stdout.isatty() else info.run_id,
        _status(info),
        info.agent or "-",
        ago(info.created_at),
        str(info.steps),
        str(info.tokens),
        _turn(info),
        " ".join(info.message.split()),
    ]


def _status(info: RunInfo) -> str:
    """Return the status of a run, with what it waits for, unless that is only a free process."""
    return f"{status_of(info)} ({info.waits_for})" if info.waits_for not in (None, "capacity") else status_of(info)


def _turn(info: RunInfo) -> str:
    """Return the conversation of a run, with the number of its turn, which a queued run does not have yet."""
    return f"{info.conversation_id}#{info.turn or '?'}" if info.conversation_id else "-"
