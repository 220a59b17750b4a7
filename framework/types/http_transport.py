"""HTTP clients of httpx: limits the size of responses, and replaces a connection that the server closed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

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


# httpx looks for a closed connection before it sends a request; a close that crosses the request on its way is still an
# error. See docs/design/011-model-calls.md.


_LOST = (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError)


class ReconnectingClient(httpx2.AsyncClient):
    """Sends a request once more, on a new connection, if a used connection is lost before the response's header.

    Args:
        options: as for `httpx2.AsyncClient`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._options = options
        self._unpooled: httpx2.AsyncClient | None = None
        """The same client without idle connections, created when it is needed first."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request; raise httpx2.HTTPError if it fails."""
        progress = _Progress()
        request.extensions = {**request.extensions, "trace": progress.record}
        try:
            return await super().send(request, **options)
        except _LOST:
            if progress.is_new or progress.is_answered:
                raise
        if self._unpooled is None:
            unlimited = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
            self._unpooled = httpx2.AsyncClient(**{**self._options, "limits": unlimited})
        return await self._unpooled.send(request, **options)

    async def aclose(self) -> None:
        """Close the connections."""
        await super().aclose()
        if self._unpooled is not None:
            await self._unpooled.aclose()


class _Progress:
    """What a request has reached, from the trace that httpx writes of it."""

    def __init__(self) -> None:
        self.is_new = False
        """Whether a connection was opened for it."""
        self.is_answered = False
        """Whether the response's header has arrived."""

    async def record(self, event: str, _info: dict[str, Any]) -> None:
        self.is_new = self.is_new or event.startswith("connection.")
        self.is_answered = self.is_answered or event.endswith("receive_response_headers.complete")
