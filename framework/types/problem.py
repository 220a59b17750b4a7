"""A finding about a file: data first, text second."""

from __future__ import annotations

from typing import Literal

from framework.types.frozen import Frozen

_EXCERPT_CHARS = 120


class Fix(Frozen):
    """What is to be written instead of what stands at a Problem's place, character for character."""

    written: str
    instead: str


class Problem(Frozen):
    """One thing wrong with one file, with the place and what to do about it."""

    path: str
    """The file, relative to the project's root."""
    line: int | None = None
    """1-based line; none when the whole file is meant."""
    column: int | None = None
    """1-based column."""
    message: str
    """What is wrong."""
    severity: Literal["error", "warning"] = "error"
    """A warning does not keep the file from being used."""
    hint: str | None = None
    """What to do about it, such as the name that was probably meant."""
    excerpt: str | None = None
    """The source line the problem stands in."""
    fix: Fix | None = None
    """Where only one thing can have been meant: `agentsd check --fix` writes it."""

    @property
    def place(self) -> str:
        """`file:line:column`, as far as it is known."""
        return ":".join(str(part) for part in (self.path, self.line, self.column) if part is not None)

    def __str__(self) -> str:
        """`file:line:col: message`, the source line with a caret, and the hint."""
        lines = [f"{self.place}: {self.message}"]
        if self.excerpt is not None and self.line is not None:
            column = self.column or 1
            start = max(0, column - _EXCERPT_CHARS // 2) if len(self.excerpt) > _EXCERPT_CHARS else 0
            shown = self.excerpt[start : start + _EXCERPT_CHARS]
            lines.append(f"{self.line:>5} | {shown}")
            if self.column is not None:
                pad = "".join("\t" if char == "\t" else " " for char in shown[: column - 1 - start])
                lines.append(f"      | {pad}^")
        if self.hint:
            lines.append(f"      = {self.hint}")
        return "\n".join(lines)
