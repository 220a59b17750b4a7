"""What a chat knows: its options, its input, the files that the user names."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import click

from framework.cli.live_area import LiveArea, TerminalArea
from framework.cli.terminal import on_interrupt, raw_stderr, read_in_thread
from framework.config.agents.compile import Agent
from framework.engine.routing.rules import known_route
from framework.engine.runtime.conversation import load_conversation
from framework.engine.runtime.request import Caller, RunOptions
from framework.engine.runtime.runtime import Runtime
from framework.store.types import Conversation
from framework.types.errors import AgentBroken
from framework.types.file import EXTENSIONS, File
from framework.types.state import RunResult

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
    """Yield the paths in a line, with the places where they begin and end."""
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


class MessageReader(Protocol):
    """Reads the messages of a chat."""

    def reading(self) -> AbstractAsyncContextManager[None]:
        """Read messages while the context is open."""
        ...

    async def read(self, label: str = PROMPT) -> str | None:
        """Return the next message; None or an empty one at the end of the input. Raises click.Abort on Ctrl-C."""
        ...

    def suspended(self) -> AbstractAsyncContextManager[None]:
        """Leave the terminal to another dialog while the context is open."""
        ...

    def on_interrupt(self, act: Callable[[], object]) -> AbstractContextManager[None]:
        """Call `act` on Ctrl-C while the context is open."""
        ...

    @property
    def area(self) -> LiveArea:
        """Where runs are drawn, if standard error is a terminal."""
        ...


class LineReader:
    """Reads one message per line of standard input, until its end or an empty line."""

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        yield

    @asynccontextmanager
    async def suspended(self) -> AsyncIterator[None]:
        yield

    def on_interrupt(self, act: Callable[[], object]) -> AbstractContextManager[None]:
        return on_interrupt(act)

    @property
    def area(self) -> LiveArea:
        return TerminalArea(raw_stderr())

    async def read(self, label: str = PROMPT) -> str | None:
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
    """Id of the conversation."""
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
    """Result of the last message."""
    routes: bool = False
    """Whether rules of routing apply to each message, because the user has asked the router to choose again."""
    reroutes: bool = False
    """Whether the router chooses the agent of the next message, whatever the rules say."""

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
            reroute=self.agent is None and (self.reroutes or (self.routes and self._has_rule(message))),
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
        agents = self.runtime.catalog.current.agents
        names = (self.agent, self.last.agent if self.last else (await self.stored()).agent)
        found = next((agents[name] for name in names if name is not None and name in agents), None)
        return found or (next(iter(agents.values())) if len(agents) == 1 else None)

    def select(self, name: str | None) -> None:
        """Select the agent of the next messages; raises AgentNotFound or AgentBroken."""
        if name is not None:
            self.runtime.catalog.current.agent(name)
        self.agent, self.routes, self.reroutes = name, False, False

    def route(self) -> None:
        """Let the router choose the agent of the next message, and of each later one that a rule of routing matches."""
        self.agent, self.routes, self.reroutes = None, True, True
