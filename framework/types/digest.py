"""Digests of content: approved arguments, plans and tool definitions, and files in messages.

Digests have 256 bits, because the author of the content (a model or a server) can search for two texts with the same
digest, which takes minutes for 64 bits.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

import orjson

_BYTES = 32
_KEY_BYTES = 8
_CANONICAL = json.JSONEncoder(sort_keys=True, ensure_ascii=False, default=str)


def content_digest(text: str) -> str:
    """Return the digest of a text as 64 hexadecimal digits."""
    return _digest(text, _BYTES)


def bytes_digest(data: bytes) -> str:
    """Return the digest of a file's contents as 64 hexadecimal digits."""
    return blake2b(data, digest_size=_BYTES).hexdigest()


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
        return _digest(canonical_call(tool, arguments), _KEY_BYTES)
    return blake2b(text, digest_size=_KEY_BYTES).hexdigest()


def _digest(text: str, size: int) -> str:
    return blake2b(text.encode("utf-8", "backslashreplace"), digest_size=size).hexdigest()
