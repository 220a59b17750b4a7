"""Limits the size of HTTP response bodies of httpx, so that no server can fill the memory of this process."""

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
        per_line: apply the limit to each line, because readers buffer a line until its end and copy it with each piece.
    """

    def __init__(
        self,
        stream: httpx2.AsyncByteStream,
        limit: int,
        message: str,
        request: httpx2.Request,
        *,
        per_line: bool = False,
    ) -> None:
        self._stream, self._limit, self._message, self._request = stream, limit, message, request
        self._per_line = per_line

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            end = piece.rfind(b"\n") if self._per_line else -1
            size = size + len(piece) if end < 0 else len(piece) - end - 1
            if size > self._limit:
                raise TooLarge(self._message, request=self._request)
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
