"""Shows a run on a terminal: its tree, the text as it arrives, and a status line below output that stays."""

from __future__ import annotations

import logging
import os
import re
import sys
from asyncio import TimerHandle, get_running_loop
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO, TextIOBase
from math import inf
from threading import get_ident
from time import monotonic
from typing import ClassVar, Protocol, TextIO

import click
from markdown_it.token import Token
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown
from rich.text import Text
from rich.theme import Theme
from rich.tree import Tree

from framework.cli.show import ANSWERED, MARKS, arguments_text, first_line, joined_thought, line
from framework.cli.terminal import escape_controls, escape_unstyled
from framework.types import events
from framework.types.events import ContentReceived, Event, StreamEnd, Thought, ToolRequested, Warned
from framework.types.text import visible

_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
DEFAULT_SIZE = os.terminal_size((80, 24))
LEAST_COLUMNS = 20


class LiveArea(Protocol):
    """Lines that change, below output that stays. Texts contain styles, and no other control sequences."""

    @property
    def size(self) -> os.terminal_size:
        """Size of the terminal."""
        ...

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines instead of those before. None may be wider than the terminal."""
        ...

    def write(self, text: str) -> None:
        """Write complete lines that stay, above the others."""
        ...


def terminal_size(stream: TextIO) -> os.terminal_size:
    """Return the size of the terminal of a stream. COLUMNS has precedence, as for every program."""
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        columns, rows = 0, 0
    given = os.environ.get("COLUMNS", "")
    columns = (int(given) if given.isdecimal() else 0) or columns or DEFAULT_SIZE.columns
    return os.terminal_size((max(columns, LEAST_COLUMNS), rows or DEFAULT_SIZE.lines))


def widths_of_lines(lines: Sequence[str]) -> list[int]:
    """Return the widths of lines with styles, in columns."""
    return [cell_len(click.unstyle(line)) for line in lines]


def rows_of(widths: Sequence[int], columns: int) -> int:
    """Return how many rows lines take: a terminal that becomes narrower wraps the lines that it shows."""
    return sum(max(1, -(-width // columns)) for width in widths)


class TerminalArea:
    """A live area of a terminal on which nobody is asked for input."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._widths: list[int] = []
        """Widths of the lines that are shown."""
        self._drawn: Sequence[str] = ()

    @property
    def size(self) -> os.terminal_size:
        return terminal_size(self._stream)

    def draw(self, lines: Sequence[str]) -> None:
        self._replace("", lines)

    def write(self, text: str) -> None:
        self._replace(text, self._drawn)

    def _replace(self, text: str, lines: Sequence[str]) -> None:
        """Erase the lines, write text and the new lines, in one piece so that nothing flickers."""
        rows = rows_of(self._widths, self.size.columns)
        erase = "\r\x1b[2K" + "\x1b[1A\x1b[2K" * (rows - 1) if rows else ""
        cursor = _SHOW_CURSOR if self._widths and not lines else _HIDE_CURSOR if lines and not self._widths else ""
        self._stream.write(erase + text + "\n".join(lines) + cursor)
        self._stream.flush()
        self._drawn, self._widths = lines, widths_of_lines(lines)


class AreaStream(TextIOBase):
    """A standard stream while a live area is shown: writes complete lines above it, escaped as on a `Screen`."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, area: LiveArea) -> None:
        self._area, self._loop, self._thread = area, get_running_loop(), get_ident()
        self._line = ""

    def isatty(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Write text; an incomplete line is held until it is complete."""
        complete, newline, self._line = (self._line + text).rpartition("\n")
        if newline:
            self._pass_on(escape_unstyled(complete + newline))
        return len(text)

    def finish(self) -> None:
        """Write the incomplete line, if there is one."""
        if self._line:
            self.write("\n")

    def _pass_on(self, text: str) -> None:
        if get_ident() == self._thread:
            self._area.write(text)
        else:  # a tool in a thread, or the log
            self._loop.call_soon_threadsafe(self._area.write, text)


@contextmanager
def prints_above(area: LiveArea) -> Iterator[None]:
    """Redirect prints and the log to the output above an area while the context is open."""
    stream, covered = AreaStream(area), sys.stderr
    handlers = [
        handler
        for handler in logging.getLogger().handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream is covered
    ]
    with redirect_stdout(stream), redirect_stderr(stream):
        for handler in handlers:
            handler.setStream(stream)
        try:
            yield
        finally:
            stream.finish()
            for handler in handlers:
                handler.setStream(covered)


MAX_BLOCK_CHARS = 3000
"""A longer block is split, so that rendering one never delays key presses."""
MAX_CODE_LINES = 12
"""Lines of an open code block after which they become a block of their own."""
_FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<marks>`{3,}|~{3,})")
"""The start of a line that opens or closes a code block."""
_CODE_THEME = "ansi_dark"
"""Colours of the terminal's own palette, without a background."""
THEME = Theme({"markdown.code": "cyan"})
"""Styles of a console for Markdown. Rich's own style of code has a black background."""
_LINE_END_SPACES = re.compile(r"(?<! ) +((?:\x1b\[[0-9;]*m)*)$", re.MULTILINE)


class MarkdownBlocks:
    """Splits a text that arrives in pieces: `feed` returns the blocks that are complete, `rest` is the open one.

    A block ends at an empty line that is followed by a line without indentation, or at its maximum size. Text that
    starts with `{` is JSON: it is one code block.
    """

    def __init__(self) -> None:
        self._block: list[str] = []
        """Complete lines of the open block."""
        self._line = ""
        """The incomplete line behind them."""
        self._chars = 0
        self._fence: re.Match[str] | None = None
        """The line that opened the code block in which the text is."""
        self._is_json: bool | None = None
        """None before the first character."""

    @property
    def rest(self) -> str:
        """The open block."""
        return "\n".join((*self._block, self._line))

    @property
    def is_code(self) -> bool:
        """Whether the open block is code."""
        return self._fence is not None

    def feed(self, text: str) -> list[str]:
        """Add a piece; return the blocks that it completes, in order."""
        if self._is_json is None and (text := text.lstrip()):
            self._is_json = text.startswith("{")
            if self._is_json:
                self._fence = _FENCE.match("```json")
                self._block = ["```json"]
        *lines, last = (self._line + text).split("\n")
        blocks: list[str] = []
        for complete in lines:
            blocks += [*self._cut(complete), *self._add(self._line)]
        blocks += self._cut(last)
        if self._line and self._fence is None and self._block and self._starts_block(self._line, None):
            blocks.append(self._take())  # before the line is complete: a paragraph is one long line
        return blocks

    def finish(self) -> list[str]:
        """Return the open block as the last one, if there is one."""
        self._block.append(self._line)
        self._line = ""
        block = "\n".join(self._block)
        self._block, self._chars, self._fence = [], 0, None
        return [block] if block.strip() else []

    def _cut(self, line: str) -> Iterator[str]:
        """Hold a line as the incomplete one; yield blocks of its start while it is too long."""
        while len(line) > MAX_BLOCK_CHARS:
            head = line[:MAX_BLOCK_CHARS].rpartition(" ")[0] or line[:MAX_BLOCK_CHARS]
            self._block.append(head)
            yield self._take()
            line = line[len(head) :]
        self._line = line

    def _add(self, line: str) -> Iterator[str]:
        """Add a complete line; yield the blocks that it completes."""
        fence = None if self._is_json else _FENCE.match(line)
        if self._fence is None and self._block and self._starts_block(line, fence):
            yield self._take()
        if line.strip() or self._block:
            self._block.append(line)
            self._chars += len(line)
        if self._fence is None:
            self._fence = fence
        elif fence and fence["marks"].startswith(self._fence["marks"]) and not line[fence.end("marks") :].strip():
            is_nested, self._fence = bool(self._fence["indent"]), None
            if not is_nested:
                yield self._take()
        if self._chars > MAX_BLOCK_CHARS or (self._fence and len(self._block) > MAX_CODE_LINES):
            yield self._take()

    def _starts_block(self, line: str, fence: re.Match[str] | None) -> bool:
        if not line.strip() or line[0].isspace():
            return False
        return fence is not None or not self._block[-1].strip()

    def _take(self) -> str:
        """End the block. A code block that is still open continues in the next one."""
        block, self._block, self._chars = self._block, [], 0
        if self._fence is not None:
            block.append(self._fence["indent"] + self._fence["marks"])
            self._block = [self._fence.string.strip()]
            self._fence = _FENCE.match(self._block[0])
        return "\n".join(block)


class _Heading(Heading):
    """A heading at the left, where the text starts."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Markdown(Markdown):
    elements: ClassVar = {**Markdown.elements, "heading_open": _Heading}


def rendered(console: Console, block: str) -> str:
    """Render a block of Markdown as lines with styles, without control characters of the text itself."""
    markdown = _Markdown(block, code_theme=_CODE_THEME, inline_code_theme=_CODE_THEME, hyperlinks=False)
    for token in _with_children(markdown.parsed):  # after parsing, because Markdown has escapes of its own (`&#27;`)
        token.content = escape_controls(token.content)
        token.info = escape_controls(token.info)
        token.attrs = {name: escape_controls(str(value)) for name, value in token.attrs.items()}
    with console.capture() as captured:
        console.print(markdown)
    lines = without_padding(captured.get()).split("\n")
    filled = [number for number, line in enumerate(lines) if click.unstyle(line)]
    return "\n".join(lines[filled[0] : filled[-1] + 1]) if filled else ""


def without_padding(text: str) -> str:
    """Remove spaces at the ends of lines: they would be copied, and wrap when the terminal becomes narrower."""
    return _LINE_END_SPACES.sub(r"\1", text)


def _with_children(tokens: Iterable[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _with_children(token.children or ())


SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
SPIN_SECONDS = 0.1
CHARS_PER_TOKEN = 4
"""Estimate for text that has arrived but is not counted by the provider yet."""
_SEPARATOR = " · "


class RunStatus:
    """What a run is doing, and what it has used."""

    def __init__(self) -> None:
        self._begun, self._spun_at = monotonic(), 0.0
        self._agent, self._step = "", "starting"
        self._calls: dict[tuple[str, ...], str] = {}
        """Calls in progress, as texts."""
        self._tokens = 0
        self._cost_usd: float | None = 0.0
        self._uncounted_chars = 0

    def note(self, event: Event) -> None:
        """Update the present step."""
        match event:
            case events.Routed(agent=agent):
                self._agent, self._step = agent, "waiting for the model"
            case events.HandedOff(agent=agent):
                self._agent = agent
            case events.Thought():
                self._step = "thinking"
                self._uncounted_chars += 0 if event.seq else len(event.text)
            case events.ContentReceived():
                self._step = "writing"
                self._uncounted_chars += 0 if event.seq else len(event.text)
            case events.ToolRequested():
                progress = f" {event.progress:.0%}" if event.progress is not None else ""
                self._calls[*event.path, event.id] = f"{event.tool}{progress}"
            case events.ToolFinished():
                self._calls.pop((*event.path, event.id), None)
                self._step = "waiting for the model"
            case events.PlanStepChanged(status="running"):
                self._step = f"step {event.id}"

    def count(self, tokens: int, cost_usd: float | None) -> None:
        """Set what the run has used so far."""
        if tokens != self._tokens:
            self._uncounted_chars = 0
        self._tokens, self._cost_usd = tokens, cost_usd

    def is_due(self) -> bool:
        """Return whether the spinner moves on."""
        return monotonic() - self._spun_at >= SPIN_SECONDS

    def line(self, columns: int) -> str:
        """Return the line, at most this wide. The step is shortened first, then details are left out."""
        self._spun_at = now = monotonic()
        elapsed = now - self._begun
        spinner = SPINNER[int(elapsed / SPIN_SECONDS) % len(SPINNER)]
        details = [_duration(elapsed), *self._used(), "Ctrl-C cancels"]
        *others, last = self._calls.values() or [self._step]
        step = visible(f"{last} (+{len(others)})" if others else last)
        head = f"{spinner} {visible(self._agent)}{_SEPARATOR}{step}" if self._agent else f"{spinner} {step}"
        while len(details) > 1 and cell_len(_SEPARATOR.join((head, *details))) > columns:
            details.pop()
        tail = _SEPARATOR + _SEPARATOR.join(details)
        if cell_len(head) + cell_len(tail) > columns:
            head = set_cell_size(head, max(columns - cell_len(tail) - 1, 1)).rstrip() + "…"
        return click.style(head, fg="cyan") + click.style(tail, dim=True)

    def _used(self) -> list[str]:
        estimated = self._uncounted_chars // CHARS_PER_TOKEN
        tokens = [f"{'~' if estimated else ''}{self._tokens + estimated:,} tokens"] if self._tokens + estimated else []
        if self._cost_usd is None:
            return [*tokens, "cost unknown"]
        return [*tokens, *([f"${self._cost_usd:.4f}"] if self._cost_usd else [])]


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


_STYLES: Mapping[str, str] = {
    "success": "green",
    "done": "green",
    "error": "red",
    "failed": "red",
    "denied": "red",
    "cancelled": "red",
    "running": "yellow",
    "pending": "yellow",
    "skipped": "dim",
    "open": "dim",
}

PLAN = "plan"
"""Key of a plan's node below the path of its run."""
REMOVED = "–"
_PLANNED = re.compile(r"plan-\d+-(.+?)(?:~\d+)?")
"""Id of a call that a plan step makes."""
_REVISED = re.compile(r"~\d+$")
"""Suffix of the sub-run of a step from a later revision."""


class RunTree:
    """A tree that grows with the run."""

    def __init__(self, title: str | None = None) -> None:
        """Set the title, which is shown until the agent is known; None for a tree below text that is shown already."""
        self._start(title)

    @property
    def shown(self) -> Tree | None:
        """What to draw; None while there is nothing."""
        return self._root if self._root.children or str(self._root.label) else None

    @property
    def is_settled(self) -> bool:
        """Whether no call and no plan step is open, so that a new tree may continue this one."""
        return not self._open

    def start_next(self) -> None:
        """Start a new tree below this one, which stays as it is."""
        self._start(None)

    def add(self, event: Event) -> bool:
        """Add an event; return whether the tree shows it."""
        match event:
            case events.Routed(path=()):
                self._root.hide_root = False
                self._root.label = Text(visible(line(event) or ""), style="bold")
            case events.PlanProposed():
                self._plan(event)
            case events.PlanStepChanged(id=step, status=status, description=description, result=result):
                node = self._nodes.get((*event.path, f"step-{step}")) or self._step_node(event.path, step)
                self._note_step((*event.path, f"step-{step}"), status)
                node.label = _step(status, step, description)
                if status == "skipped" and result:
                    node.label.append(f"  {first_line(result)}", style="dim")
            case events.ToolRequested() | events.ToolStarted():
                self._call(event)
            case events.ToolFinished(id=call, tool=tool, status=status, result=result, elapsed_ms=elapsed):
                node = self._nodes.get((*event.path, call)) or self._add(event.path, call)
                self._open.discard((*event.path, call))
                label = self._calls.pop((*event.path, call), "") or f"{MARKS[status]} {visible(tool)}"
                node.label = _answered(label) if event.decision else _finished(label, status, elapsed)
                node.add(Text(first_line(result), style="dim"))
            case events.Thought():
                self._think(event)
            case events.Warned() | events.GrantUsed() | events.HandedOff():
                styles = {events.Warned: "yellow", events.GrantUsed: "dim"}
                self._parent(event.path).add(Text(visible(line(event) or ""), style=styles.get(type(event), "bold")))
            case _:
                return False
        return True

    def _start(self, title: str | None) -> None:
        self._root = Tree(Text(title or "", style="bold"), guide_style="dim", hide_root=title is None)
        self._nodes: dict[tuple[str, ...], Tree] = {(): self._root}
        self._thoughts: dict[tuple[str, ...], tuple[events.Thought, Tree]] = {}
        """Last thought at each path, with its node."""
        self._open: set[tuple[str, ...]] = set()
        """Calls and plan steps that have not finished."""
        self._calls: dict[tuple[str, ...], str] = {}
        """Labels of open calls, without their progress."""

    def _think(self, event: events.Thought) -> None:
        """Show a thought; deltas extend the node of their message."""
        begun, node = self._thoughts.get(event.path, (None, None))
        thought = joined_thought(begun, event)
        if thought is event or node is None:
            node = self._parent(event.path).add(Text(""))
        node.label = Text(visible(line(thought) or ""), style="italic dim")
        self._thoughts[event.path] = thought, node

    def _plan(self, event: events.PlanProposed) -> None:
        """Show the steps of a plan; for a later revision, new and removed steps."""
        plan = self._nodes.get((*event.path, PLAN)) or self._parent(event.path).add("")
        self._nodes[*event.path, PLAN] = plan
        plan.label = Text(f"plan {event.revision}: {visible(event.goal)}", style="bold")
        for change in event.changes:
            if (old := self._nodes.pop((*event.path, f"step-{change.id}"), None)) is not None:
                self._open.discard((*event.path, f"step-{change.id}"))
                old.label = Text(f"{REMOVED} {change.id}  {_about(old.label)}", style="dim strike")
        for step in event.steps:
            self._note_step((*event.path, f"step-{step.id}"), step.status)
            if (*event.path, f"step-{step.id}") not in self._nodes:
                self._step_node(event.path, step.id).label = _step(step.status, step.id, step.description)
        places, last = {id(self._nodes[*event.path, f"step-{one.id}"]): at for at, one in enumerate(event.steps)}, -1
        for node in plan.children:  # items of a loop stand before it, and a removed step where it was
            last = places.setdefault(id(node), last)
        plan.children.sort(key=lambda node: places[id(node)])

    def _note_step(self, key: tuple[str, ...], status: str) -> None:
        (self._open.add if status in ("open", "running") else self._open.discard)(key)

    def _step_node(self, path: tuple[str, ...], step: str) -> Tree:
        plan = self._nodes.get((*path, PLAN)) or self._parent(path)
        node = self._nodes[*path, f"step-{step}"] = plan.add(Text(""))
        return node

    def _call(self, event: events.ToolRequested) -> None:
        key = (*event.path, event.id)
        self._open.add(key)
        node = self._nodes.get(key) or self._add(event.path, event.id)
        node.label = Text(f"{MARKS[event.status]} {visible(event.tool)} ", style=_STYLES[event.status])
        node.label.append(arguments_text(event.arguments), style="cyan")
        self._calls[key] = str(node.label)
        if event.progress is not None:
            node.label.append(f"  {event.progress:.0%} {visible(event.message or '')}", style="dim")

    def _add(self, path: tuple[str, ...], call: str) -> Tree:
        """Add a node for a call: below its plan step, its sub-agent's call, or the run."""
        step = _PLANNED.fullmatch(call)
        parent = self._step_of_call(path, step[1]) if step else self._parent(path)
        self._nodes[*path, call] = parent.add(Text(""))
        return self._nodes[*path, call]

    def _step_of_call(self, path: tuple[str, ...], step: str) -> Tree:
        """Return the node of a step; a resumed run continues with a call of a step that was drawn before its pause."""
        if (node := self._nodes.get((*path, f"step-{step}"))) is None:
            node = self._step_node(path, step)
            node.label = _step("running", step, "")
        return node

    def _parent(self, path: tuple[str, ...]) -> Tree:
        path = tuple(_REVISED.sub("", part) for part in path)
        while path and path not in self._nodes:
            path = path[:-1]
        return self._nodes[path]


def _step(status: str, step: str, description: str) -> Text:
    return Text(f"{MARKS[status]} {step}  {visible(description)}", style=_STYLES[status])


def _about(label: object) -> str:
    """Return the description in a step's label, without mark and id."""
    return str(label).partition("  ")[2]


def _answered(label: str) -> Text:
    answered = Text(MARKS["answered"], style="yellow")
    answered.append(label[1:].rstrip(), style="default")
    answered.append(f"  {ANSWERED}", style="dim")
    return answered


def _finished(label: str, status: str, elapsed: float) -> Text:
    finished = Text(MARKS[status], style=_STYLES[status])
    finished.append(label[1:].rstrip(), style="default")
    finished.append(f"  {elapsed:.0f} ms", style="dim")
    return finished


FRAME_SECONDS = 0.04
"""Least time between two drawings. The first text after a pause is drawn at once."""
TAIL_LINES = 10
"""Lines of an incomplete block of text that are shown."""
HEIGHT = 10_000
"""Height of the console that renders: nothing is cut."""
MARGIN_LINES = 5
"""Lines of the terminal for the status, the input and empty lines."""
TREE_LINES = 40
"""A tree with more lines is continued by a new one as soon as no call is open."""


class RunView:
    """Draws a run in a live area. What is complete becomes output that stays: the tree, and each block of text."""

    is_drawn = True

    def __init__(self, area: LiveArea, title: str | None = None, *, shows_answer: bool = True) -> None:
        """Start to show a run. `shows_answer` is false if the answer is printed elsewhere, e.g. into a file."""
        self._area, self._shows_answer = area, shows_answer
        self._tree, self._status = RunTree(title), RunStatus()
        self._tree_lines: list[str] = []
        self._is_tree_changed = False
        self._text, self._message, self._received = MarkdownBlocks(), "", ""
        """Text of the message that arrives, its id, and all of it."""
        self._held: list[str] = []
        """Complete blocks of text that wait until the tree above them is complete."""
        self._last_console = _console(area.size.columns)
        self._timer: TimerHandle | None = None
        self._drawn_at = 0.0
        self._is_changed, self._has_output = True, False
        self._redirected = ExitStack()

    def start(self) -> None:
        """Show the status line. Prints are written above it from now on."""
        if self._timer is None:
            self._redirected.enter_context(prints_above(self._area))
            self._draw()

    def show(self, event: Event) -> None:
        """Show an event."""
        self.start()
        self._status.note(event)
        self._is_changed = True
        match event:
            case ContentReceived(path=()) if self._shows_answer:
                self._receive(event)
            case StreamEnd():
                self._finish(event)
            case Thought() if event.seq and event.message_id == self._message and not event.path:
                self._settle_text()  # what follows the reasoning was received as content
            case _:
                if isinstance(event, Warned) and event.message_id == self._message and not event.path:
                    self._held, self._text, self._message = [], MarkdownBlocks(), ""
                if isinstance(event, ToolRequested) and not event.path:
                    self._settle_text()
                if self._tree.add(event):
                    self._is_tree_changed = True
        self._write_settled()
        if monotonic() - self._drawn_at >= FRAME_SECONDS:
            self._draw()

    def count(self, tokens: int, cost_usd: float | None) -> None:
        """Show what the run has used."""
        self._status.count(tokens, cost_usd)

    def close(self) -> None:
        """Remove the status line; all else stays."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._settle_text()
        if self._held:  # the run ended before the tree was complete
            self._write_tree()
            self._tree.start_next()
            self._write_settled(inf)
        self._write_tree()
        self._area.draw(())
        self._redirected.close()

    def _receive(self, event: ContentReceived) -> None:
        """Add a piece of text; the blocks that it completes become output."""
        if event.message_id != self._message:
            self._settle_text()
            self._message, self._received = event.message_id, ""
        self._received += event.text
        self._held += self._text.feed(event.text)

    def _finish(self, event: StreamEnd) -> None:
        """Show the answer, unless it has been received: a hook may have changed it."""
        self._settle_text()
        if self._shows_answer and event.output and event.output != self._received:
            blocks = MarkdownBlocks()
            self._held += [*blocks.feed(event.output), *blocks.finish()]
            self._write_settled()
        self._received = ""

    def _settle_text(self) -> None:
        """Complete the text: what follows is shown below it."""
        self._held += self._text.finish()
        self._text, self._message = MarkdownBlocks(), ""
        self._write_settled(inf)

    def _write_settled(self, seconds: float = FRAME_SECONDS / 4) -> None:
        """Make the tree, once it is complete, and the blocks below it output; a new tree shows what follows.

        After `seconds` the rest waits for the next frame: a long text that arrives at once delays no key press.
        """
        if not self._held or not self._tree.is_settled:
            return
        self._write_tree()
        self._tree.start_next()
        end = monotonic() + seconds
        while self._held and monotonic() < end:
            self._write(rendered(self._console(), self._held.pop(0)))

    def _write_tree(self) -> None:
        if lines := self._lines_of_tree():
            self._write("\n".join(lines))
        self._tree_lines = []

    def _write(self, text: str) -> None:
        self._area.write(f"{chr(10) if self._has_output else ''}{text}\n")
        self._has_output = True
        self._drawn_at = 0.0  # what became output is removed from the area at once

    # --- drawing

    def _draw(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = get_running_loop().call_later(FRAME_SECONDS, self._tick)
        self._drawn_at, self._is_changed = monotonic(), False
        columns, rows = self._area.size
        text = self._lines_of_text()[-min(TAIL_LINES, max(rows - MARGIN_LINES, 1)) :]
        if len(self._lines_of_tree()) > TREE_LINES and self._tree.is_settled:
            self._write_tree()
            self._tree.start_next()
        tree = self._tree_lines[-max(rows - MARGIN_LINES - len(text), 1) :]
        shown = [*tree, *([""] if tree and text else []), *text]
        before, after = ([""] if shown and self._has_output else []), ([""] if shown or self._has_output else [])
        self._area.draw([*before, *shown, *after, self._status.line(columns - 1)])

    def _tick(self) -> None:
        self._timer = get_running_loop().call_later(FRAME_SECONDS, self._tick)
        self._write_settled()
        if self._is_changed or self._status.is_due():
            self._draw()

    def _lines_of_text(self) -> Sequence[str]:
        """Return the lines of the open block; the start of one that is long is left out."""
        rest, chars = self._text.rest, self._area.size.columns * TAIL_LINES
        if len(rest) > chars and not self._text.is_code:
            rest = rest[-chars:].partition(" ")[2] or rest[-chars:]
        blocks = [block for block in (*self._held[-1:], rest) if block.strip()]
        return "\n\n".join(rendered(self._console(), block) for block in blocks).splitlines()

    def _lines_of_tree(self) -> list[str]:
        """Return the lines of the tree, rendered again if it has changed."""
        console = self._console()
        if self._is_tree_changed and (tree := self._tree.shown) is not None:
            with console.capture() as captured:
                console.print(tree)
            self._tree_lines = without_padding(captured.get()).rstrip("\n").splitlines()
        self._is_tree_changed = False
        return self._tree_lines

    def _console(self) -> Console:
        """Return a console as wide as the terminal is now."""
        columns = self._area.size.columns
        if self._last_console.width != columns:
            self._last_console = _console(columns)
            self._is_tree_changed = True
        return self._last_console


def _console(columns: int) -> Console:
    return Console(file=StringIO(), force_terminal=True, width=columns, height=HEIGHT, theme=THEME)
