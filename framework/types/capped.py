"""The body of an HTTP answer that may only be so long: no server fills the memory of this process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2


class TooLarge(httpx2.RemoteProtocolError):
    """An answer went on past what is taken; its message is whole."""


class Capped(httpx2.AsyncByteStream):
    """The bytes of another stream, up to a limit.

    Args:
        stream: the other one.
        limit: bytes.
        told: what is wrong with an answer of more; it is raised as TooLarge.
        request: what is answered.
    """

    def __init__(self, stream: httpx2.AsyncByteStream, limit: int, told: str, request: httpx2.Request) -> None:
        self._stream, self._limit, self._told, self._request = stream, limit, told, request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if size > self._limit:
                raise TooLarge(self._told, request=self._request)
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
