"""Input of a chat on a terminal: line editing, history, pastes and completions."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TextIO

import click
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.data_structures import Size
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output.vt100 import Vt100_Output

from framework.cli.chat_commands import AUTO, COMMANDS_HELP, DEFAULT, PROMPT, ChatState, MessageReader
from framework.cli.run_view import LiveArea, prints_above, rows_of, terminal_size, widths_of_lines
from framework.cli.terminal import escape_controls
from framework.types.text import fix_surrogates

SHORT_PASTE_CHARS = 1000
SHORT_PASTE_LINES = 8
"""A larger paste is replaced by a placeholder: editors and terminals become slow with long lines."""
_PLACEHOLDER = re.compile(r"\[paste \d+: [\d,]+ characters, [\d,]+ lines?\]")


class Pastes:
    """The long pastes of a chat."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def add(self, text: str) -> str:
        """Return what to insert for a paste: its text, or a placeholder if it is long."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        lines = text.count("\n") + 1
        if len(text) <= SHORT_PASTE_CHARS and lines <= SHORT_PASTE_LINES:
            return text
        counted = f"{len(text):,} characters, {lines:,} line{'' if lines == 1 else 's'}"
        placeholder = f"[paste {len(self._texts) + 1}: {counted}]"
        self._texts[placeholder] = text
        return placeholder

    def expanded(self, message: str) -> str:
        """Return a message with the pastes in place of their placeholders."""
        return _PLACEHOLDER.sub(lambda found: self._texts.get(found[0], found[0]), message)


MAX_HISTORY_BYTES = 1_000_000
"""Size from which the older half of the history is dropped."""
MAX_ENTRY_CHARS = 10_000
"""Longer messages are not in the history."""
_SUSPENDED = "\0"
"""Result of an input that is interrupted; it continues later with its text."""


class ChatHistory(FileHistory):
    """Messages of earlier sessions, in a file that only its owner can read."""

    def __init__(self, path: Path) -> None:
        """Open or create the file."""
        path.parent.mkdir(exist_ok=True)
        os.close(os.open(path, os.O_CREAT, 0o600))
        if path.stat().st_size > MAX_HISTORY_BYTES:
            path.write_bytes(path.read_bytes()[-MAX_HISTORY_BYTES // 2 :].partition(b"\n\n")[2])
        super().__init__(path)

    def store_string(self, string: str) -> None:
        """Append a message, unless it is very long or the file cannot be written."""
        if len(string) <= MAX_ENTRY_CHARS:
            with suppress(OSError):
                super().store_string(fix_surrogates(string))


class _Output(Vt100_Output):
    """A terminal on which lines are written above the input, which is drawn again each time."""

    def __init__(self, stream: TextIO, size: Callable[[], Size], wrapped_rows: Callable[[], int]) -> None:
        """Set a function that returns how many rows lines take in addition, since the terminal became narrower."""
        super().__init__(stream, size, term=os.environ.get("TERM"), enable_cpr=False)
        self._wrapped_rows = wrapped_rows

    def cursor_up(self, amount: int) -> None:
        """Move up; after a change of the width, to the start of the lines that the terminal has wrapped."""
        super().cursor_up(amount + self._wrapped_rows())

    def disable_bracketed_paste(self) -> None:
        """Do nothing: a paste in this moment would be read line by line."""

    def leave(self) -> None:
        """Disable it: another dialog reads from the terminal."""
        super().disable_bracketed_paste()
        self.flush()


class ChatPrompt(MessageReader):
    """Reads messages while the output of a run appears above. It is the `LiveArea` of that run."""

    edits_lines = True

    def __init__(self, stream: TextIO, history: Path, completer: Completer) -> None:
        """Prepare the input; `reading` starts it."""
        self._stream, self._pastes = stream, Pastes()
        self._above: StyleAndTextTuples = []
        """Lines of the run, above the input."""
        self._widths: list[int] = []
        self._columns = self.size.columns
        """Width of the terminal when they were drawn."""
        self._label, self._unfinished = PROMPT, ""
        self._messages: asyncio.Queue[str | BaseException] = asyncio.Queue()
        self._interrupt: Callable[[], object] | None = None
        self._editing: asyncio.Task[None] | None = None
        self._redirected = ExitStack()
        size = lambda: Size(rows=self.size.lines, columns=self.size.columns)  # noqa: E731 - the output requires a function
        self._output = _Output(stream, size, self._wrapped_rows)
        self._session: PromptSession[str] = PromptSession(
            message=self._message,
            multiline=True,
            prompt_continuation=lambda width, _number, _wrapped: " " * width,
            history=ChatHistory(history),
            completer=completer,
            complete_while_typing=Condition(self._is_command),
            key_bindings=self._keys(),
            output=self._output,
            erase_when_done=True,
            reserve_space_for_menu=6,
        )

    # --- the area of a run

    @property
    def area(self) -> LiveArea:
        return self

    @property
    def size(self) -> os.terminal_size:
        """Size of the terminal."""
        return terminal_size(self._stream)

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines between the output and the input."""
        if len(lines) < len(self._widths):
            self._erase()  # or empty lines would remain below the input
        self._above = _fragments("".join(f"{line}\n" for line in lines))
        self._widths = widths_of_lines(lines)
        self._session.app.invalidate()

    def write(self, text: str) -> None:
        """Write complete lines that stay, above the lines and the input."""
        self._erase()
        self._output.write_raw(text)
        self._output.flush()
        self._session.app.invalidate()

    def _wrapped_rows(self) -> int:
        before, self._columns = self._columns, self.size.columns
        return rows_of(self._widths, self._columns) - len(self._widths) if self._columns < before else 0

    def _erase(self) -> None:
        if self._session.app.is_running:
            self._session.app.renderer.erase()

    # --- messages

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        self._resume()
        try:
            yield
        finally:
            await self._suspend()
            asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)

    async def read(self, label: str = PROMPT) -> str | None:
        """Return the next message, and show it."""
        self._label = label
        self._session.app.invalidate()
        found = await self._messages.get()
        self._label = PROMPT
        if isinstance(found, EOFError):
            return None
        if isinstance(found, BaseException):
            raise click.Abort from None
        first, *others = escape_controls(found).split("\n")
        indent = "".join(f"\n{' ' * len(label)}{line}" for line in others)
        click.echo(f"\n{click.style(label, bold=True)}{first}{indent}\n", err=True)
        return fix_surrogates(self._pastes.expanded(found)).strip()

    @property
    def waiting(self) -> int:
        """Number of messages that were entered and not read yet."""
        return self._messages.qsize()

    @contextmanager
    def on_interrupt(self, act: Callable[[], object]) -> Iterator[None]:
        self._interrupt = act
        try:
            yield
        finally:
            self._interrupt = None

    @asynccontextmanager
    async def suspended(self) -> AsyncIterator[None]:
        await self._suspend()
        try:
            yield
        finally:
            self._resume()

    def _resume(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._interrupted)
        self._redirected.enter_context(prints_above(self))
        self._editing = asyncio.create_task(self._edit())

    async def _suspend(self) -> None:
        self._redirected.close()
        if self._editing is not None and not self._editing.done():
            if self._session.app.is_running and not self._session.app.is_done:
                self._unfinished = self._session.default_buffer.text
                self._session.app.exit(result=_SUSPENDED)
            else:
                self._editing.cancel()
            await asyncio.wait([self._editing])
        self._output.leave()

    async def _edit(self) -> None:
        """Put messages into the queue until the input ends."""
        while True:
            try:
                text = await self._session.prompt_async(default=self._unfinished, handle_sigint=False)
            except (EOFError, KeyboardInterrupt) as end:
                self._messages.put_nowait(end)
                return
            if text == _SUSPENDED:
                return
            self._unfinished = ""
            if text.strip():
                self._messages.put_nowait(text)

    def _interrupted(self) -> None:
        """Cancel the run, clear the input, or end the chat: the first of these that applies."""
        app = self._session.app
        if self._interrupt is not None:
            self._interrupt()
        elif self._session.default_buffer.text:
            self._session.default_buffer.reset()
            app.invalidate()
        elif app.is_running and not app.is_done:
            app.exit(exception=KeyboardInterrupt)

    def _is_command(self) -> bool:
        text = self._session.default_buffer.text
        return text.startswith("/") and "\n" not in text

    def _message(self) -> StyleAndTextTuples:
        waiting = f"({self.waiting} waiting)\n" if self.waiting else ""
        return [*self._above, ("", "\n"), ("fg:ansibrightblack", waiting), ("bold", self._label)]

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        def _submit(event: KeyPressEvent) -> None:
            """Enter the message; after a backslash, start a new line."""
            buffer = event.current_buffer
            if buffer.document.char_before_cursor == "\\":
                buffer.delete_before_cursor()
                buffer.insert_text("\n")
            else:
                buffer.validate_and_handle()

        @keys.add("escape", "enter")
        def _new_line(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c")
        def _cancel(event: KeyPressEvent) -> None:  # noqa: ARG001 - as key bindings are called
            self._interrupted()

        @keys.add("c-d", filter=Condition(lambda: self._interrupt is not None))
        def _stay(event: KeyPressEvent) -> None:
            """Delete the next character, and nothing else: the run is in progress."""
            event.current_buffer.delete()

        @keys.add("<bracketed-paste>")
        def _paste(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text(self._pastes.add(event.data))

        return keys


def _fragments(text: str) -> StyleAndTextTuples:
    """Parse styles into one fragment per style: drawing one per character takes three times as long."""
    parsed = groupby(to_formatted_text(ANSI(text)), key=itemgetter(0))
    return [(style, "".join(fragment[1] for fragment in group)) for style, group in parsed]


MIN_PATH_CHARS = 1


class ChatCompleter(Completer):
    """Completes the word before the cursor."""

    def __init__(self, chat: ChatState) -> None:
        self._chat, self._paths = chat, PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Yield what the word before the cursor may become."""
        text = document.text_before_cursor
        word = text.rpartition(" ")[2].rpartition("\n")[2]
        command, space, _ = text.partition(" ")
        if text.startswith("/") and not space and "/" not in text[1:]:
            for usage, help_text in COMMANDS_HELP.items():
                name = usage.split()[0]
                if name.startswith(text):
                    yield Completion(name, -len(text), display_meta=help_text)
        elif (names := self._names(command)) is not None:
            yield from (Completion(name, -len(word)) for name in names if name.startswith(word))
        elif len(word) >= MIN_PATH_CHARS:
            yield from self._paths.get_completions(Document(word), complete_event)

    def _names(self, command: str) -> Sequence[str] | None:
        """Return the possible arguments of a command; None if it accepts others."""
        agents = self._chat.runtime.catalog.current.agents
        match command:
            case "/agent":
                return [*sorted(agents), AUTO]
            case "/model":
                return [*sorted({agent.spec.model for agent in agents.values() if agent.spec.model}), DEFAULT]
            case "/inputs":
                selected = agents.get(self._chat.agent or "")
                return [f"{name}=" for name in (selected.spec.inputs if selected else ())]
        return None
