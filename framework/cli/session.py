"""One message from the terminal: shown while it runs, its questions asked, its answer printed."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import AbstractAsyncContextManager
from importlib import import_module

import click

from framework.cli.confirm import ask_human
from framework.cli.show import Lines, View, ending, how_to_decide
from framework.engine.runtime import Runtime
from framework.engine.stream import RunStream
from framework.types.events import ConfirmationRequested, ContentReceived
from framework.types.outcome import outcome
from framework.types.state import RunResult


def is_terminal() -> bool:
    """Is there a person at both ends?"""
    return sys.stdin.isatty() and sys.stderr.isatty()


def view_of_run(title: str = "…") -> View:
    """A live tree on a terminal, lines elsewhere; the title stands above it until the run names its agent."""
    if not sys.stderr.isatty():
        return Lines()
    tree = import_module("framework.cli.tree")  # rich is only loaded for people
    console = import_module("rich.console").Console(stderr=True)
    view: View = tree.LiveTree(console, title)
    return view


async def answer(
    runtime: Runtime, started: AbstractAsyncContextManager[RunStream], *, quiet: bool, title: str = "…"
) -> RunResult:
    """Show a run to its end; on a terminal, ask what it needs to know and go on."""
    view = None if quiet else view_of_run(title)
    result = await _watch(started, view)
    while result.status == "paused" and not quiet and is_terminal():
        decisions = {asked.id: await asyncio.to_thread(ask_human, asked) for asked in result.pending}
        result = await _watch(runtime.resume_stream(result.run_id, decisions), view)
    return result


async def _watch(started: AbstractAsyncContextManager[RunStream], view: View | None) -> RunResult:
    """Show one stretch of a run; Ctrl-C cancels the run, which still ends in order."""
    loop = asyncio.get_running_loop()
    async with started as stream:
        loop.add_signal_handler(signal.SIGINT, stream.cancel)
        try:
            async for event in stream:
                if view is not None and not isinstance(event, (ContentReceived, ConfirmationRequested)):
                    view.show(event)
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            if view is not None:
                view.close()
        return await stream.result()


def print_result(result: RunResult, *, as_json: bool) -> int:
    """The answer on standard output, the reason for a missing one on standard error; returns the exit code."""
    if as_json:
        click.echo(json.dumps(result.model_dump(mode="json", exclude_none=True), ensure_ascii=False, indent=2))
    else:
        if result.output:
            click.echo(result.output)
        if text := ending(result):
            click.secho(text, fg="yellow" if result.status == "paused" else "red", err=True)
        if result.pending:
            click.secho(how_to_decide(result), dim=True, err=True)
    return outcome(result.finish_reason).exit_code
