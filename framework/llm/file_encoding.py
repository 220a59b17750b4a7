"""The files of requests in base64: each encoded once per run, and inserted into requests that are already encoded.

Formats and SDKs handle a placeholder of 40 characters in place of each file. The contents would otherwise pass through
several JSON encoders and copies in the event loop, which takes 100 ms for 20 MB.
"""

from __future__ import annotations

import asyncio
from binascii import b2a_base64
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from secrets import token_hex
from typing import TYPE_CHECKING

from framework.types.media import MediaPart

if TYPE_CHECKING:
    import httpx2

Base64 = Callable[[MediaPart], str | None]
"""Returns a file's contents in base64, or a placeholder for them; None if the contents are missing."""
_BLOCK = 3 << 18
"""Bytes that are encoded at once, in under a millisecond: encoding keeps other threads from running."""
_INLINE_BYTES = 1 << 20
"""A smaller file is encoded faster than a thread is started."""
_MARKER_BYTES, _NUMBER_DIGITS = 16, 8


class EncodedFiles:
    """The files of one run in base64."""

    def __init__(self) -> None:
        self.marker = token_hex(_MARKER_BYTES).encode()
        """Beginning of each placeholder; random, so that no text of a conversation contains it."""
        self._numbers: dict[str, int] = {}
        self._contents: list[bytes] = []

    def __len__(self) -> int:
        return len(self._contents)

    async def add(self, files: Mapping[str, bytes]) -> None:
        """Encode the files that are new, by digest; large ones in a thread."""
        for digest, data in files.items():
            if digest in self._numbers:
                continue
            encoded = _encode(data) if len(data) < _INLINE_BYTES else await asyncio.to_thread(_encode, data)
            if digest not in self._numbers:  # a concurrent call may have added it
                self._numbers[digest] = len(self._contents)
                self._contents.append(encoded)

    def placeholder(self, part: MediaPart) -> str | None:
        """Return the text that stands for a file's contents, itself valid base64; None if the file is missing."""
        number = self._numbers.get(part.digest)
        return None if number is None else f"{self.marker.decode()}{number:0{_NUMBER_DIGITS}}"

    async def insert(self, encoded: bytes) -> bytes:
        """Return an encoded request with the files in place of their placeholders."""
        head, *rest = encoded.split(self.marker)
        if not rest:
            return encoded
        pieces = [head]
        for piece in rest:
            pieces += (self._contents[int(piece[:_NUMBER_DIGITS])], piece[_NUMBER_DIGITS:])
        body = b"".join(pieces)
        await asyncio.sleep(0)  # joining 20 MB takes 10 ms, sending them as long: let other tasks run in between
        return body


class FileInsertion:
    """A request hook of an HTTP client that inserts the files of the requests being sent."""

    def __init__(self) -> None:
        self._sending: list[EncodedFiles] = []

    @contextmanager
    def during(self, files: EncodedFiles) -> Iterator[None]:
        """Insert these files into requests that contain their placeholders, within the `with` block."""
        if not files:
            yield
            return
        self._sending.append(files)
        try:
            yield
        finally:
            self._sending.remove(files)

    async def __call__(self, request: httpx2.Request) -> None:
        """Replace the body of a request that contains placeholders."""
        from httpx2 import ByteStream

        for files in self._sending:
            if files.marker in request.content:
                body = await files.insert(request.content)
                request.headers["content-length"] = str(len(body))
                request.stream = ByteStream(body)
                return


def missing_file(part: MediaPart) -> None:
    """Return no contents, for conversations whose files are not available."""


def _encode(data: bytes) -> bytes:
    view = memoryview(data)
    return b"".join(b2a_base64(view[at : at + _BLOCK], newline=False) for at in range(0, len(view), _BLOCK))
