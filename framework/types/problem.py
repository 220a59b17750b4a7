"""Problems in a project's files, and changes of them."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field

from framework.types.frozen import Frozen
from framework.types.text import shorten

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


ChangeEffect = Literal["widens", "tightens", "neutral"]
_WORD = re.compile(r"[\w.*/-]+")
_MAX_VALUE_CHARS = 60
"""Maximum length of a value in the text of a change."""


class Change(Frozen):
    """A changed key of an agent file or of `agentsd.yaml`."""

    agent: str
    """Name of the agent, or `agentsd.yaml`."""
    key: str
    """Key such as `runtime_policy.max_steps`; empty if the whole agent was added or removed."""
    file_key: str = ""
    """The key as files are written now, such as `limits.steps`. Empty as for `key`."""
    before: Any = None
    """Previous value."""
    after: Any = None
    """New value."""
    effect: ChangeEffect
    """Whether the agent has more permissions (`widens`), fewer (`tightens`), or the same (`neutral`)."""
    also_tightens: bool = Field(default=False, exclude=True)
    """Whether a change that widens takes permissions away, too, such as an ask rule that newly names a tool."""

    def __str__(self) -> str:
        """Return the change as one line of text."""
        if not self.key:
            return f"{self.agent}: {'added' if self.after else 'removed'} ({self.effect})"
        return f"{self.agent}: {self.file_key or self.key}: {_text(self.before)} -> {_text(self.after)} ({self.effect})"


def _text(value: Any) -> str:
    return shorten(" ".join(_plain(value).splitlines()), _MAX_VALUE_CHARS)


def _plain(value: Any) -> str:
    """Return a value as one line of YAML. A rule that is only a tool, or an approval from a risk, is its name."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case {"from": str(name), **rest} | {"tool": str(name), **rest} if not any(rest.values()):
            return name
        case dict():
            is_rule = "tool" in value
            return f"{{{', '.join(f'{key}: {_item(own)}' for key, own in value.items() if own or not is_rule)}}}"
        case list() | tuple():
            return f"[{', '.join(map(_item, value))}]"
        case _:
            return str(value)


def _item(value: Any) -> str:
    return _plain(value) if not isinstance(value, str) or _WORD.fullmatch(value) else repr(value)
