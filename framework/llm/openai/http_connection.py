"""Sends requests to one API of one server over pooled connections.

The requests differ in their body only, so URL and headers are prepared once. Neither the openai SDK nor httpx takes
part: importing the SDK takes longer than everything else that a process does for its first call, and both do more for
each request than a model call needs; see docs/design/013-transport.md.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import aiohttp
import orjson
from multidict import CIMultiDict

from framework.llm.http_client import ACCEPT_ENCODING, MAX_COMPRESSED_BYTES, is_encoded, size_limits
from framework.llm.openai.event_stream import EventStream
from framework.llm.openai.pool import create_session
from framework.llm.openai.server_error import ServerError
from framework.types.byte_limit import ByteLimit
from framework.types.certificates import trusted_certificates

LARGE_BODY = 1 << 20
"""Bytes; aiohttp sends larger bodies in chunks, from a file object."""
MAX_PROPERTIES = 1_000_000
"""Bytes of a server's answer about itself."""
USER_AGENT = "agentsd"
_EQUIVALENTS: tuple[tuple[type[Exception], str], ...] = (
    (aiohttp.ConnectionTimeoutError, "ConnectTimeout"),
    (TimeoutError, "ReadTimeout"),
    (aiohttp.ClientConnectorError, "ConnectError"),
    (aiohttp.TooManyRedirects, "TooManyRedirects"),
    (aiohttp.InvalidURL, "UnsupportedProtocol"),
    (aiohttp.NonHttpUrlClientError, "UnsupportedProtocol"),
    (aiohttp.ClientOSError, "ReadError"),
    (aiohttp.ClientError, "RemoteProtocolError"),
    (OSError, "ReadError"),
)
"""Errors of aiohttp, and the names of the equivalent errors of httpx; the first match applies."""


def is_directly_reachable(base_url: str | None) -> bool:
    """Return whether requests to a server need neither a proxy of the environment nor a password in its URL.

    Args:
        base_url: the server; None for the SDK's default.
    """
    server = urlsplit(base_url or os.environ.get("OPENAI_BASE_URL", "")).netloc
    return "@" not in server and not getproxies().keys() & {"http", "https", "all"}


class HttpConnection:
    """A connection to a server.

    Args:
        url: the URL of the API.
        headers: the header of each request, besides what all of them have.
        timeout: seconds without a byte.

    Raises:
        ValueError: a header contains a line break or another character that is not printable.
        OSError: the certificates that the environment names cannot be read.
    """

    def __init__(self, url: str, headers: Mapping[str, str], timeout: float) -> None:
        for name, value in headers.items():
            if not value.isprintable():
                raise ValueError(f"{name} contains a line break or another character that is not printable")
        self._url = url
        common = {"Accept": "application/json", "Content-Type": "application/json", "User-Agent": USER_AGENT}
        self._headers = CIMultiDict(common)
        self._headers.update({**headers, "Accept-Encoding": ACCEPT_ENCODING})
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeout, sock_read=timeout)
        # Reading the certificates takes 20 ms. A file that the environment names is always checked.
        needs_trust = url.startswith("https:") or "SSL_CERT_FILE" in os.environ
        self._trust = trusted_certificates() if needs_trust else None
        host = urlsplit(url).hostname or ""
        # As the SDK does: certificates are not valid for names with underscores.
        self._server_name = host.replace("_", "-") if "_" in host else None
        self._session: aiohttp.ClientSession | None = None

    async def post(self, body: bytes) -> Any:
        """Return the response's JSON, or its text if it declares another content type.

        Raises:
            ServerError: the server reports an error.
            httpx2.HTTPError: the connection failed.
            ValueError: the response is not JSON.
        """
        response = await self._send("POST", self._url, body)
        content = await response.aread()
        return parse_json(content, response.headers)

    async def stream(self, body: bytes) -> EventStream:
        """Return the events of the response, for a body that requests a stream; raises the same errors as `post`."""
        return EventStream(await self._send("POST", self._url, body))

    async def fetch(self, url: str, body: dict[str, Any] | None = None) -> object:
        """Return the JSON at another URL of the server, for GET, or for POST with a body; None if there is none.

        Raises the same errors as `post`.
        """
        method, content = ("GET", None) if body is None else ("POST", orjson.dumps(body))
        try:
            response = await self._send(method, url, content, allow_redirects=False)
        except ServerError as error:
            if error.status is not None and error.status >= 500:  # it may be loading its model
                raise
            return None
        return parse_properties(await response.aread(), response.headers)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _send(self, method: str, url: str, body: bytes | None, *, allow_redirects: bool = True) -> HttpResponse:
        if self._session is None:
            self._session = create_session(self._trust, self._timeout)
        try:
            response = await self._session.request(
                method,
                url,
                headers=self._headers,
                data=body if body is None or len(body) < LARGE_BODY else BytesIO(body),
                allow_redirects=allow_redirects,
                server_hostname=self._server_name,
            )
        except (aiohttp.ClientError, OSError) as error:
            raise _transport_error(error) from error
        if 200 <= response.status < 300:
            return HttpResponse(response)
        raise await _reported_error(HttpResponse(response))


class HttpResponse:
    """A response whose body has not been read; closing it before its end closes the connection."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.headers: Mapping[str, str] = response.headers
        self._content: bytes | None = None
        """The decoded body, once it has been read completely."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self._response.status

    async def aread(self) -> bytes:
        """Return the decoded body; raise httpx2.HTTPError if the connection fails or the body is too large."""
        if self._content is None:
            self._content = await self._read()
        return self._content

    async def _read(self) -> bytes:
        size = self._response.content_length
        if size is None or size > MAX_COMPRESSED_BYTES or is_encoded(self.headers):
            try:
                return b"".join([chunk async for chunk in self.chunks()])
            finally:
                await self.aclose()
        try:
            return await self._response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise _transport_error(error) from error

    def chunks(self) -> AsyncIterator[bytes]:
        """Return the pieces of the decoded body as they arrive; they raise the same errors as `aread`."""
        if self._content is not None or not is_encoded(self.headers):
            return self._pieces()
        import httpx2

        return httpx2.Response(200, headers=self._response.raw_headers, content=self._pieces()).aiter_bytes()

    async def aclose(self) -> None:
        """Close the response."""
        self._response.close()

    async def _pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as the server sends it, up to its limits; one that was read before is one piece."""
        if self._content is not None:
            yield self._content
            return
        limits = [(ByteLimit(most, per_line=each), message) for most, message, each in size_limits(self.headers)]
        try:
            async for piece in self._response.content.iter_any():
                for limit, message in limits:
                    if limit.is_exceeded_by(piece):
                        raise _too_large(message)
                yield piece
        except (aiohttp.ClientError, OSError) as error:
            raise _transport_error(error) from error


def parse_json(content: bytes, headers: Mapping[str, str]) -> Any:
    """Return the JSON in a body, or its text if it declares another content type; raises ValueError for bad JSON."""
    try:
        return orjson.loads(content)
    except ValueError:
        if "json" not in headers.get("content-type", "json"):
            return content.decode(errors="replace")
        raise


def parse_properties(content: bytes, headers: Mapping[str, str]) -> object:
    """Return the JSON in which a server describes itself; None if it is something else. Raises ValueError."""
    if len(content) > MAX_PROPERTIES or "json" not in headers.get("content-type", ""):
        return None
    value: object = orjson.loads(content)
    return value


async def _reported_error(response: HttpResponse) -> ServerError:
    """Return the error that a response reports; raise httpx2.HTTPError if its body cannot be read."""
    text = (await response.aread()).decode(errors="replace").strip()
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = text
    detail = body.get("error", body) if isinstance(body, dict) else body
    return ServerError(f"status {response.status}", detail, status=response.status, headers=response.headers)


def _transport_error(error: Exception) -> Exception:
    """Return the error of httpx that is equivalent to one of aiohttp, as all other clients raise it."""
    import httpx2

    name = next(name for kind, name in _EQUIVALENTS if isinstance(error, kind))
    equivalent: type[Exception] = getattr(httpx2, name)
    return equivalent(str(error))


def _too_large(message: str) -> Exception:
    from framework.types.bounded_body import TooLarge

    return TooLarge(message)
