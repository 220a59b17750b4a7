"""Digests of content: approved arguments, plans and tool definitions, and files in messages.

Digests have 256 bits, because the author of the content (a model or a server) can search for two texts with the same
digest, which takes minutes for 64 bits. Stores and files may still contain 64-bit digests; these are recognised.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

import orjson

_BYTES = 32
_LEGACY_BYTES = 8
_CANONICAL = json.JSONEncoder(sort_keys=True, ensure_ascii=False, default=str)


def content_digest(text: str) -> str:
    """Return the digest of a text as 64 hexadecimal digits."""
    return _digest(text, _BYTES)


def bytes_digest(data: bytes) -> str:
    """Return the digest of a file's contents as 64 hexadecimal digits."""
    return blake2b(data, digest_size=_BYTES).hexdigest()


def legacy_digest(text: str) -> str:
    """Return the 64-bit digest of a text as 16 hexadecimal digits. Use it only to compare with stored digests."""
    return _digest(text, _LEGACY_BYTES)


def matches_digest(recorded: str, text: str) -> bool:
    """Return whether a recorded digest, of either length, is the digest of `text`."""
    return recorded == (legacy_digest(text) if len(recorded) == 2 * _LEGACY_BYTES else content_digest(text))


def canonical_call(tool: str, arguments: dict[str, Any]) -> str:
    """Return a tool call as JSON with sorted keys, the text that its digest is computed from."""
    return _CANONICAL.encode([tool, arguments])


def call_digest(tool: str, arguments: dict[str, Any]) -> str:
    """Return the digest of a tool and its exact arguments. An approval applies to one digest."""
    return content_digest(canonical_call(tool, arguments))


def repetition_key(tool: str, arguments: dict[str, Any]) -> str:
    """Return the key that counts how often a run makes a call: 16 hexadecimal digits, equal for equal calls.

    Two calls that share a key are counted as one, which can only bring the limit of repetitions nearer.
    """
    try:
        text = orjson.dumps([tool, arguments], option=orjson.OPT_SORT_KEYS)
    except TypeError:  # such as an integer above 64 bits
        return legacy_digest(canonical_call(tool, arguments))
    return blake2b(text, digest_size=_LEGACY_BYTES).hexdigest()


def _digest(text: str, size: int) -> str:
    return blake2b(text.encode("utf-8", "backslashreplace"), digest_size=size).hexdigest()
