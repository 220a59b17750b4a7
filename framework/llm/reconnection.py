"""An HTTP client that replaces a connection that the server closed before it answered.

httpx looks for a closed connection before it sends a request; a close that crosses the request on its way is still an
error. See docs/design/011-model-calls.md.
"""

from __future__ import annotations

from typing import Any

import httpx2

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
