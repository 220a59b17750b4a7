"""Digests of content that a human or an operator has agreed to: arguments, plans, and what tools say of themselves.

They are 256 bits long, because whoever writes the content (a model, a server) can look for two texts with one digest,
which takes minutes for 64 bits. Earlier versions recorded 64 bits in stores and files; such digests are recognised.
"""

from __future__ import annotations

from hashlib import blake2b

BYTES = 32
EARLIER_BYTES = 8


def content_digest(text: str) -> str:
    """The digest of a text, as 64 hexadecimal digits."""
    return _digest(text, BYTES)


def earlier_digest(text: str) -> str:
    """The digest that earlier versions recorded, as 16 digits: only to find again what they have stored."""
    return _digest(text, EARLIER_BYTES)


def is_digest_of(recorded: str, text: str) -> bool:
    """Whether a recorded digest is that of a text, in today's form or in that of earlier versions."""
    return recorded == (earlier_digest(text) if len(recorded) == 2 * EARLIER_BYTES else content_digest(text))


def _digest(text: str, size: int) -> str:
    return blake2b(text.encode("utf-8", "backslashreplace"), digest_size=size).hexdigest()
