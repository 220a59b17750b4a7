"""`agentsd runs replay`: replays a stored run under the current files, and shows the differences."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from difflib import unified_diff

import click

from framework.cli.location import locate
from framework.cli.options import PROJECT_OPTION
from framework.cli.project import read_project
from framework.cli.records import find_whole_run, open_project_store
from framework.replay.player import Difference, replay
from framework.types.text import visible

TITLES = {
    "agent": "agent",
    "offered": "tools offered to",
    "prompt": "prompt of",
    "asked": "question",
    "call": "call",
    "plan": "plan",
    "record": "the record",
    "status": "status",
    "output": "output",
}


@click.command("replay")
@click.argument("run")
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the differences as JSON.")
def command(run: str, project: str, as_json: bool) -> int:
    """Replay RUN under the current files, and show what would be different.

    Models and tools return their recorded responses: nothing is called, no network is used. Earlier decisions apply
    again; new questions are approved. Exit codes: 0 no differences, 1 differences.
    """
    run_id, found = asyncio.run(_replay(project, run))
    if as_json:
        data = {"run_id": run_id, "differences": [asdict(one) for one in found]}
        click.echo(json.dumps(data, ensure_ascii=False, indent=2))
    elif not found:
        click.echo(f"{run_id}: nothing differs")
    else:
        for one in found:
            for line in difference_lines(one):
                click.echo(line)
    return 1 if found else 0


async def _replay(project: str, run: str) -> tuple[str, Sequence[Difference]]:
    location = locate(project)
    read = await read_project(location)
    async with open_project_store(location) as store:
        stored = await find_whole_run(store, run)
    return stored.state.run_id, await replay(read.root, stored, read.catalog.current)


def difference_lines(one: Difference) -> Iterator[str]:
    """Yield the lines that show a difference: its subject, the record and the replay."""
    yield click.style(f"{TITLES[one.what]} {visible(one.subject)}".rstrip(), bold=True)
    if one.what in ("prompt", "plan", "output"):
        changed = unified_diff(one.before.splitlines(), one.after.splitlines(), lineterm="", n=1)
        for line in list(changed)[2:]:
            yield click.style(f"  {visible(line)}", fg={"-": "red", "+": "green"}.get(line[:1]), dim=line[:1] == "@")
        return
    if one.before:
        yield click.style(f"  - {visible(one.before)}", fg="red")
    if one.after:
        yield click.style(f"  + {visible(one.after)}", fg="green")
