"""Notes that agents keep across conversations: what they contain, who owns them, and by which words they are found."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice

from framework.types.frozen import Frozen
from framework.types.spec import MemoryScope

MAX_NOTE_CHARS = 2000
"""Maximum length of a note. A note is a fact, not a document."""
_MAX_QUERY_CHARS, _MAX_QUERY_WORDS = 10_000, 64
_WORD = re.compile(r"[^\W_]+")
_UNSPACED = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
    "\uf900-\ufaff\U00020000-\U0003ffff]+)"
)
"""Scripts without spaces between words, such as Chinese; and Korean, whose words end in particles."""
_STOP = frozenset(
    re.findall(
        "[a-z]+",
        "a about all am an and any are as at be been but by can could did do does for from had has have he her "
        "him his how i if in into is it its me my no not of on or our please she so that the their them then "
        "there these they this to us was we were what when where which who why will with would you your",
    )
)
"""Words that a search ignores."""


class Note(Frozen):
    """A note. It is data: it permits nothing."""

    id: str
    text: str
    scope: MemoryScope
    """Who shares it."""
    tenant: str | None = None
    user: str | None = None
    """User of the run that saved it."""
    agent: str
    """Agent that saved it."""
    run_id: str
    """Run that saved it."""
    conversation_id: str | None = None
    untrusted: bool
    """Whether text of tools, files or servers was in the conversation when the model wrote it."""
    created_at: float
    """Unix time, like the other times."""
    used_at: float
    """When a run last received it."""
    expires_at: float | None = None

    @property
    def saved_on(self) -> str:
        """The day on which it was saved, in UTC."""
        return f"{datetime.fromtimestamp(self.created_at, UTC):%Y-%m-%d}"


@dataclass(frozen=True, slots=True)
class NoteOwner:
    """The runs that share notes: those of one scope, tenant and, as far as the scope says, user and agent."""

    scope: MemoryScope
    tenant: str | None
    user: str | None
    agent: str

    @property
    def key(self) -> str:
        """A digest that identifies the owner."""
        user = self.user if self.scope != "tenant" else None
        agent = self.agent if self.scope == "agent" else None
        return sha256(json.dumps([self.scope, self.tenant, user, agent]).encode()).hexdigest()[:32]


def note_id(run_id: str, call_key: str) -> str:
    """Return the id of the note that a call saves: the same for each attempt."""
    return f"note_{sha256(f'{run_id}:{call_key}'.encode()).hexdigest()[:16]}"


def index_words(text: str) -> str:
    """Return the words by which a note is found, for a full-text index that divides text at spaces.

    Scripts without spaces become single characters and pairs of characters.
    """
    return " ".join(word for word, _ in _words(text))


def query_words(text: str) -> list[str]:
    """Return the words to look up for a text, letters and digits only; of other scripts, pairs of characters."""
    words = (word for word, is_lone in _words(text[:_MAX_QUERY_CHARS]) if is_lone and word not in _STOP)
    return list(islice(dict.fromkeys(words), _MAX_QUERY_WORDS))


def _words(text: str) -> Iterator[tuple[str, bool]]:
    """Yield words in small letters without accents, each with whether a search for the text looks it up."""
    for word in _WORD.findall(unicodedata.normalize("NFKC", text).casefold()):
        for index, part in enumerate(_UNSPACED.split(word)):
            if index % 2:
                yield from ((character, len(part) == 1) for character in part)
                yield from ((part[at : at + 2], True) for at in range(len(part) - 1))
            elif plain := "".join(one for one in unicodedata.normalize("NFKD", part) if one.isalnum()):
                yield plain, True


@dataclass(frozen=True, slots=True)
class Embedding:
    """A text as a vector."""

    embedder: str
    """The function that made it. Vectors of others are not compared with it."""
    vector: Sequence[float]
