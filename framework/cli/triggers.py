"""`agentsd triggers`: lists, runs, pauses and resumes the triggers of a project."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime
from typing import TextIO
from zoneinfo import ZoneInfo

import click

from framework.cli.location import PROJECT_OPTION, ago, locate, open_project_store
from framework.cli.project import read_project
from framework.cli.run import open_runtime, print_result
from framework.cli.show import NOTHING, short_id, show_table
from framework.cli.terminal import draws, print_json, prints_on_stderr, say
from framework.engine.triggers import TriggerReport, Triggers, trigger_reports
from framework.types.errors import RequestError, TriggerNotFound
from framework.types.state import RunResult
from framework.types.text import did_you_mean

_COLUMNS = ("trigger", "agent", "starts", "next", "last", "run", "note")


@click.group("triggers")
def command() -> None:
    """List, run, pause and resume triggers. `agentsd serve` and `agentsd worker` start their runs."""


@command.command("list")
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON, as GET /agent/triggers returns them.")
def triggers_list(project: str, as_json: bool) -> int:
    """List the triggers of a project: when each starts runs, next and last, and why not."""
    reports = asyncio.run(_reports(project))
    if as_json:
        items = [report.model_dump(mode="json") for report in reports]
        print_json({"items": items})
    elif not reports:
        click.echo("no triggers: put one under triggers.d/")
    else:
        show_table(_COLUMNS, [_row(report) for report in reports])
    return 0


async def _reports(path: str) -> tuple[TriggerReport, ...]:
    location = locate(path)
    triggers = (await read_project(location)).catalog.current.triggers
    if not triggers:
        return ()
    async with open_project_store(location) as store:
        return trigger_reports(triggers, await store.triggers(), store.now())


def _row(report: TriggerReport) -> list[str]:
    state = "paused" if report.paused_at else _local(report.next_at, report.timezone)
    note = "; ".join(filter(None, ("the file is invalid" if report.stale else "", report.note or "")))
    return [
        report.name,
        report.agent,
        report.when,
        state,
        ago(report.last_at.timestamp()) if report.last_at else NOTHING,
        short_id(report.last_run) if report.last_run else NOTHING,
        note or NOTHING,
    ]


def _local(time: datetime | None, zone: str | None) -> str:
    return time.astimezone(ZoneInfo(zone) if zone else UTC).strftime("%a %Y-%m-%d %H:%M") if time else NOTHING


@command.command("run")
@click.argument("name")
@click.option(
    "--body", metavar="FILE", type=click.File("r", "utf-8"), help="For a webhook: JSON file with the body of a request."
)
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
def triggers_run(name: str, body: TextIO | None, project: str, as_json: bool) -> int:
    """Start the run of the trigger NAME now, also while it is paused, and wait for its end."""
    try:
        data = None if body is None else json.loads(body.read())
    except (ValueError, RecursionError) as error:
        raise RequestError(f"--body: not JSON: {error}") from None

    async def run() -> RunResult:
        async with open_runtime(locate(project), quiet=as_json) as runtime:
            triggers = Triggers(runtime)
            trigger = triggers.find(name)
            run_id = await triggers.run(trigger, data)
            return await runtime.result(run_id, user=trigger.user, tenant=trigger.spec.tenant)

    with prints_on_stderr():
        result = asyncio.run(run())
    if result.output and not as_json and sys.stdout.isatty() and draws():  # `print_result` takes it for shown
        say(result.output)
    return print_result(result, as_json=as_json)


@command.command("pause")
@click.argument("name")
@click.option("--by", metavar="USER", help="Who pauses it, for the list.")
@PROJECT_OPTION
def triggers_pause(name: str, by: str | None, project: str) -> int:
    """Pause the trigger NAME, in all processes of the store. Times of the pause are not made up for."""
    return asyncio.run(_pause(name, project, is_paused=True, by=by))


@command.command("resume")
@click.argument("name")
@PROJECT_OPTION
def triggers_resume(name: str, project: str) -> int:
    """Resume the trigger NAME, in all processes of the store."""
    return asyncio.run(_pause(name, project, is_paused=False))


async def _pause(name: str, project: str, *, is_paused: bool, by: str | None = None) -> int:
    location = locate(project)
    known = (await read_project(location)).catalog.current.triggers
    async with open_project_store(location) as store:
        if name not in known and name not in await store.triggers():
            raise TriggerNotFound(f"there is no trigger {name!r}{did_you_mean(name, sorted(known))}")
        changed = await store.pause_trigger(name, is_paused=is_paused, by=by)
    state = "paused" if is_paused else "active"
    click.echo(f"{name} is {state}" if changed else f"{name} was {state} already")
    return 0
