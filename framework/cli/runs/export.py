"""`agentsd runs export`: a run's messages as data, or the run as a case."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import click

from framework.cli.location import locate
from framework.cli.records import find_run, stored
from framework.cli.writing import as_json_text, write_out
from framework.config.case_file import case_file
from framework.engine.case_export import case_of
from framework.llm.forms import FORMS, Form, exported
from framework.types.state import RunState


@click.command("export")
@click.argument("run")
@click.option("-f", "--format", "form", type=click.Choice(FORMS), default="messages", show_default=True, help="Which.")
@click.option("--as-test", is_flag=True, help="Write it as a case for `agentsd test` instead.")
@click.option("-o", "--output", metavar="FILE", help="Write it there instead of printing it.")
@click.option("-C", "--project", default=".", show_default=True, help="The project's folder.")
def command(run: str, form: Form, as_test: bool, output: str | None, project: str) -> int:
    """Write what was said in RUN and before it as JSON: in our own form, or as a provider's API takes it.

    With --as-test: as a case whose models and tools say what they said, for a file `agents.d/NAME.test.yaml`.
    """
    record, events = asyncio.run(_load(project, run))
    if as_test:
        write_out(case_file(case_of(record, events)), output)
    else:
        write_out(as_json_text(exported((*record.history, *record.messages), form)), output)
    return 0


async def _load(project: str, run: str) -> tuple[RunState, Sequence[Mapping[str, Any]]]:
    async with stored(locate(project)) as store:
        record = await find_run(store, run)
        return record, await store.events(record.run_id)
