"""Long pastes: the input line shows a short text in their place."""

from __future__ import annotations

import re

SHORT_PASTE_CHARS = 1000
SHORT_PASTE_LINES = 8
"""A larger paste is replaced by a placeholder: editors and terminals become slow with long lines."""
_PLACEHOLDER = re.compile(r"\[paste \d+: [\d,]+ characters, [\d,]+ lines?\]")


class Pastes:
    """The long pastes of a chat."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        """Texts by their placeholders."""

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
