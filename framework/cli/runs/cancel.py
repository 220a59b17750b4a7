"""`agentsd runs cancel`: cancels a run that has not ended, in whichever process it is in progress."""

from __future__ import annotations

import asyncio
import json

import click

from framework.cli.location import locate
from framework.cli.options import PROJECT_OPTION
from framework.cli.records import find_run
from framework.cli.session import open_runtime
from framework.store.types import OPEN_STATUSES
from framework.types.report import Status
from framework.types.state import RunState


@click.command("cancel")
@click.argument("run")
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def command(run: str, project: str, as_json: bool) -> int:
    """Cancel RUN: queued, in progress in another process, paused, or interrupted.

    Exit codes: 0 it is cancelled, or its process was asked to cancel it; 1 it had already ended.
    """
    before, after, happened = asyncio.run(_cancel(project, run))
    had_ended = before.status not in OPEN_STATUSES or happened not in (*OPEN_STATUSES, "cancelled")
    if as_json:
        click.echo(json.dumps({"run_id": after.run_id, "status": after.status, "was": before.status}))
    elif had_ended:
        click.echo(f"{after.run_id} had already ended: {after.status}")
    elif after.status == "cancelled":
        click.echo(f"{after.run_id} is cancelled")
    else:
        click.echo(f"{after.run_id}: the process that runs it was asked to cancel it")
    return 1 if had_ended else 0


async def _cancel(project: str, run: str) -> tuple[RunState, RunState, Status]:
    async with open_runtime(locate(project)) as runtime:
        before = await find_run(runtime.store, run)
        happened = await runtime.cancel(before.run_id)
        return before, await runtime.store.load_run(before.run_id), happened
