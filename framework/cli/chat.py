"""`agentsd chat`: a conversation in the terminal, while the files are watched."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from shlex import quote
from typing import Any, TextIO

import click

from framework.cli.chat_commands import ChatCommands, ChatState, MessageReader, attached, is_command
from framework.cli.confirm import CountMatches, ask_for_decisions
from framework.cli.location import (
    INPUT_OPTION,
    LIMIT_OPTION,
    LOCALE_OPTION,
    MODEL_OPTION,
    Location,
    locate,
    model_of,
    new_conversation,
    parse_inputs,
    parse_pairs,
    project_path,
    runs_of,
    show_problem,
    store_url,
    tenant_option,
    user_option,
)
from framework.cli.project import trace_export
from framework.cli.run import StartupProblems, answer, data_of, print_result, shown_from_now, view_of_run
from framework.cli.show import View, requested_waterfall
from framework.cli.terminal import draws, is_terminal, prints_on_stderr, raw_stderr, say, starting, wrapped_line
from framework.cli.transcripts import conversation_lines
from framework.config.snapshot import AGENTS
from framework.engine.context.events import RunStream
from framework.engine.routing import NO_AGENTS
from framework.engine.runtime.request import checked_inputs
from framework.engine.runtime.runtime import Runtime
from framework.llm.providers import import_sdks
from framework.server.startup import model_names
from framework.store.types import RunInfo
from framework.types.errors import EXIT_APPROVAL, AgentBroken, AgentsdError, ConfigError, RequestError, outcome_for
from framework.types.events import ConfigRejected, ConfigReloaded
from framework.types.file import File
from framework.types.problem import Problem
from framework.types.state import Confirmation, Decision, RunState
from framework.types.text import InputText, visible


class ReloadNotices:
    """Prints what a reload changed, at once or when the user has finished a line."""

    def __init__(self) -> None:
        self._held: list[ConfigReloaded | ConfigRejected] | None = None
        self._known: frozenset[str] = frozenset()
        """The problems of the last reload, which the next one does not repeat."""
        self._warnings: frozenset[str] = frozenset()
        """The warnings that were shown for valid files. They are not repeated."""
        self._generation = 1

    def know(self, problems: Iterable[Problem], generation: int = 1) -> None:
        """Do not report these problems of the live generation, as long as they last."""
        self._known = frozenset(map(_identity, problems))
        self._warnings |= frozenset(_identity(problem) for problem in problems if problem.severity == "warning")
        self._generation = generation

    def report(self, event: ConfigReloaded | ConfigRejected) -> None:
        """Print what changed, unless notices are held."""
        if self._held is None:
            self._show(event)
        else:
            self._held.append(event)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold notices while the context is open."""
        held: list[ConfigReloaded | ConfigRejected] = []
        self._held = held
        try:
            yield
        finally:
            self._held = None
            for event in held:
                self._show(event)

    def _show(self, event: ConfigReloaded | ConfigRejected) -> None:
        lines = set[tuple[str, int | None]]()
        for problem in event.problems:
            line = (problem.path, problem.line)
            if _identity(problem) not in self._known | self._warnings and line not in lines:
                hint = f" ({problem.hint})" if problem.hint else ""
                message = f"{problem.message}{hint}"
                show_problem(problem.model_copy(update={"message": message, "excerpt": None, "hint": None}))
                lines.add(line)
        _show_change(event, self._generation)
        if isinstance(event, ConfigReloaded):
            self.know(event.problems, event.generation)
        else:
            self._known, self._generation = frozenset(map(_identity, event.problems)), event.generation


def _identity(problem: Problem) -> str:
    """Return what distinguishes a problem; its line moves with edits above it."""
    return f"{problem.path}: {problem.message}"


def _show_change(event: ConfigReloaded | ConfigRejected, before: int) -> None:
    if isinstance(event, ConfigRejected):
        where = f", in generation {event.generation}" if event.generation != before else ""
        files = ", ".join(sorted({problem.path for problem in event.problems if problem.severity == "error"}))
        stays = f"(the last good version of {files or 'the files'} stays live{where})"
        click.secho(wrapped_line(stays, hanging=1), fg="yellow", err=True)
        return
    parts = [
        f"{name}: {', '.join(names)}" for name in ("added", "changed", "removed") if (names := getattr(event, name))
    ]
    live = f"(generation {event.generation} is live; {'; '.join(parts) or 'nothing changed for agents'})"
    click.secho(wrapped_line(live, hanging=1), dim=True, err=True)


@dataclass(frozen=True, slots=True)
class AnswerOutput:
    """Where and how the answers of a chat are shown."""

    output: TextIO
    trace: bool = False
    as_json: bool = False
    notices: ReloadNotices = field(default_factory=ReloadNotices)
    """Reports reloads, but not while the user answers a question."""
    problems: StartupProblems = field(default_factory=StartupProblems)

    def view(self, reader: MessageReader, title: str = "…") -> View | None:
        """Return what shows the next run."""
        return None if self.as_json else view_of_run(title, reader.area)

    async def show(
        self, chat: ChatState, started: AbstractAsyncContextManager[RunStream], reader: MessageReader, view: View | None
    ) -> int:
        """Show a run until it ends or waits for a decision that nobody makes; return its exit code."""

        async def ask(pending: Iterable[Confirmation], count: CountMatches) -> dict[str, Decision]:
            async with reader.suspended():
                with self.notices.held():
                    return await ask_for_decisions(pending, count)

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


SHOWN_TURNS = 10
"""Turns shown when an existing conversation continues."""
HISTORY = ".agentsd/chat_history"
"""File of the messages of earlier sessions, below the project's folder."""


@click.command("chat")
@project_path
@click.option(
    "-a", "--agent", metavar="AGENT", help="Which agent; otherwise the router chooses with the first message."
)
@click.option("-c", "--conversation", metavar="ID", help="Continue this conversation; an unknown id starts one.")
@user_option("The user of the conversation.")
@tenant_option("The tenant of the conversation.")
@MODEL_OPTION
@INPUT_OPTION
@LIMIT_OPTION
@LOCALE_OPTION
@click.option("--trace", is_flag=True, help="Draw the trace of each answer as a waterfall.")
@click.option("--json", "as_json", is_flag=True, help="Print each result as one line of JSON.")
def command(path: str, trace: bool, as_json: bool, **given: Any) -> int:
    """Talk with an agent of the project at PATH (default: this folder), or with one agent file.

    /help lists the commands of a chat. The path of an image, a PDF or audio in a message attaches the file.
    Edits of the project's files take effect between messages. Ctrl-C cancels an answer, Ctrl-D ends the chat; you can
    continue the conversation later. `agentsd conversations list` shows every conversation.
    In a pipe, each line is a message, and an empty line ends the chat.

    Exit codes: 0 ended normally, 3 a message waits for approval, 130 ended with Ctrl-C.
    """
    folder, name = Path(path).parent, Path(path).name
    if given["agent"] is None and not Path(path).exists() and (folder / AGENTS).is_dir():  # `agentsd chat AGENT`
        path, given["agent"] = str(folder), name
    location = locate(path)
    given |= {
        "inputs": parse_inputs(given["inputs"]),
        "limits": parse_pairs(given["limits"]),
        "model": model_of(given["model"]),
    }
    with trace_export(location.settings()), prints_on_stderr() as output:
        return asyncio.run(_chat(location, given, AnswerOutput(output, trace=trace, as_json=as_json)))


async def _chat(location: Location, given: Mapping[str, Any], answers: AnswerOutput) -> int:
    opened = Runtime.open(location.root, store=store_url(location), single_user=True, gate_start=False)
    async with AsyncExitStack() as stack:
        with starting():  # large API documents take seconds
            runtime = await stack.enter_async_context(opened)
        answers.problems.show(runtime.catalog.current.startup_problems)
        with answers.problems.shown_once():
            return await _converse(runtime, location, given, answers)


async def _converse(runtime: Runtime, location: Location, given: Mapping[str, Any], answers: AnswerOutput) -> int:
    agents = runtime.catalog.current.agents
    if not agents:
        raise ConfigError("no valid agent") if runtime.catalog.current.errors else RequestError(NO_AGENTS)
    chat = ChatState(runtime, **{**given, "conversation": given["conversation"] or new_conversation()})
    chat.select(chat.agent or location.agent(runtime.catalog.current))
    chat.reroutes = False  # an agent that the conversation was handed over to continues it
    listed = f"agents: {', '.join(sorted(agents))} · /help shows what you can type"
    click.secho(wrapped_line(listed, hanging=0), dim=True, err=True)
    answers.notices.know(runtime.catalog.current.problems, runtime.catalog.current.number)
    runtime.catalog.subscribe(answers.notices.report)
    reader = _reader(chat, location)
    preparing = asyncio.create_task(_prepare(chat)) if reader.edits_lines else None
    try:
        await _show_earlier_turns(chat, answers)
        return await _talk(chat, reader, answers)
    finally:
        if preparing is not None:
            await preparing
        if (await chat.stored()).turns:
            named = {"conversation": chat.conversation, "user": chat.user, "tenant": chat.tenant}
            words = [f"--{name} {quote(value)}" for name, value in named.items() if value is not None]
            click.secho(f"continue it: agentsd chat {' '.join(words)}", dim=True, err=True)


async def _prepare(chat: ChatState) -> None:
    """Do while the user reads and types what would delay key presses during the first answer."""
    names = model_names(chat.runtime.catalog.current) | ({chat.model} if chat.model else set())
    await asyncio.to_thread(import_sdks, names)
    gc.freeze()  # modules live as long as the process: garbage collections, which stop everything, skip them


def _reader(chat: ChatState, location: Location) -> MessageReader:
    """Return line editing on a terminal, plain lines elsewhere."""
    if not (is_terminal() and draws()):
        return MessageReader()
    prompt = import_module("framework.cli.chat_prompt").ChatPrompt
    completer = import_module("framework.cli.chat_prompt").ChatCompleter(chat)
    reader: MessageReader = prompt(raw_stderr(), location.folder / HISTORY, completer)
    return reader


async def _talk(chat: ChatState, reader: MessageReader, answers: AnswerOutput) -> int:
    """Answer messages until the input ends or a run waits for a decision; return the exit code."""
    commands = ChatCommands(chat)
    async with reader.reading():
        while message := await _read(reader, answers.notices):
            try:
                if is_command(message):
                    if not await commands.execute(message):
                        break
                    continue
                await _ask_for_inputs(chat, reader)
                code = await _answer(chat, message, reader, answers)
            except ConfigError as error:
                if not isinstance(error, AgentBroken) or not is_terminal():
                    raise
                say(str(error), fg="red", err=True)  # the user corrects the file, and repeats the message
                continue
            except AgentsdError as error:
                say(str(error), fg="red", err=True)
                continue
            if code == EXIT_APPROVAL:
                return code
    return 0


async def _read(reader: MessageReader, notices: ReloadNotices) -> str | None:
    """Read the next message; a plain line cannot be restored after a notice."""
    with notices.held() if not reader.edits_lines and is_terminal() else nullcontext():
        return await reader.read()


async def _answer(chat: ChatState, message: str, reader: MessageReader, answers: AnswerOutput) -> int:
    """Run an agent with a message; return the exit code of the run."""
    view = answers.view(reader)
    async with shown_from_now(view):
        # An edit saved before this message applies to it, even if the watcher has not noticed it yet.
        await chat.runtime.reload()
        content = await asyncio.to_thread(attached, message)
        if files := [item.description for item in content if isinstance(item, File)]:
            click.secho(f"(attached: {', '.join(map(visible, files))})", dim=True, err=True)
        return await answers.show(chat, chat.runtime.stream(content, **chat.options(message)), reader, view)


async def _ask_for_inputs(chat: ChatState, reader: MessageReader) -> None:
    """Ask for the required inputs of the agent that answers; raises RequestError if the input ends."""
    agent = await chat.current_agent() if is_terminal() else None
    if agent is None:
        return
    for name, spec in agent.spec.inputs.items():
        while spec.required and name not in chat.inputs:
            if spec.description:
                click.secho(f"{name}: {visible(spec.description)}", dim=True, err=True)
            if (value := await reader.read(f"{name}> ")) is None:
                raise RequestError(f"input {name!r} is missing: add -i {name}=VALUE")
            try:
                given = checked_inputs(agent, {name: InputText(value)})
            except RequestError as error:
                say(str(error), fg="red", err=True)
            else:
                chat.inputs |= given


async def _show_earlier_turns(chat: ChatState, answers: AnswerOutput) -> None:
    """Show the last turns, and ask for the decisions that the conversation waits for."""
    found, store = await chat.stored(), chat.runtime.store
    turns = await runs_of(store, found)
    for line in conversation_lines(found, turns, SHOWN_TURNS) if found.turns else ():
        click.echo(line, err=True)
    if found.open_run is None:
        return
    state = await store.load_run(found.open_run)
    if state.pending and is_terminal():
        count = partial(chat.runtime.preview_widths, state.run_id)
        resumed = chat.runtime.resume_stream(state.run_id, await ask_for_decisions(state.pending, count))
        reader = MessageReader()
        view = answers.view(reader, f"● {state.answering} (resumed)")
        if await answers.show(chat, resumed, reader, view) == EXIT_APPROVAL:
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
