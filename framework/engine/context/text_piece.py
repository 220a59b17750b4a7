"""Pieces of texts in progress, as processes send them to each other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from framework.engine.context.event_hub import Path, TextKind
from framework.types.events import ContentReceived, Thought

PIECE_CHARS = 1000
"""Maximum length of a piece, which fits a signal even if each character is escaped twice."""
MessageKey = tuple[Path, str]
"""Path and id of a message."""
_KINDS: dict[str, TextKind] = {"content": ContentReceived, "thought": Thought}
_NAMES = {kind: name for name, kind in _KINDS.items()}


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A piece of the text of one kind in a message."""

    source: str
    """The execution of the run that the text belongs to: another one writes the text anew."""
    kind: TextKind
    generation: int
    path: Path
    message_id: str
    begin: int
    """Number of characters of the text before the piece."""
    text: str

    @property
    def message(self) -> MessageKey:
        """The message that the text belongs to."""
        return self.path, self.message_id

    def encode(self) -> str:
        """Return the piece as JSON."""
        name = _NAMES[self.kind]
        fields = (self.source, name, self.generation, self.path, self.message_id, self.begin, self.text)
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def read_piece(body: str) -> TextPiece | None:
    """Return the piece that `encode` converted to JSON; None if it is none."""
    try:
        source, name, generation, path, message_id, begin, text = json.loads(body)
        return TextPiece(source, _KINDS[name], generation, tuple(path), message_id, begin, text)
    except (ValueError, KeyError, TypeError):
        return None


def split(delta: ContentReceived | Thought, source: str, begin: int) -> Iterator[TextPiece]:
    """Yield the pieces of a delta that begins at a character of its text."""
    for at in range(0, len(delta.text), PIECE_CHARS):
        text = delta.text[at : at + PIECE_CHARS]
        yield TextPiece(source, type(delta), delta.generation, delta.path, delta.message_id, begin + at, text)
