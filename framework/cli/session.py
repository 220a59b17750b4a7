"""One message from the terminal: shown while it runs, its questions asked, its answer printed."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import TextIO

import click

from framework.cli.confirm import decided
from framework.cli.screen import prints_on_stderr, raw_stderr, say
from framework.cli.show import Lines, View, ending, how_to_decide
from framework.cli.terminal import is_terminal, on_interrupt
from framework.engine.context.stream import RunStream
from framework.engine.runtime.runtime import Runtime
from framework.types.events import ConfirmationRequested, ContentReceived, Event, wire
from framework.types.outcome import outcome_for
from framework.types.state import RunResult

_SHOWN_OTHERWISE = (ContentReceived, ConfirmationRequested)
"""Events that people see as the printed answer and as a question."""


def view_of_run(title: str = "…") -> View:
    """A live tree on a terminal, lines elsewhere; the title stands above it until the run names its agent."""
    if not sys.stderr.isatty():
        return Lines()
    tree = import_module("framework.cli.tree")  # rich is only loaded for people
    console = import_module("rich.console").Console(file=raw_stderr())
    view: View = tree.LiveTree(console, title)
    return view


class JsonLines:
    """Every event in its wire form as one line of JSON."""

    def __init__(self, output: TextIO) -> None:
        self._output = output

    def show(self, event: Event) -> None:
        click.echo(json.dumps(wire(event), ensure_ascii=False), file=self._output)

    def close(self) -> None:
        """Nothing is open."""


async def answer(
    runtime: Runtime,
    started: AbstractAsyncContextManager[RunStream],
    *,
    quiet: bool,
    title: str = "…",
    events: JsonLines | None = None,
) -> RunResult:
    """Show a run until it ends; on a terminal, ask its questions and resume it. Ctrl-C there leaves it waiting.

    Args:
        runtime: where it runs.
        started: the run.
        quiet: show nothing, and ask nothing.
        title: stands above the run until it names its agent.
        events: where all its events go instead.
    """
    view = events or (None if quiet else view_of_run(title))
    result = await _watch(started, view)
    while result.status == "paused" and not quiet and is_terminal():
        try:
            decisions = await decided(result.pending)
        except click.Abort:
            break
        result = await _watch(runtime.resume_stream(result.run_id, decisions), view)
    return result


async def _watch(started: AbstractAsyncContextManager[RunStream], view: View | None) -> RunResult:
    """Show one stretch of a run; Ctrl-C cancels the run, which still ends in order."""
    async with started as stream:
        with prints_on_stderr():  # around the view, which restores what it has found when it closes
            await _show(stream, view)
        return await stream.result()


async def _show(stream: RunStream, view: View | None) -> None:
    try:
        with on_interrupt(stream.cancel):
            async for event in stream:
                if view is not None and (isinstance(view, JsonLines) or not isinstance(event, _SHOWN_OTHERWISE)):
                    view.show(event)
    finally:
        if view is not None:
            view.close()


def print_result(result: RunResult, *, as_json: bool) -> int:
    """The answer on standard output, the reason for a missing one on standard error; returns the exit code."""
    if as_json:
        click.echo(json.dumps(result.model_dump(mode="json", exclude_none=True), ensure_ascii=False, indent=2))
    else:
        if result.output:
            say(result.output)
        if text := ending(result):
            say(text, fg="yellow" if result.status == "paused" else "red", err=True)
        if result.pending:
            click.secho(how_to_decide(result), dim=True, err=True)
    return outcome_for(result.finish_reason).exit_code
