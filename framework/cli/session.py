"""Runs one message in the terminal: shows progress, asks for decisions, prints the answer."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import TextIO

import click

from framework.cli.confirm import ask_for_decisions
from framework.cli.screen import prints_on_stderr, raw_stderr, say
from framework.cli.show import Lines, View, how_to_decide, reason_for_no_answer
from framework.cli.terminal import is_terminal, on_interrupt
from framework.engine.context.stream import RunStream
from framework.engine.runtime.runtime import Runtime
from framework.types.events import ConfirmationRequested, ContentReceived, Event, wire
from framework.types.outcome import outcome_for
from framework.types.state import RunResult

_SHOWN_OTHERWISE = (ContentReceived, ConfirmationRequested)
"""Events that the user sees as the printed answer and as a question."""


def view_of_run(title: str = "…") -> View:
    """Return a live tree on a terminal, lines elsewhere; the title is shown until the agent is known."""
    if not sys.stderr.isatty():
        return Lines()
    tree = import_module("framework.cli.tree")  # rich is only imported for terminals
    console = import_module("rich.console").Console(file=raw_stderr())
    view: View = tree.LiveTree(console, title)
    return view


class JsonLines:
    """Prints each event in its wire format as one line of JSON."""

    def __init__(self, output: TextIO) -> None:
        self._output = output

    def show(self, event: Event) -> None:
        click.echo(json.dumps(wire(event), ensure_ascii=False), file=self._output)

    def close(self) -> None:
        """Do nothing: no resource is open."""


async def answer(
    runtime: Runtime,
    started: AbstractAsyncContextManager[RunStream],
    *,
    quiet: bool,
    title: str = "…",
    events: JsonLines | None = None,
) -> RunResult:
    """Show a run until it ends; on a terminal, ask for decisions and resume it. Ctrl-C there leaves it paused.

    Args:
        runtime: the runtime of the run.
        started: the run.
        quiet: show nothing, and ask for nothing.
        title: shown until the agent is known.
        events: prints all events instead.
    """
    view = events or (None if quiet else view_of_run(title))
    result = await _watch(started, view)
    while result.status == "paused" and not quiet and is_terminal():
        try:
            decisions = await ask_for_decisions(result.pending)
        except click.Abort:
            break
        result = await _watch(runtime.resume_stream(result.run_id, decisions), view)
    return result


async def _watch(started: AbstractAsyncContextManager[RunStream], view: View | None) -> RunResult:
    """Show a run until it ends or pauses; Ctrl-C cancels it in order."""
    async with started as stream:
        with prints_on_stderr():  # outside the view, which restores the streams that it found
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
    """Print the answer on standard output, or the reason for none on standard error; return the exit code."""
    if as_json:
        click.echo(json.dumps(result.model_dump(mode="json", exclude_none=True), ensure_ascii=False, indent=2))
    else:
        if result.output:
            say(result.output)
        if result.truncated and result.status == "completed":
            say("incomplete: the output limit cut this answer", fg="yellow", err=True)
        if text := reason_for_no_answer(result):
            say(text, fg="yellow" if result.status == "paused" else "red", err=True)
        if result.pending:
            click.secho(how_to_decide(result), dim=True, err=True)
    return outcome_for(result.finish_reason).exit_code
