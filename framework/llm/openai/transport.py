"""Sends the openai SDK's requests through aiohttp, without the parts of httpx that model calls do not need.

The SDK's own transport scans its whole connection pool for each request. Merging URLs and headers, cookies, redirects
and authentication cost as much again, and a model call needs none of it; see docs/design/013-transport.md.

Requests to one API of one server differ in their body only, so the SDK prepares the first one, and the later ones
repeat its URL and headers.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import aiohttp
import httpx2
from multidict import CIMultiDict

from framework.llm.http_client import ACCEPT_ENCODING, MAX_COMPRESSED_BYTES, limit_size
from framework.llm.openai.pool import create_session
from framework.types.certificates import trusted_certificates

LARGE_BODY = 1 << 20
"""Bytes; aiohttp sends larger bodies in chunks, from a file object."""
_EQUIVALENTS: tuple[tuple[type[Exception], type[httpx2.TransportError]], ...] = (
    (aiohttp.ConnectionTimeoutError, httpx2.ConnectTimeout),
    (TimeoutError, httpx2.ReadTimeout),
    (aiohttp.ClientConnectorError, httpx2.ConnectError),
    (aiohttp.InvalidURL, httpx2.UnsupportedProtocol),
    (aiohttp.NonHttpUrlClientError, httpx2.UnsupportedProtocol),
    (aiohttp.ClientOSError, httpx2.ReadError),
    (aiohttp.ClientError, httpx2.RemoteProtocolError),
    (OSError, httpx2.ReadError),
)
"""Errors of aiohttp and the matching errors of httpx; the first match applies."""


def create_direct_client(base_url: str | None, timeout: float) -> DirectHTTPClient | None:
    """Return an HTTP client, or None if the server needs the SDK's own, for a proxy or a password in the URL.

    Args:
        base_url: the server; None for the SDK's default.
        timeout: seconds without a byte.
    """
    server = urlsplit(base_url or os.environ.get("OPENAI_BASE_URL", "")).netloc
    if "@" in server or getproxies().keys() & {"http", "https", "all"}:
        return None
    return DirectHTTPClient(timeout)


class DirectHTTPClient(httpx2.AsyncClient):
    """Sends headers and bytes unchanged; everything else, such as a redirect, is delegated to httpx."""

    def __init__(self, timeout: float) -> None:
        self._direct = _Transport(timeout)
        super().__init__(transport=self._direct, timeout=timeout, follow_redirects=True)
        self._last_url = httpx2.URL()
        self._last_url_text = ""

    def build_request(self, method: str, url: httpx2.URL | str, **options: Any) -> httpx2.Request:
        """Return a request; a plain one is not merged with the client's defaults."""
        content, headers = options.get("content"), options.get("headers")
        if not (isinstance(url, str) and isinstance(content, bytes) and isinstance(headers, list)):
            return super().build_request(method, url, **options)
        if url != self._last_url_text:  # nearly always unchanged; parsing it takes a tenth of a request
            self._last_url, self._last_url_text = httpx2.URL(url), url
        request = httpx2.Request(
            method,
            self._last_url if not options.get("params") else self._last_url.copy_merge_params(options["params"]),
            headers=[*headers, ("accept-encoding", ACCEPT_ENCODING)],
            stream=httpx2.ByteStream(content),  # with `content`, httpx would add headers that aiohttp adds too
            extensions=options.get("extensions"),
        )
        request.read()
        return request

    async def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
        """Send a request; raise httpx2.TransportError if it fails."""
        prepared, body = PreparedRequest.of(request), await request.aread()
        response = await self.open(prepared, body) if stream else (await self.exchange(prepared, body)).to_httpx()
        if response.is_redirect and response.has_redirect_location:
            await response.aclose()
            return await super().send(request, stream=stream, **options)
        return response

    async def exchange(self, prepared: PreparedRequest, body: bytes) -> CompleteResponse:
        """Send a prepared request with this body, and return the response, redirects included, with its body.

        Raises httpx2.TransportError if the connection fails.
        """
        return await self._direct.exchange(prepared, body)

    async def open(self, prepared: PreparedRequest, body: bytes) -> httpx2.Response:
        """Send a prepared request like `exchange`, and return the response as soon as its header has arrived."""
        return await self._direct.open(prepared, body)


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request without its body, in the form that aiohttp accepts."""

    request: httpx2.Request
    """The request that was prepared; errors and responses refer to it."""
    url: str
    headers: CIMultiDict[str]
    server_name: str | None
    """Name of the server in TLS, if it differs from the one in the URL."""

    @classmethod
    def of(cls, request: httpx2.Request) -> PreparedRequest:
        """Return the URL and headers of a request."""
        headers = CIMultiDict((name.decode(), value.decode()) for name, value in request.headers.raw)
        return cls(request, str(request.url), headers, request.extensions.get("sni_hostname"))

    def without_body(self) -> PreparedRequest:
        """Return the same, to be kept: it does not keep the body that the request had."""
        return replace(self, request=httpx2.Request(self.request.method, self.request.url))


@dataclass(frozen=True, slots=True)
class CompleteResponse:
    """A response whose body has been read."""

    prepared: PreparedRequest
    response: aiohttp.ClientResponse
    content: bytes

    @property
    def is_plain(self) -> bool:
        """Whether the response reports success, and its body is not encoded."""
        return 200 <= self.response.status < 300 and "content-encoding" not in self.response.headers

    def to_httpx(self) -> httpx2.Response:
        """Return the same as a response of httpx."""
        body, headers = _BufferedBody(self.content), self.response.raw_headers
        return httpx2.Response(self.response.status, headers=headers, stream=body, request=self.prepared.request)


class _Transport(httpx2.AsyncBaseTransport):
    """A transport on pooled aiohttp connections."""

    def __init__(self, timeout: float) -> None:
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeout, sock_read=timeout)
        self._trust = trusted_certificates()
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await self.open(PreparedRequest.of(request), await request.aread())

    async def exchange(self, prepared: PreparedRequest, body: bytes) -> CompleteResponse:
        try:
            response = await self._request(prepared, body)
            return CompleteResponse(prepared, response, await _read(response, prepared.request))
        except (aiohttp.ClientError, OSError) as error:
            raise _httpx_error(error, prepared.request) from error

    async def open(self, prepared: PreparedRequest, body: bytes) -> httpx2.Response:
        request = prepared.request
        try:
            response = await self._request(prepared, body)
        except (aiohttp.ClientError, OSError) as error:
            raise _httpx_error(error, request) from error
        stream = _limited_body(response, request)
        return httpx2.Response(response.status, headers=response.raw_headers, stream=stream, request=request)

    def _request(self, prepared: PreparedRequest, body: bytes) -> Awaitable[aiohttp.ClientResponse]:
        return self._connect().request(
            prepared.request.method,
            prepared.url,
            headers=prepared.headers,
            data=body if len(body) < LARGE_BODY else BytesIO(body),
            allow_redirects=False,
            server_hostname=prepared.server_name,
        )

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _connect(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = create_session(self._trust, self._timeout)
        return self._session


async def _read(response: aiohttp.ClientResponse, request: httpx2.Request) -> bytes:
    """Return the complete body; most responses declare a small size."""
    if (response.content_length or MAX_COMPRESSED_BYTES + 1) <= MAX_COMPRESSED_BYTES:
        return await response.read()
    body = _limited_body(response, request)
    try:
        return b"".join([chunk async for chunk in body])
    finally:
        await body.aclose()


def _limited_body(response: aiohttp.ClientResponse, request: httpx2.Request) -> httpx2.AsyncByteStream:
    return limit_size(_StreamedBody(response, request), response.headers, request)


async def read_content(response: httpx2.Response) -> bytes:
    """Return the decoded body of a response; raise httpx2.HTTPError if it fails.

    A buffered body without encoding skips httpx's decoders, which take longer than parsing its JSON.
    """
    stream = response.stream
    if isinstance(stream, _BufferedBody) and "content-encoding" not in response.headers:
        return stream.content
    return await response.aread()


class _BufferedBody(httpx2.AsyncByteStream):
    """A body that has been read completely."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.content


class _StreamedBody(httpx2.AsyncByteStream):
    """A body that is read as it arrives; closing it early closes the connection."""

    def __init__(self, response: aiohttp.ClientResponse, request: httpx2.Request) -> None:
        self._response, self._request = response, request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError) as error:
            raise _httpx_error(error, self._request) from error

    async def aclose(self) -> None:
        self._response.close()


def _httpx_error(error: Exception, request: httpx2.Request) -> httpx2.TransportError:
    equivalent = next(equivalent for kind, equivalent in _EQUIVALENTS if isinstance(error, kind))
    return equivalent(str(error), request=request)
