"""How the openai SDK's requests go out: by aiohttp, without what httpx does for requests of other kinds.

The SDK's own transport looks through its whole pool for each request; merging addresses and headers, cookies,
redirects and authentication cost as much again, and a call to a model needs none of it: docs/design/013-transport.md.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import aiohttp
import httpx2

from framework.llm.http_client import ACCEPT_ENCODING, MAX_COMPRESSED_BYTES, MAX_CONNECTIONS, limit_size

_KEEP_ALIVE = 5.0
"""Seconds; as in the SDK's own transport."""
LARGE_BODY = 1 << 20
"""Bytes; from there on aiohttp wants a file, which it sends in pieces."""
_FAILURES: tuple[tuple[type[Exception], type[httpx2.TransportError]], ...] = (
    (aiohttp.ConnectionTimeoutError, httpx2.ConnectTimeout),
    (TimeoutError, httpx2.ReadTimeout),
    (aiohttp.ClientConnectorError, httpx2.ConnectError),
    (aiohttp.InvalidURL, httpx2.UnsupportedProtocol),
    (aiohttp.NonHttpUrlClientError, httpx2.UnsupportedProtocol),
    (aiohttp.ClientOSError, httpx2.ReadError),
    (aiohttp.ClientError, httpx2.RemoteProtocolError),
    (OSError, httpx2.ReadError),
)
"""What aiohttp raises, and what it is to httpx; the first that fits."""


def create_direct_client(base_url: str | None, timeout: float) -> httpx2.AsyncClient | None:
    """The HTTP client for a server; None: the SDK's own, which knows proxies, and passwords in addresses.

    Args:
        base_url: of the server; None: wherever the SDK goes by itself.
        timeout: seconds without a byte.
    """
    server = urlsplit(base_url or os.environ.get("OPENAI_BASE_URL", "")).netloc
    if "@" in server or getproxies().keys() & {"http", "https", "all"}:
        return None
    return DirectHTTPClient(timeout)


class DirectHTTPClient(httpx2.AsyncClient):
    """Sends headers and bytes as they are. Whatever is more than that, such as a redirect, is left to httpx."""

    def __init__(self, timeout: float) -> None:
        self._direct = _Transport(timeout)
        super().__init__(transport=self._direct, timeout=timeout, follow_redirects=True)
        self._known = httpx2.URL()
        self._known_text = ""

    def build_request(self, method: str, url: httpx2.URL | str, **options: Any) -> httpx2.Request:
        """Make a request; nothing of the client's own is merged into a plain one."""
        content, headers = options.get("content"), options.get("headers")
        if not (isinstance(url, str) and isinstance(content, bytes) and isinstance(headers, list)):
            return super().build_request(method, url, **options)
        if url != self._known_text:  # nearly always the same: taking it apart is a tenth of a request
            self._known, self._known_text = httpx2.URL(url), url
        request = httpx2.Request(
            method,
            self._known if not options.get("params") else self._known.copy_merge_params(options["params"]),
            headers=[*headers, ("accept-encoding", ACCEPT_ENCODING)],
            stream=httpx2.ByteStream(content),  # as `content`, headers would be added that aiohttp adds anyway
            extensions=options.get("extensions"),
        )
        request.read()
        return request

    async def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
        """Send a request; raises httpx2.TransportError."""
        response = await self._direct.handle_async_request(request, whole=not stream)
        if response.is_redirect and response.has_redirect_location:
            await response.aclose()
            return await super().send(request, stream=stream, **options)
        return response


class _Transport(httpx2.AsyncBaseTransport):
    """aiohttp's connections, kept for the next request."""

    def __init__(self, timeout: float) -> None:
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeout, sock_read=timeout)
        self._trust = httpx2.create_ssl_context()
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx2.Request, *, whole: bool = False) -> httpx2.Response:
        body = await request.aread()
        try:
            answer = await self._connect().request(
                request.method,
                str(request.url),
                headers=[(name.decode(), value.decode()) for name, value in request.headers.raw],
                data=body if len(body) < LARGE_BODY else BytesIO(body),
                allow_redirects=False,
                server_hostname=request.extensions.get("sni_hostname"),
            )
            stream = _Whole(await _read(answer, request)) if whole else _pieces(answer, request)
        except (aiohttp.ClientError, OSError) as error:
            raise _failure(error, request) from error
        return httpx2.Response(answer.status, headers=answer.raw_headers, stream=stream, request=request)

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _connect(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS, keepalive_timeout=_KEEP_ALIVE, ssl=self._trust),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=self._timeout,
                auto_decompress=False,
            )
        return self._session


async def _read(answer: aiohttp.ClientResponse, request: httpx2.Request) -> bytes:
    """All of an answer; most say beforehand that they are small."""
    if (answer.content_length or MAX_COMPRESSED_BYTES + 1) <= MAX_COMPRESSED_BYTES:
        return await answer.read()
    pieces = _pieces(answer, request)
    try:
        return b"".join([piece async for piece in pieces])
    finally:
        await pieces.aclose()


def _pieces(answer: aiohttp.ClientResponse, request: httpx2.Request) -> httpx2.AsyncByteStream:
    return limit_size(_Answer(answer, request), answer.headers, request)


async def read_content(response: httpx2.Response) -> bytes:
    """The bytes of an answer, decoded; raises httpx2.HTTPError.

    One that came whole and plain is not taken through httpx's decoders: that takes longer than reading its JSON.
    """
    stream = response.stream
    if isinstance(stream, _Whole) and "content-encoding" not in response.headers:
        return stream.content
    return await response.aread()


class _Whole(httpx2.AsyncByteStream):
    """The bytes of an answer that is there already."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.content


class _Answer(httpx2.AsyncByteStream):
    """The bytes of an answer as they come; closed in the middle, its connection is closed with it."""

    def __init__(self, answer: aiohttp.ClientResponse, request: httpx2.Request) -> None:
        self._answer, self._request = answer, request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._answer.content.iter_any():
                yield piece
        except (aiohttp.ClientError, OSError) as error:
            raise _failure(error, self._request) from error

    async def aclose(self) -> None:
        self._answer.close()


def _failure(error: Exception, request: httpx2.Request) -> httpx2.TransportError:
    meaning = next(meaning for kind, meaning in _FAILURES if isinstance(error, kind))
    return meaning(str(error), request=request)
