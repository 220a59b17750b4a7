"""HTTP for tools: it goes where the operator allows it and nowhere else, and no answer can hold it up or fill it up.

What is allowed is checked twice: the URL before every request, and the address where the socket is opened. A name is
resolved once, all its addresses must be allowed, and the connection goes to one of those: a redirect, or a name that
leads elsewhere the second time, changes nothing. Each request has a connection of its own, so that none is sent into
one that the other side is about to close.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast
from urllib.parse import urljoin

from framework.tools.http.network import (
    CheckedNetwork,
    HttpFailed,
    HttpRefused,
    Resolver,
    resolve_host,
    split_host_port,
)
from framework.tools.http.urls import UrlRefused, WebUrl, parse_canonical_url, parse_url, refuse_ambiguous_path
from framework.types.http import HttpLimits, Method

if TYPE_CHECKING:
    import httpcore2
    import httpx2

_REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_KEPT_ACROSS_HOSTS = frozenset({"accept", "accept-language", "user-agent", "content-type"})
_RESERVED_HEADERS = frozenset(
    [
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ]
)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$&'*+.^_`|~-]{1,100}\Z")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]{0,4000}\Z")
_CHARSET = re.compile(r"charset=[\"']?([A-Za-z0-9_.:-]+)", re.IGNORECASE)
_MAX_HEADERS = 50
_EVERYWHERE = ("0.0.0.0/0", "::/0")


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An answer, whatever its status."""

    url: str
    """Where it came from, after redirects."""
    status: int
    headers: Mapping[str, str]
    """By name in lower case."""
    body: bytes
    """Unpacked."""
    truncated: bool
    """There was more than `max_bytes`."""

    @property
    def content_type(self) -> str:
        """Such as `text/html`; empty if it says none."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def text(self) -> str:
        """The body as text; what cannot be decoded is replaced."""
        charset = _CHARSET.search(self.headers.get("content-type", ""))
        try:
            return self.body.decode(charset[1] if charset else "utf-8", "replace")
        except LookupError:
            return self.body.decode("utf-8", "replace")


class HttpClient:
    """Makes requests within limits. Nothing is kept from one to the next: no connection, no cookie."""

    def __init__(self, limits: HttpLimits, *, resolver: Resolver = resolve_host) -> None:
        """Take what is allowed.

        Args:
            limits: `context.http` in a tool: what `tools.http` in agentsd.yaml allows.
            resolver: finds the addresses of a host.
        """
        self._limits = limits
        self._network = CheckedNetwork(limits, resolver)

    @classmethod
    def to(cls, server: str | WebUrl, *, timeout: float = 20.0) -> HttpClient:
        """A client of one server that the operator, not a model, has named: it may be on a private network.

        Raises:
            UrlRefused: the URL is no plain http(s) address.
        """
        url = parse_url(server) if isinstance(server, str) else server
        server_only = (f"{url.url_host}:{url.port}",)
        methods: tuple[Method, ...] = ("GET", "POST")
        return cls(HttpLimits(domains=server_only, methods=methods, private_networks=_EVERYWHERE, timeout=timeout))

    async def request(
        self,
        method: str,
        url: str | WebUrl,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        follow: bool = True,
    ) -> HttpReply:
        """Make a request and read the answer.

        Args:
            method: in capitals.
            url: where to.
            headers: sent along; to another host that it is redirected to, only those that say what is understood.
            body: sent along; its content-type is one of the headers.
            follow: redirects, each of which must be allowed as well; otherwise a redirect is the answer.

        Raises:
            UrlRefused: the URL is no plain http(s) address, or not in its plain spelling.
            HttpRefused: it is not allowed, with what would allow it.
            HttpFailed: there was no answer, or none that can be read.
        """
        target_url = parse_canonical_url(url) if isinstance(url, str) else url
        request_headers = validate_headers(headers or {})
        try:
            async with asyncio.timeout(self._limits.timeout):
                return await self._follow(method, target_url, request_headers, body, follow)
        except TimeoutError:
            message = (
                f"{target_url.host} did not answer in full within {self._limits.timeout:g}s{_unknown_outcome(method)}"
            )
            raise HttpFailed(message) from None

    async def _follow(
        self, method: str, url: WebUrl, headers: dict[str, str], body: bytes | None, follow: bool
    ) -> HttpReply:
        for _ in range(self._limits.max_redirects + 1):
            self._check(method, url)
            reply = await self._exchange(method, url, headers, body)
            location = reply.headers.get("location")
            if not follow or reply.status not in _REDIRECT_STATUSES or not location:
                return reply
            target = _redirect_target(url, location)
            if reply.status == 303 or (reply.status in {301, 302} and method == "POST"):
                method, body = "HEAD" if method == "HEAD" else "GET", None
                headers = {name: value for name, value in headers.items() if name != "content-type"}
            if target.origin != url.origin:
                headers = {name: value for name, value in headers.items() if name in _KEPT_ACROSS_HOSTS}
            url = target
        raise HttpFailed(f"more than {self._limits.max_redirects} redirects: the last one leads to {url}")

    def _check(self, method: str, url: WebUrl) -> None:
        if method not in self._limits.methods:
            listed = ", ".join((*self._limits.methods, method))
            line = f"tools: {{http: {{methods: [{listed}]}}}}"
            raise HttpRefused(f"tools may not send {method} requests; agentsd.yaml would allow it: {line}")
        if not any(_entry_matches(entry, url) for entry in self._limits.domains):
            entry = url.url_host if url.port in {80, 443} else f"{url.url_host}:{url.port}"
            listed = ", ".join(self._limits.domains) or "nothing"
            line = f'tools: {{http: {{domains: ["{entry}"]}}}}'
            raise HttpRefused(f"tools may not reach {entry}; allowed: {listed}. agentsd.yaml would allow it: {line}")

    async def _exchange(self, method: str, url: WebUrl, headers: dict[str, str], body: bytes | None) -> HttpReply:
        import httpcore2
        import httpx2

        host = url.origin.partition("://")[2]
        defaults = {"user-agent": "agentsd", "accept": "*/*"}
        request_headers = {**defaults, **headers, "accept-encoding": "gzip, deflate", "host": host}
        content = (body or b"") if method not in _SAFE_METHODS or body else None
        httpcore_url = httpcore2.URL(scheme=url.scheme, host=url.host, port=url.port, target=url.target)
        # the client only calls methods of its network; its base class would have to be imported to be inherited
        network = cast("httpcore2.AsyncNetworkBackend", self._network)
        try:
            async with (
                httpcore2.AsyncConnectionPool(network_backend=network) as pool,
                pool.stream(method, httpcore_url, headers=list(request_headers.items()), content=content) as reply,
            ):
                response = httpx2.Response(reply.status, headers=reply.headers, content=reply.aiter_stream())
                read, truncated = await self._read(response)
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, httpx2.HTTPError) as error:
            why = f": {error}" if str(error) else ""
            raise HttpFailed(f"no usable answer from {url.host}{why}{_unknown_outcome(method)}") from None
        received = {name.lower(): value for name, value in response.headers.items()}
        return HttpReply(str(url), reply.status, received, read, truncated)

    async def _read(self, response: httpx2.Response) -> tuple[bytes, bool]:
        body = bytearray()
        async with aclosing(response.aiter_bytes()) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) > self._limits.max_bytes:
                    return bytes(body[: self._limits.max_bytes]), True
        return bytes(body), False


def validate_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers by name in lower case; raises HttpRefused for those that could change what the request is."""
    checked: dict[str, str] = {}
    for given, value in headers.items():
        name = given.lower()
        if not _HEADER_NAME.match(given) or not _HEADER_VALUE.match(value):
            raise HttpRefused(f"the header {given[:80]!r} is not one line of plain ASCII text")
        if name in _RESERVED_HEADERS or name.startswith("proxy-"):
            raise HttpRefused(f"the header {name!r} is not yours to set: leave it away")
        if name in checked:
            raise HttpRefused(f"the header {name!r} is given twice")
        checked[name] = value
    if len(checked) > _MAX_HEADERS:
        raise HttpRefused(f"there are more than {_MAX_HEADERS} headers")
    return checked


def _entry_matches(entry: str, url: WebUrl) -> bool:
    host, port = split_host_port(entry)
    if url.port not in ((80, 443) if port is None else (port,)):
        return False
    if host.startswith("*"):
        return url.host.endswith(host[1:])
    return url.host == host


def _redirect_target(url: WebUrl, location: str) -> WebUrl:
    if not location.isascii() or any(char <= " " or char == "\\" for char in location):
        raise HttpRefused(f"{url.host} redirects to something that is no plain URL")
    scheme, mark, rest = urljoin(str(url), location).partition("://")
    host, slash, path = rest.partition("/")
    try:
        target = parse_url(scheme.lower() + mark + host.lower() + slash + path)
        refuse_ambiguous_path(target)
    except UrlRefused as error:
        raise HttpRefused(f"{url.host} redirects to where tools do not go: {error.message}") from None
    if url.scheme == "https" and target.scheme == "http":
        raise HttpRefused(f"{url.host} redirects from https to http, which anybody can read")
    return target


def _unknown_outcome(method: str) -> str:
    return "" if method in _SAFE_METHODS else "; whether it took effect is unknown"
