"""`agentsd runs resume`: resumes an interrupted run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click

from framework.cli.location import locate
from framework.cli.options import PROJECT_OPTION
from framework.cli.session import print_result, resume_run
from framework.cli.terminal import prints_on_stderr
from framework.types.state import Confirmation, Decision


@click.command("resume")
@click.argument("run")
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
def command(run: str, project: str, as_json: bool) -> int:
    """Resume RUN, which was interrupted when its process ended; a paused run asks for its decisions.

    Finished calls are not repeated. Exit codes are those of `agentsd run`.
    """
    with prints_on_stderr():
        result = asyncio.run(resume_run(locate(project), run, _undecided, quiet=as_json))
    return print_result(result, as_json=as_json)


async def _undecided(pending: Sequence[Confirmation]) -> dict[str, Decision]:  # noqa: ARG001 - open confirmations are asked for again
    return {}
