"""The slash commands of a chat, and what a chat knows: its options, its last result, its input, attached files."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shlex import split
from shutil import get_terminal_size
from typing import Any
from urllib.parse import unquote, urlsplit

import click

from framework.cli.location import load_files, new_conversation, parse_inputs, runs_of
from framework.cli.run_view import LiveArea, TerminalArea
from framework.cli.show import MARKS, as_visible_json, counted, requested_waterfall, show_table
from framework.cli.terminal import as_json_text, on_interrupt, raw_stderr, read_in_thread, wrapped_line, write_out
from framework.cli.transcripts import turns_of
from framework.config.agents.compile import Agent
from framework.engine.routing import known_route
from framework.engine.runtime.request import Caller, RunOptions, checked_inputs
from framework.engine.runtime.runtime import Runtime
from framework.engine.runtime.start import ForkPoint, fork_conversation, load_conversation
from framework.engine.tool_call.call import explain_tools
from framework.llm.message_formats import exported
from framework.store.types import Conversation
from framework.types.errors import AgentBroken, RequestError
from framework.types.file import EXTENSIONS, File
from framework.types.messages import Message
from framework.types.state import RunResult
from framework.types.text import did_you_mean, one_line, visible

_WORD = re.compile(r"""(?<!\S)(?:"(?P<double>[^"]+)"|'(?P<single>[^']+)'|(?P<plain>(?:\\.|\S)+))""")
"""A word, with backslashes before spaces as terminals paste them, or a text in quotes."""
_ENDS = ".,;:!?)"
"""Punctuation that may follow a path in a sentence."""


def attached(line: str) -> list[str | File]:
    """Return a line as a message: the files whose paths it contains, then the text with names in place of the paths.

    A path is absolute, relative to the current folder, below `~`, or a `file://` URL; it names an existing file with
    the extension of a supported type. A line that is only paths has no text.

    Raises:
        RequestError: such a file cannot be read, or is not what its name says.
    """
    if path := _path_of(line):
        return [File.from_path(path)]
    files: dict[Path, File] = {}
    pieces: list[str] = []
    end = 0
    for begins, ends, path in _paths_in(line):
        files[path] = files.get(path) or File.from_path(path)
        pieces += (line[end:begins], path.name)
        end = ends
    rest = "".join(pieces[::2]) + line[end:]
    text = "".join((*pieces, line[end:])) if rest.strip() or not files else ""
    return [*files.values(), *([text] if text else [])]


def _paths_in(line: str) -> Iterator[tuple[int, int, Path]]:
    """Yield the paths in a line, with the places where they start and end."""
    for word in _WORD.finditer(line):
        quoted = word["double"] or word["single"]
        text = quoted or re.sub(r"\\(.)", r"\1", word["plain"])
        if path := _path_of(text):
            yield word.start(), word.end(), path
        elif not quoted and (path := _path_of(text.rstrip(_ENDS))):
            yield word.start(), word.end() - (len(text) - len(text.rstrip(_ENDS))), path


def _path_of(text: str) -> Path | None:
    """Return the path of an existing file of a supported type that a text names; None if it names none."""
    if text.startswith("file://"):
        text = unquote(urlsplit(text).path)
    if Path(text).suffix.lower() not in EXTENSIONS:
        return None
    try:
        path = Path(text).expanduser()
        return path if path.is_file() else None
    except (OSError, RuntimeError, ValueError):  # too long, no such user, a null byte
        return None


PROMPT = "you> "


class MessageReader:
    """Reads the messages of a chat: one per line of standard input, until its end or an empty line."""

    edits_lines = False
    """Whether messages can be typed while a run is in progress, and output appears above them."""

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Read messages while the context is open."""
        yield

    @asynccontextmanager
    async def suspended(self) -> AsyncIterator[None]:
        """Leave the terminal to another dialog while the context is open; what was typed is kept."""
        yield

    def on_interrupt(self, act: Callable[[], object]) -> AbstractContextManager[None]:
        """Call `act` on Ctrl-C while the context is open."""
        return on_interrupt(act)

    @property
    def area(self) -> LiveArea:
        """Where runs are drawn, if standard error is a terminal."""
        return TerminalArea(raw_stderr())

    async def read(self, label: str = PROMPT) -> str | None:
        """Return the next message; None or an empty one at the end of the input. Raises click.Abort on Ctrl-C."""
        if sys.stdin.isatty():
            click.secho(f"\n{label}", bold=True, nl=False, err=True)
        line = await read_in_thread(sys.stdin.readline)
        if not line and sys.stdin.isatty():
            click.echo(err=True)  # Ctrl-D leaves the cursor behind the prompt
        return line.strip() or None


@dataclass(slots=True)
class ChatState:
    """A chat in progress. Slash commands change its options."""

    runtime: Runtime
    conversation: str
    user: str | None = None
    """User of the conversation; None: of any."""
    tenant: str | None = None
    agent: str | None = None
    """Agent that answers; None: the router chooses."""
    model: str | None = None
    """Model used instead of the agents' own."""
    locale: str | None = None
    inputs: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    last: RunResult | None = None
    routes: bool = False
    """Whether rules of routing apply to each message, because the user has asked the router to choose again."""
    reroutes: bool = False
    """Whether the router chooses the agent of the next message, also if the conversation was handed over."""

    def options(self, message: str) -> RunOptions:
        """Return the options of a run. Only inputs that its agent declares are passed, if the agent is known."""
        agent = self.runtime.catalog.current.agents.get(self.agent or "")
        known = {name: value for name, value in self.inputs.items() if agent is None or name in agent.spec.inputs}
        return RunOptions(
            agent=self.agent,
            conversation=self.conversation,
            user=self.user,
            tenant=self.tenant,
            model=self.model,
            locale=self.locale,
            inputs=known,
            limits=self.limits,
            reroute=self.reroutes or (self.agent is None and self.routes and self._has_rule(message)),
        )

    def _has_rule(self, message: str) -> bool:
        """Return whether a rule of routing applies to a message."""
        current = self.runtime.catalog.current
        try:
            return known_route(message, current.agents, broken=current.broken) is not None
        except AgentBroken:
            return False

    async def stored(self) -> Conversation:
        """Load the conversation."""
        return await load_conversation(
            self.runtime.store, self.conversation, Caller(self.user, self.tenant, single_user=True)
        )

    async def current_agent(self) -> Agent | None:
        """Return the agent that answers, as far as it is known: the selected one, the last one, or the only one."""
        agents, stored = self.runtime.catalog.current.agents, await self.stored()
        is_moved = not self.reroutes and self.agent in (None, stored.agent)
        names = (stored.handed_to if is_moved else None, self.agent, self.last.agent if self.last else stored.agent)
        found = next((agents[name] for name in names if name is not None and name in agents), None)
        return found or (next(iter(agents.values())) if len(agents) == 1 else None)

    def select(self, name: str | None) -> None:
        """Select the agent of the next messages; raises AgentNotFound or AgentBroken."""
        if name is not None:
            self.runtime.catalog.current.agent(name)
        self.agent, self.routes, self.reroutes = name, False, name is not None

    def route(self) -> None:
        """Let the router choose the agent of the next message, and of each later one that a rule of routing matches."""
        self.agent, self.routes, self.reroutes = None, True, True


COMMANDS_HELP: Mapping[str, str] = {
    "/help": "show this list",
    "/agent [NAME]": "show the agents, or select one; auto lets the router choose again",
    "/model [NAME]": "show the model, or use another one; default uses the agents' own again",
    "/inputs [NAME=VALUE …]": "show the inputs of the agent, or set some",
    "/plan": "show the plan of the last answer, with the status of each step",
    "/tools": "show which tools the agent has, and which need approval",
    "/trace": "draw the last run as a waterfall",
    "/cost": "show what this conversation has used",
    "/undo": "take back the last message and its answer; files that tools wrote stay",
    "/new": "start a new conversation",
    "/save [FILE]": "write the conversation to a file: Markdown, or JSON if it ends with .json",
    "/quit": "leave; also exit, quit or Ctrl-D",
}
NAMES: Sequence[str] = tuple(usage.split()[0] for usage in COMMANDS_HELP)
KEYS_HELP = "Alt+Enter or \\ and Enter: new line · Tab: complete · ↑: earlier messages · Ctrl-C: cancel the answer"
LEAVING = ("exit", "quit", "/exit")
"""Other words that end a chat."""
AUTO, DEFAULT = "auto", "default"
UNDONE_CHARS = 60


def is_command(message: str) -> bool:
    """Return whether a message is a slash command, whose first word is not a path, or leaves the chat."""
    word = message.split(maxsplit=1)[0] if message.strip() else ""
    return message.strip().lower() in LEAVING or (
        word.startswith("/") and "/" not in word[1:] and "." not in word and len(word) > 1
    )


class ChatCommands:
    """Executes slash commands. Their output goes to standard error, like all progress of a chat."""

    def __init__(self, chat: ChatState) -> None:
        self._chat = chat
        self._actions: Mapping[str, Callable[[str], Awaitable[None]]] = {
            "/help": self._help,
            "/agent": self._agent,
            "/model": self._model,
            "/inputs": self._inputs,
            "/plan": self._plan,
            "/tools": self._tools,
            "/trace": self._trace,
            "/cost": self._cost,
            "/undo": self._undo,
            "/new": self._new,
            "/save": self._save,
        }

    async def execute(self, command: str) -> bool:
        """Execute a command; return whether the chat continues. Raises RequestError for an invalid one."""
        name, _, argument = command.partition(" ")
        if name == "/quit" or name.lower() in LEAVING:
            return False
        if name not in self._actions:
            raise RequestError(f"there is no command {name}{did_you_mean(name, NAMES)}")
        await self._actions[name](argument.strip())
        return True

    async def _help(self, _: str) -> None:
        width = max(map(len, COMMANDS_HELP))
        for usage, help_text in COMMANDS_HELP.items():
            click.echo(wrapped_line(f"  {usage:<{width}}  {help_text}", hanging=width + 4), err=True)
        click.secho(wrapped_line(KEYS_HELP, hanging=0), dim=True, err=True)

    async def _agent(self, name: str) -> None:
        if name:
            if name == AUTO:
                self._chat.route()
                _note("the router chooses the agent of the next message, and of later ones that a rule matches")
            else:
                self._chat.select(name)
                _note(f"{name} answers from now on")
            return
        current = await self._chat.current_agent()
        for agent in sorted(self._chat.runtime.catalog.current.agents.values(), key=lambda one: one.name):
            mark = "●" if current is not None and agent.name == current.name else " "
            click.echo(
                f"{mark} {agent.name}  {visible(one_line(agent.spec.description, get_terminal_size().columns))}",
                err=True,
            )

    async def _model(self, name: str) -> None:
        if name:
            self._chat.model = None if name == DEFAULT else name
        agent = await self._chat.current_agent()
        own = (agent.spec.model if agent else None) or self._chat.runtime.settings.model
        _note(f"model: {self._chat.model or f'{own} (the agent’s own)'}")

    async def _inputs(self, pairs: str) -> None:
        agent = await self._known_agent()
        if pairs:
            try:
                given = parse_inputs(tuple(split(pairs)))
            except (click.UsageError, ValueError) as error:  # of an open quotation mark
                raise RequestError(str(error)) from None
            self._chat.inputs |= checked_inputs(agent, given)
        if not agent.spec.inputs:
            _note(f"{agent.name} has no inputs")
        for name, spec in agent.spec.inputs.items():
            value = self._chat.inputs.get(name, spec.default)
            shown = as_visible_json(value) if value is not None else "missing" if spec.required else "not set"
            about = f"  {visible(spec.description)}" if spec.description else ""
            click.echo(f"  {name} = {shown}{click.style(about, dim=True)}", err=True)

    async def _plan(self, _: str) -> None:
        plan = self._chat.last.plan if self._chat.last else None
        if plan is None:
            _note("the last answer had no plan")
            return
        click.echo(visible(plan.goal), err=True)
        for step in plan.steps:
            click.echo(f"  {MARKS[step.status]} {step.id}  {visible(step.description)}", err=True)

    async def _tools(self, _: str) -> None:
        agent = await self._known_agent()
        words = {"allow": "allowed", "ask": "asks", "deny": "denied"}
        found = explain_tools(agent)
        rows = [(one.tool.name, words[one.verdict.kind], str(one.verdict)) for one in found if one.is_sent]
        show_table(("tool", "decision", "because"), rows)
        if deferred := agent.toolset.deferred:
            _note(f"and {counted(len(deferred), 'tool')} that the model searches for: agentsd explain {agent.name}")
        if not rows:
            _note(f"{agent.name} has no tools")

    async def _trace(self, _: str) -> None:
        if self._chat.last is None:
            _note("there is no run yet")
            return
        for line in requested_waterfall(await self._chat.runtime.store.spans(self._chat.last.run_id), sys.stderr):
            click.echo(line, err=True)

    async def _cost(self, _: str) -> None:
        runs = await runs_of(self._chat.runtime.store, await self._chat.stored())
        cost = sum(info.cost_usd or 0.0 for info in runs)
        unknown = sum(info.cost_usd is None for info in runs)
        priced = f", ${cost:.4f}" if cost or not unknown else ""
        priced += f", cost of {counted(unknown, 'run')} unknown" if unknown else ""
        if (last := self._chat.last) is not None:
            _note(f"last answer: {last.usage.total_tokens:,} tokens in {last.elapsed_ms / 1000:.1f} s")
        _note(f"this conversation: {counted(len(runs), 'run')}, {sum(info.tokens for info in runs):,} tokens{priced}")

    async def _undo(self, _: str) -> None:
        """Continue in a copy of the conversation without its last turn; the original stays stored."""
        found = await self._chat.stored()
        if found.open_run is not None:
            raise RequestError(f"the last run is not finished; decide it first: agentsd runs decide {found.open_run}")
        turns = list(turns_of(found.messages))
        if not turns:
            raise RequestError("there is no message to take back")
        copy, kept = new_conversation(), len(found.messages) - len(turns[-1])
        while kept and found.messages[kept - 1].role == "user":  # of an imported file: it was never answered
            kept -= 1
        if kept:
            await fork_conversation(self._chat.runtime.store, found, ForkPoint(messages=kept), copy)
        self._chat.conversation = copy
        text = one_line(visible(turns[-1][0].content), UNDONE_CHARS)
        _note(f"taken back: {text} (now conversation {self._chat.conversation}; {found.id} keeps it)")

    async def _new(self, _: str) -> None:
        self._chat.conversation, self._chat.last = new_conversation(), None
        _note(f"new conversation {self._chat.conversation}")

    async def _save(self, path: str) -> None:
        found = await self._chat.stored()
        if not found.messages:
            raise RequestError("there is nothing to save: the conversation has no answer yet")
        path = path or f"chat-{found.id}.md"
        if path.endswith(".json"):
            files = await load_files(self._chat.runtime.store, found.messages)
            write_out(as_json_text(exported(found.messages, "messages", files=files)), path)
        else:
            write_out("\n".join(_as_markdown(found.messages)), path)

    async def _known_agent(self) -> Agent:
        if (agent := await self._chat.current_agent()) is None:
            raise RequestError("the agent is not known before the first message: select one with /agent NAME")
        return agent


def _as_markdown(messages: Sequence[Message]) -> Iterator[str]:
    """Yield the lines of a document with the texts of users and agents."""
    for message in messages:
        if message.role in ("user", "assistant") and message.content.strip():
            yield f"## {'You' if message.role == 'user' else 'Answer'}\n\n{message.content.strip()}\n"


def _note(text: str) -> None:
    click.secho(f"({visible(text)})", dim=True, err=True)
