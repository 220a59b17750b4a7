"""Limits the size of HTTP response bodies, so that no server can fill the memory of this process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2


class TooLarge(httpx2.RemoteProtocolError):
    """A response body exceeded its limit. The message is complete and needs no prefix."""


class BoundedStream(httpx2.AsyncByteStream):
    """The bytes of another stream, up to a limit.

    Args:
        stream: the stream to read.
        limit: maximum number of bytes.
        message: the message of the TooLarge error that is raised above the limit.
        request: the request of the response.
    """

    def __init__(self, stream: httpx2.AsyncByteStream, limit: int, message: str, request: httpx2.Request) -> None:
        self._stream, self._limit, self._message, self._request = stream, limit, message, request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            size = self._size(size, piece)
            if size > self._limit:
                raise TooLarge(self._message, request=self._request)
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _size(self, before: int, piece: bytes) -> int:
        return before + len(piece)


class BoundedLines(BoundedStream):
    """Applies the limit to each line, because readers buffer a line until its end and copy it with every piece."""

    def _size(self, before: int, piece: bytes) -> int:
        end = piece.rfind(b"\n")
        return before + len(piece) if end < 0 else len(piece) - end - 1
