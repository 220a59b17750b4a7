"""`agentsd runs tail`: follows a run, in whichever process it is in progress."""

from __future__ import annotations

import asyncio

import click

from framework.cli.location import locate
from framework.cli.options import PROJECT_OPTION
from framework.cli.records import LAST, find_run
from framework.cli.session import JsonLines, open_runtime, print_result
from framework.cli.show import Lines
from framework.cli.terminal import prints_on_stderr
from framework.types.errors import outcome_for
from framework.types.state import RunResult


@click.command("tail")
@click.argument("run", default=LAST)
@PROJECT_OPTION
@click.option("--events", is_flag=True, help="Print each event as it happens, as one line of JSON.")
def command(run: str, project: str, events: bool) -> int:
    """Follow RUN (default: the newest) from its beginning, until it ends or waits for a decision.

    The run may be queued, or in progress in any process that shares the store. Ctrl-C leaves; the run continues.
    Exit codes are those of `agentsd run`.
    """
    with prints_on_stderr() as output:
        result = asyncio.run(_follow(project, run, JsonLines(output) if events else Lines()))
    return outcome_for(result.finish_reason).exit_code if events else print_result(result, as_json=False)


async def _follow(project: str, run: str, view: JsonLines | Lines) -> RunResult:
    async with open_runtime(locate(project)) as runtime:
        state = await find_run(runtime.store, run)
        click.secho(f"{state.run_id}  {state.status}", bold=True, err=True)
        async for event in runtime.follow(state.run_id):
            view.show(event)
        view.close()
        return await runtime.result(state.run_id)
