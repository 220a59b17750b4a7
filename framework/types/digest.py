"""Digests of content that a human or an operator has approved: arguments, plans and tool definitions.

They have 256 bits, because the author of the content (a model, a server) can search for two texts with one digest,
which takes minutes for 64 bits. Stores and files may still contain digests of 64 bits; these are recognised.
"""

from __future__ import annotations

from hashlib import blake2b

BYTES = 32
EARLIER_BYTES = 8


def content_digest(text: str) -> str:
    """The digest of a text, as 64 hexadecimal digits."""
    return _digest(text, BYTES)


def earlier_digest(text: str) -> str:
    """The digest of 64 bits, as 16 hexadecimal digits: only to compare with stored ones."""
    return _digest(text, EARLIER_BYTES)


def is_digest_of(recorded: str, text: str) -> bool:
    """Whether a recorded digest, of either length, is that of a text."""
    return recorded == (earlier_digest(text) if len(recorded) == 2 * EARLIER_BYTES else content_digest(text))


def _digest(text: str, size: int) -> str:
    return blake2b(text.encode("utf-8", "backslashreplace"), digest_size=size).hexdigest()
