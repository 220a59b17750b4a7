"""Digests of content that a human or an operator has approved: arguments, plans and tool definitions.

They have 256 bits, because the author of the content (a model, a server) can search for two texts with one digest,
which takes minutes for 64 bits. Stores and files may still contain digests of 64 bits; these are recognised.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

_BYTES = 32
_LEGACY_BYTES = 8


def content_digest(text: str) -> str:
    """The digest of a text, as 64 hexadecimal digits."""
    return _digest(text, _BYTES)


def legacy_digest(text: str) -> str:
    """The digest of 64 bits, as 16 hexadecimal digits: only to compare with stored ones."""
    return _digest(text, _LEGACY_BYTES)


def matches_digest(recorded: str, text: str) -> bool:
    """Whether a recorded digest, of either length, is that of a text."""
    return recorded == (legacy_digest(text) if len(recorded) == 2 * _LEGACY_BYTES else content_digest(text))


def canonical_call(tool: str, arguments: dict[str, Any]) -> str:
    """Return a tool call as JSON with sorted keys, the text that its digest is computed from."""
    return json.dumps([tool, arguments], sort_keys=True, ensure_ascii=False, default=str)


def call_digest(tool: str, arguments: dict[str, Any]) -> str:
    """Return the digest of a tool and its exact arguments. An approval applies to one digest."""
    return content_digest(canonical_call(tool, arguments))


def _digest(text: str, size: int) -> str:
    return blake2b(text.encode("utf-8", "backslashreplace"), digest_size=size).hexdigest()
