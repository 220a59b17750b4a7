"""Splits Markdown that arrives in pieces into blocks, and renders them for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import ClassVar

import click
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown
from rich.theme import Theme

from framework.cli.screen import escape_controls

MAX_BLOCK_CHARS = 3000
"""A longer block is split, so that rendering one never delays key presses."""
MAX_CODE_LINES = 12
"""Lines of an open code block after which they become a block of their own."""
_FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<marks>`{3,}|~{3,})")
"""The beginning of a line that opens or closes a code block."""
_CODE_THEME = "ansi_dark"
"""Colours of the terminal's own palette, without a background."""
THEME = Theme({"markdown.code": "cyan"})
"""Styles of a console for Markdown. Rich's own style of code has a black background."""
_LINE_END_SPACES = re.compile(r"(?<! ) +((?:\x1b\[[0-9;]*m)*)$", re.MULTILINE)


class MarkdownBlocks:
    """Splits a text that arrives in pieces: `feed` returns the blocks that are complete, `rest` is the open one.

    A block ends at an empty line that is followed by a line without indentation, or at its maximum size. Text that
    begins with `{` is JSON: it is one code block.
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
        for line in lines:
            blocks += [*self._cut(line), *self._add(self._line)]
        blocks += self._cut(last)
        if self._line and self._fence is None and self._block and self._begins_block(self._line, None):
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
        """Hold a line as the incomplete one; yield blocks of its beginning while it is too long."""
        while len(line) > MAX_BLOCK_CHARS:
            head = line[:MAX_BLOCK_CHARS].rpartition(" ")[0] or line[:MAX_BLOCK_CHARS]
            self._block.append(head)
            yield self._take()
            line = line[len(head) :]
        self._line = line

    def _add(self, line: str) -> Iterator[str]:
        """Add a complete line; yield the blocks that it completes."""
        fence = None if self._is_json else _FENCE.match(line)
        if self._fence is None and self._block and self._begins_block(line, fence):
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

    def _begins_block(self, line: str, fence: re.Match[str] | None) -> bool:
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
    """A heading at the left, where the text begins."""

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
