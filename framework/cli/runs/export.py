"""`agentsd runs export`: writes a run's messages as JSON, or the run as a test case."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from framework.cli.location import locate
from framework.cli.records import find_run, find_whole_run, open_project_store
from framework.cli.writing import as_json_text, replace_file, write_out
from framework.evals.case_file import case_file, with_case
from framework.evals.export import export_case
from framework.llm.message_formats import FORMS, Form, exported
from framework.store.protocol import Store
from framework.types.errors import RequestError

T = TypeVar("T")


@click.command("export")
@click.argument("run")
@click.option("-f", "--format", "form", type=click.Choice(FORMS), default="messages", show_default=True, help="Format.")
@click.option("--as-test", is_flag=True, help="Write it as a case for `agentsd test` instead.")
@click.option("-o", "--output", metavar="FILE", help="Write to this file instead of standard output.")
@click.option("-C", "--project", default=".", show_default=True, help="The project's folder.")
def command(run: str, form: Form, as_test: bool, output: str | None, project: str) -> int:
    """Write the messages of RUN and of earlier turns as JSON: in our own format or in that of a provider's API.

    With --as-test, write a test case with the recorded responses of models and tools, for a file
    `agents.d/NAME.test.yaml`. If the file exists, the case is appended.
    """
    if as_test:
        record, events = asyncio.run(_load(project, run, find_whole_run))
        case = export_case(record, events)
        if output and output != "-" and Path(output).exists():
            append_case(case, Path(output))
        else:
            write_out(case_file(case), output)
    else:
        record = asyncio.run(_load(project, run, find_run))
        write_out(as_json_text(exported((*record.history, *record.messages), form)), output)
    return 0


def append_case(case: Mapping[str, Any], file: Path) -> None:
    """Add a case to a file of cases; raises RequestError."""
    try:
        replace_file(file, with_case(file.read_bytes(), case, str(file)).encode())
    except OSError as error:
        raise RequestError(f"{file} cannot be written: {error.strerror}") from None
    click.echo(f"added to {file}", err=True)


async def _load(project: str, run: str, find: Callable[[Store, str], Awaitable[T]]) -> T:
    async with open_project_store(locate(project)) as store:
        return await find(store, run)
