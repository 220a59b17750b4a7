"""Shows the answers of a chat: as text, or as lines of JSON, with their traces on request."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, redirect_stdout
from dataclasses import dataclass, field
from typing import TextIO

import click

from framework.cli.chat_lines import MessageReader
from framework.cli.chat_notices import ReloadNotices
from framework.cli.chat_state import ChatState
from framework.cli.confirm import ask_for_decisions
from framework.cli.session import answer, data_of, print_result, view_of_run
from framework.cli.show import View
from framework.cli.startup_problems import StartupProblems
from framework.cli.waterfall import requested_waterfall
from framework.engine.context.event_hub import RunStream
from framework.types.errors import outcome_for
from framework.types.state import Confirmation, Decision


@dataclass(frozen=True, slots=True)
class AnswerOutput:
    """Where and how the answers of a chat are shown."""

    output: TextIO
    """Standard output."""
    trace: bool = False
    as_json: bool = False
    notices: ReloadNotices = field(default_factory=ReloadNotices)
    """Reports reloads, but not while the user answers a question."""
    problems: StartupProblems = field(default_factory=StartupProblems)
    """The problems that were shown."""

    def view(self, reader: MessageReader, title: str = "…") -> View | None:
        """Return what shows the next run."""
        return None if self.as_json else view_of_run(title, reader.area)

    async def show(
        self,
        chat: ChatState,
        started: AbstractAsyncContextManager[RunStream],
        reader: MessageReader,
        view: View | None,
    ) -> int:
        """Show a run until it ends or waits for a decision that nobody makes; return its exit code."""

        async def ask(pending: Iterable[Confirmation]) -> dict[str, Decision]:
            async with reader.suspended():
                with self.notices.held():
                    return await ask_for_decisions(pending)

        result = chat.last = await answer(
            chat.runtime, started, view, ask=ask, interrupts=reader.on_interrupt, hides=self.problems.repeats
        )
        chat.reroutes = False
        if self.as_json:
            click.echo(json.dumps(data_of(result), ensure_ascii=False), file=self.output)
        else:
            with redirect_stdout(self.output):
                print_result(result, as_json=False)
        if self.trace:
            for line in requested_waterfall(await chat.runtime.store.spans(result.run_id), sys.stderr):
                click.echo(line, err=True)
        return outcome_for(result.finish_reason).exit_code
