"""`agentsd runs export`: writes a run's messages as JSON, or the run as a test case."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from framework.cli.location import locate
from framework.cli.options import PROJECT_OPTION
from framework.cli.records import find_run, find_whole_run, load_files, open_project_store
from framework.cli.terminal import as_json_text, write_out
from framework.config.editing import replace_file
from framework.evals.export import export_case
from framework.evals.suite import case_file, with_case
from framework.llm.message_formats import FORMS, Form, exported
from framework.store.types import RunQuery
from framework.types.errors import RequestError
from framework.types.messages import Message
from framework.types.state import Rating

if TYPE_CHECKING:
    from framework.store.store import Store

T = TypeVar("T")


@click.command("export")
@click.argument("run")
@click.option("-f", "--format", "form", type=click.Choice(FORMS), default="messages", show_default=True, help="Format.")
@click.option("--as-test", is_flag=True, help="Write it as a case for `agentsd test` instead.")
@click.option("--with-rating", is_flag=True, help="Write an object with the messages and the rating of the answer.")
@click.option("-o", "--output", metavar="FILE", help="Write to this file instead of standard output.")
@PROJECT_OPTION
def command(run: str, form: Form, as_test: bool, with_rating: bool, output: str | None, project: str) -> int:
    """Write the messages of RUN and of earlier turns as JSON: in our own format or in that of a provider's API.

    Images, PDFs and audio are contained in base64.

    With --as-test, write a test case with the recorded responses of models and tools, for a file
    `agents.d/NAME.test.yaml`. If the file exists, the case is appended. Its note is the rating of the answer.
    """
    if as_test:
        stored = asyncio.run(_load(project, run, find_whole_run))
        case = export_case(stored.state, stored.events, stored.rating)
        if output and output != "-" and Path(output).exists():
            append_case(case, Path(output))
        else:
            write_out(case_file(case), output)
    else:
        found = asyncio.run(_load(project, run, _find_messages))
        body = exported(found.messages, form, files=found.files)
        if with_rating:
            rating = found.rating and found.rating.model_dump(mode="json")
            body = {**(body if isinstance(body, dict) else {"messages": body}), "rating": rating}
        write_out(as_json_text(body), output)
    return 0


@dataclass(frozen=True, slots=True)
class _Found:
    """The messages of a run and of earlier turns, their files by digest, and the rating of the run."""

    messages: Sequence[Message]
    files: Mapping[str, bytes]
    rating: Rating | None


async def _find_messages(store: Store, run: str) -> _Found:
    found = await find_run(store, run)
    messages = (*found.history, *found.messages)
    (info,) = await store.runs(RunQuery(run_id=found.run_id))
    return _Found(messages, await load_files(store, messages), info.rating)


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
