"""Shows a run on a terminal: its tree, the text as it arrives, and a status line."""

from __future__ import annotations

from asyncio import TimerHandle, get_running_loop
from collections.abc import Sequence
from contextlib import ExitStack
from io import StringIO
from math import inf
from time import monotonic

from rich.console import Console

from framework.cli.live_area import LiveArea, prints_above
from framework.cli.markdown import THEME, MarkdownBlocks, rendered, without_padding
from framework.cli.run_status import RunStatus
from framework.cli.tree import RunTree
from framework.types.events import ContentReceived, Event, StreamEnd, Thought, ToolRequested, Warned

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
        """Begin to show a run. `shows_answer` is false if the answer is printed elsewhere, e.g. into a file."""
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

    def begin(self) -> None:
        """Show the status line. Prints are written above it from now on."""
        if self._timer is None:
            self._redirected.enter_context(prints_above(self._area))
            self._draw()

    def show(self, event: Event) -> None:
        """Show an event."""
        self.begin()
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
            self._tree.begin_next()
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
        self._tree.begin_next()
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
            self._tree.begin_next()
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
        """Return the lines of the open block; the beginning of one that is long is left out."""
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
