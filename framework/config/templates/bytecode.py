"""Compiled templates, kept from one set of templates to the next: only what changed is compiled again."""

from __future__ import annotations

from types import CodeType

from jinja2 import BytecodeCache
from jinja2.bccache import Bucket


class Bytecode(BytecodeCache):
    """Code by template name and text, in memory. What neither this set nor the one before it had use for is let go."""

    def __init__(self, earlier: Bytecode | None = None) -> None:
        self._codes: dict[tuple[str, str], CodeType] = {}
        self._earlier = earlier._codes if earlier else {}

    def load_bytecode(self, bucket: Bucket) -> None:
        place = bucket.key, bucket.checksum
        bucket.code = self._codes.get(place) or self._earlier.get(place)
        if bucket.code:
            self._codes[place] = bucket.code

    def dump_bytecode(self, bucket: Bucket) -> None:
        if bucket.code:
            self._codes[bucket.key, bucket.checksum] = bucket.code
