"""`agentsd chat`: a conversation in the terminal, while the files are watched."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from shlex import quote
from typing import TextIO

import click

from framework.cli.attachments import attached
from framework.cli.confirm import ask_for_decisions
from framework.cli.conversations.show import conversation_lines
from framework.cli.exporting import exporting
from framework.cli.location import Location, locate, show_problem, store_url
from framework.cli.records import new_conversation, runs_of
from framework.cli.screen import prints_on_stderr, say
from framework.cli.session import answer, print_result
from framework.cli.terminal import is_terminal, read_in_thread
from framework.engine.routing.rules import NO_AGENTS
from framework.engine.runtime.conversation import load_conversation
from framework.engine.runtime.request import RUNTIME_CALLER, RunOptions
from framework.engine.runtime.runtime import Runtime
from framework.store.protocol import RunInfo
from framework.types.errors import AgentsdError, ConfigError, RequestError
from framework.types.events import ConfigRejected, ConfigReloaded
from framework.types.file import File
from framework.types.state import RunResult, RunState
from framework.types.text import visible

SHOWN_TURNS = 10
"""Turns shown when an existing conversation continues."""


@click.command("chat")
@click.argument("path", default=".")
@click.option("-a", "--agent", help="Which agent; otherwise the router chooses with the first message.")
@click.option("-c", "--conversation", help="Continue this conversation; an unknown id starts one.")
@click.option("-m", "--model", help="Use this model instead of the agents' own, e.g. openai/gpt-5.4-mini.")
@click.option("--locale", help="Language of the prompts, e.g. zh.")
def command(path: str, agent: str | None, conversation: str | None, model: str | None, locale: str | None) -> int:
    """Talk with an agent of the project at PATH (default: this folder), or with one agent file.

    The path of an image, a PDF or audio in a message attaches the file.
    Edits of the project's files take effect between messages. End with Ctrl-D or an empty line; you can continue the
    conversation later. `agentsd conversations list` shows every conversation.

    Exit codes: 0 ended normally, 3 a message waits for approval, 130 ended with Ctrl-C.
    """
    location = locate(path)
    with exporting(location.settings()), prints_on_stderr() as output:
        options = RunOptions(agent=agent, conversation=conversation, model=model, locale=locale)
        return asyncio.run(_chat(location, options, output))


async def _chat(location: Location, options: RunOptions, output: TextIO) -> int:
    conversation = options["conversation"] or new_conversation()
    async with Runtime.open(location.root, store=store_url(location), single_user=True) as runtime:
        for problem in runtime.catalog.current.startup_problems:
            show_problem(problem)
        if not runtime.catalog.current.agents:
            raise RequestError(NO_AGENTS)
        prompt = _Prompt()
        runtime.catalog.subscribe(prompt.report_reload)
        options["agent"] = options["agent"] or location.agent(runtime.catalog.current)
        click.secho(f"agents: {', '.join(sorted(runtime.catalog.current.agents))}", dim=True, err=True)
        try:
            await _show_earlier_turns(runtime, conversation, output)
            return await _talk(runtime, prompt, {**options, "conversation": conversation}, output)
        finally:
            if (await load_conversation(runtime.store, conversation, RUNTIME_CALLER)).turns:
                click.secho(f"continue it: agentsd chat --conversation {quote(conversation)}", dim=True, err=True)


async def _talk(runtime: Runtime, prompt: _Prompt, options: RunOptions, output: TextIO) -> int:
    """Answer messages until the input ends or a run waits for a decision; return the exit code."""
    while message := await read_in_thread(prompt.read):
        # An edit saved before this message applies to it, even if the watcher has not noticed it yet.
        await runtime.reload()
        try:
            content = await asyncio.to_thread(attached, message)
            if files := [item.description for item in content if isinstance(item, File)]:
                click.secho(f"(attached: {', '.join(map(visible, files))})", dim=True, err=True)
            result = await answer(runtime, runtime.stream(content, **options), quiet=False)
        except ConfigError:
            raise
        except AgentsdError as error:
            say(str(error), fg="red", err=True)
            continue
        code = _print(result, output)
        if result.status == "paused":
            return code
    return 0


async def _show_earlier_turns(runtime: Runtime, conversation: str, output: TextIO) -> None:
    """Show the last turns, and ask for the decisions that the conversation waits for."""
    found = await load_conversation(runtime.store, conversation, RUNTIME_CALLER)
    turns = await runs_of(runtime.store, found)
    for line in conversation_lines(found, turns, SHOWN_TURNS) if found.turns else ():
        click.echo(line, err=True)
    if found.open_run is None:
        return
    state = await runtime.store.load_run(found.open_run)
    if state.pending and is_terminal():
        resumed = runtime.resume_stream(state.run_id, await ask_for_decisions(state.pending))
        result = await answer(runtime, resumed, quiet=False, title=f"● {state.agent} (resumed)")
        _print(result, output)
        if result.status == "paused":
            raise click.Abort
    else:
        click.secho(_open(turns, state), fg="yellow", err=True)


def _open(turns: Sequence[RunInfo], state: RunState) -> str:
    """Describe the open run of a conversation, with the command that continues it."""
    run_id = state.run_id
    if state.pending:
        return f"its last run waits for a decision: agentsd runs decide {run_id} --approve ID"
    if any(info.run_id == run_id and info.orphaned for info in turns):
        return f"its last run was interrupted when its process ended; resume it: agentsd runs resume {run_id}"
    return f"its last run is in progress in another process; wait for it, or cancel it: agentsd runs cancel {run_id}"


def _print(result: RunResult, output: TextIO) -> int:
    with redirect_stdout(output):
        return print_result(result, as_json=False)


class _Prompt:
    """Reads the messages of the user. A reload may be reported while they type."""

    def __init__(self) -> None:
        self._waiting = False

    def read(self) -> str:
        """Read the next line; empty at the end of the input."""
        self._show()
        self._waiting = True
        line = sys.stdin.readline()
        self._waiting = False
        if not line and sys.stdin.isatty():
            click.echo(err=True)  # Ctrl-D leaves the cursor behind the prompt
        return line.strip()

    def report_reload(self, event: ConfigReloaded | ConfigRejected) -> None:
        """Report what changed, and print the prompt again if the user was typing."""
        interrupted = self._waiting and sys.stdin.isatty()
        if interrupted:
            click.echo(err=True)
        _show_change(event)
        if interrupted:
            self._show()

    def _show(self) -> None:
        if sys.stdin.isatty():
            click.secho("\nyou> ", bold=True, nl=False, err=True)


def _show_change(event: ConfigReloaded | ConfigRejected) -> None:
    for problem in event.problems:
        show_problem(problem)
    if isinstance(event, ConfigRejected):
        click.secho("(the edit is invalid; the previous version stays live)", fg="yellow", err=True)
        return
    parts = [
        f"{name}: {', '.join(names)}" for name in ("added", "changed", "removed") if (names := getattr(event, name))
    ]
    click.secho(
        f"(generation {event.generation} is live; {'; '.join(parts) or 'nothing changed for agents'})",
        dim=True,
        err=True,
    )
