"""Problems found in files, as data that can be printed with line, column and hint."""

from __future__ import annotations

from typing import Literal

from framework.types.frozen import Frozen

_EXCERPT_CHARS = 120


class Fix(Frozen):
    """A replacement for the text at a Problem's place."""

    written: str
    """Exact text in the file."""
    instead: str
    """Text to write instead."""


class Problem(Frozen):
    """A problem in a file, with its place and a hint."""

    path: str
    """Path of the file, relative to the project's root."""
    line: int | None = None
    """Line number from 1; None if the problem concerns the whole file."""
    column: int | None = None
    """Column number from 1."""
    message: str
    """Description of the problem."""
    severity: Literal["error", "warning"] = "error"
    """Whether the file is rejected (`error`) or still used (`warning`)."""
    hint: str | None = None
    """How to solve the problem, such as the name that was probably intended."""
    excerpt: str | None = None
    """Source line that contains the problem."""
    fix: Fix | None = None
    """Replacement that `agentsd check --fix` applies, if there is only one possible fix."""

    @property
    def place(self) -> str:
        """`file:line:column`, as far as known."""
        return ":".join(str(part) for part in (self.path, self.line, self.column) if part is not None)

    def __str__(self) -> str:
        """Return `file:line:column: message`, the source line with a caret, and the hint."""
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
