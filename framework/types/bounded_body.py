"""The body of an HTTP answer that may only be so long: no server fills the memory of this process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2


class TooLarge(httpx2.RemoteProtocolError):
    """An answer went on past what is taken; its message is whole."""


class BoundedStream(httpx2.AsyncByteStream):
    """The bytes of another stream, up to a limit.

    Args:
        stream: the other one.
        limit: bytes.
        told: what is wrong with an answer of more; it is raised as TooLarge.
        request: what is answered.
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
    """The same, for each line: who waits for the end of one copies it anew with every piece."""

    def _size(self, before: int, piece: bytes) -> int:
        end = piece.rfind(b"\n")
        return before + len(piece) if end < 0 else len(piece) - end - 1
