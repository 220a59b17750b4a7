"""HTTP requests of tools: which URLs they may reach, the client that checks each of them, and `http_request`."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, Any, NoReturn, cast
from urllib.parse import quote, unquote, urljoin

from framework.tools.tool import ToolContext, tool
from framework.types.errors import ToolError
from framework.types.http import HttpLimits, Method

if TYPE_CHECKING:
    import httpcore2
    import httpx2


# Where a canonical spelling exists, the rejection names it.


_MAX_LENGTH = 4000
_DEFAULT_PORTS = {"http": 80, "https": 443}
_URL = re.compile(r"(https?)://([^/?#]*)([^#]*)(?:#.*)?\Z")
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:]+)(?::([0-9]{1,5}))?\Z")
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*\Z")
_NUMERIC_END = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)\Z")
_NONCANONICAL_ESCAPE = re.compile(r"%(?![0-9A-F]{2})|%(?:2[DE]|3[0-9]|[46][1-9A-F]|[57][0-9A]|5F|7E)")
"""An escape that is not in the form `%2F`, or that encodes a letter, a digit or one of `-._~`."""
_DOTS = re.compile(r"/\.{1,2}(?:[/?]|\Z)")


_MAX_DECODE_ROUNDS = 4
_URL_CHARS = "%/?#[]@!$&'()*+,;=:~-._"
"""Characters that `quote` keeps in the part of a URL after its host."""


class UrlRefused(ToolError):
    """A URL that is rejected. The message has the reason, and the form that is accepted."""

    code = "url_refused"


@dataclass(frozen=True, slots=True)
class WebUrl:
    """A parsed URL."""

    scheme: str
    host: str
    """Host in lower case; an IPv6 address has no brackets."""
    port: int
    target: str
    """Path and query."""

    @property
    def origin(self) -> str:
        """Scheme, host and, if it is not the scheme's default, port."""
        port = "" if self.port == _DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{self.url_host}{port}"

    @property
    def url_host(self) -> str:
        """Host as written in a URL: an IPv6 address has brackets."""
        return f"[{self.host}]" if ":" in self.host else self.host

    def __str__(self) -> str:
        return self.origin + self.target


def parse_http_url(text: str) -> WebUrl:
    """Parse a URL.

    Raises:
        UrlRefused: the URL is not a plain http(s) URL, contains a user, or could be read as another host.
    """
    if len(text) > _MAX_LENGTH:
        raise UrlRefused(f"the URL is longer than {_MAX_LENGTH} characters")
    if not text.isascii():
        raise UrlRefused("the URL has characters outside ASCII: write its host as xn--…, the rest with %XX")
    if any(char <= " " or char in '\x7f\\"<>^`{|}' for char in text):
        raise UrlRefused("the URL has a space, line break, backslash or other character that must be written as %XX")
    match = _URL.match(text)
    if match is None:
        raise UrlRefused("the URL must begin with http:// or https://, in lower case")
    scheme, authority, target = match.groups()
    if "@" in authority:
        raise UrlRefused("the URL has a user before its host: remove everything up to the '@'")
    parts = _AUTHORITY.match(authority)
    if parts is None:
        raise UrlRefused(
            f"the URL's host {authority[:80]!r} is not valid: write it in lower case, as host or host:port"
        )
    port = int(parts[2]) if parts[2] else _DEFAULT_PORTS[scheme]
    if not 0 < port < 65536:
        raise UrlRefused(f"there is no port {port}")
    return WebUrl(scheme, _parse_host(parts[1]), port, target if target.startswith("/") else "/" + target)


def parse_canonical_url(text: str) -> WebUrl:
    """Parse a URL like `parse_http_url`, but accept only its canonical spelling, because policy rules match it as text.

    Raises:
        UrlRefused: the URL is not valid, or clients would rewrite it; the message then names the canonical spelling.
    """
    url = parse_http_url(text)
    plain = text.partition("#")[0]
    path = url.target.partition("?")[0]
    if _DOTS.search(path) or _NONCANONICAL_ESCAPE.search(url.target):
        raise UrlRefused("the URL has '.', '..', or an escape that is not needed or not like %2F: write it without")
    refuse_ambiguous_path(url)
    if str(url) not in (plain, plain + "/"):
        raise UrlRefused(f"write the URL as {url}")
    return url


def ascii_url(text: str) -> WebUrl:
    """Parse a URL that a server shows to people; its host is converted to ASCII, so that look-alike letters show.

    Raises:
        UrlRefused: the URL is not a plain http(s) URL, contains a user, or could be read as another host.
    """
    scheme, mark, rest = text.strip().partition("://")
    host, slash, path = rest.partition("/")
    try:
        plain_host = host.lower().encode("idna").decode() if not host.isascii() else host.lower()
    except UnicodeError:
        raise UrlRefused(f"the URL's host is not valid: {host[:80]!r}") from None
    return parse_http_url(f"{scheme.lower()}{mark}{plain_host}{slash}{quote(path, safe=_URL_CHARS)}")


def refuse_ambiguous_path(url: WebUrl) -> None:
    """Raise UrlRefused for a path that some servers read as another one: `..%2F`, `..;`, `%5C`, `%00` or `//`.

    Proxies and servers decode a path at different times, and some decode it twice, so every decoded form is checked.
    """
    path = url.target.partition("?")[0]
    decoded = path
    for _ in range(_MAX_DECODE_ROUNDS):
        if "\\" in decoded or "\0" in decoded:
            raise UrlRefused(
                "the URL's path has a backslash or a zero byte (%5C, %00), which servers read in different ways"
            )
        if any(part.partition(";")[0].strip() in (".", "..") for part in decoded.split("/")):
            raise UrlRefused("the URL's path has a disguised '.' or '..', such as ..%2F or ..;: write it without")
        before, decoded = decoded, unquote(decoded, errors="replace")
        if decoded == before:
            break
    if "//" in path:
        raise UrlRefused("the URL's path has '//', which some servers read as '/': write a single '/'")


def _parse_host(text: str) -> str:
    """Return a valid host name, or an IP address in canonical spelling: `127.1` and `0x7f000001` are rejected."""
    if text.startswith("["):
        try:
            return str(IPv6Address(text[1:-1]))
        except AddressValueError:
            raise UrlRefused(f"{text[:80]!r} is not an IPv6 address") from None
    if _NUMERIC_END.match(text):
        try:
            return str(IPv4Address(text))
        except AddressValueError:
            raise UrlRefused(f"{text[:80]!r} is not an IPv4 address: write four decimals, as in 192.0.2.1") from None
    if not _NAME.match(text):
        advice = "remove the dot at its end" if text.endswith(".") else "write it in lower case"
        raise UrlRefused(f"the URL's host {text[:80]!r} is not a plain name: {advice}")
    return text


_Address = IPv4Address | IPv6Address

ALWAYS_REFUSED = tuple(
    ip_network(text)
    for text in (
        "169.254.0.0/16",  # link-local: the metadata service of most clouds, with credentials
        "168.63.129.16/32",  # of Azure
        "100.100.100.200/32",  # of Alibaba Cloud
        "192.0.0.192/32",  # of Oracle Cloud
        "fd00:ec2::/32",  # of AWS
        "fd20:ce::/32",  # of Google Cloud
        "fe80::/10",  # link-local
    )
)
"""Metadata services and link-local addresses: refused even inside a network that the operator lists."""
_TUNNELS = tuple(ip_network(text) for text in ("2001::/32", "2002::/16", "192.88.99.0/24"))
"""Teredo and 6to4 tunnels: they hide the IPv4 address they lead to, and no public service needs them."""
_PUBLIC_V6 = ip_network("2000::/3")
_NAT64 = ip_network("64:ff9b::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)


def is_allowed_address(text: str, private_networks: Iterable[str] = ()) -> bool:
    """Return whether tools may connect to an address: it is public or in a listed network, and no metadata service."""
    try:
        address = ip_address(text)
    except ValueError:
        return False
    target = _embedded_ipv4(address)
    if any(address in network or target in network for network in ALWAYS_REFUSED) or getattr(address, "scope_id", None):
        return False
    allowed_networks = [ip_network(network) for network in private_networks]
    return any(target in network for network in allowed_networks) or _is_public(target)


def _embedded_ipv4(address: _Address) -> _Address:
    """Return the IPv4 address that an IPv6 address represents, or the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped:
        return address.ipv4_mapped
    number = int(address)
    if address in _NAT64 or number >> 32 & 0xFFFFFFFF in _ISATAP:
        return IPv4Address(number & 0xFFFFFFFF)
    return address


def _is_public(address: _Address) -> bool:
    if any(address in network for network in _TUNNELS):
        return False
    if isinstance(address, IPv6Address) and address not in _PUBLIC_V6:
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns all addresses of a host and port; raises OSError if it has no address."""


class HttpRefused(ToolError):
    """A request that is not allowed. The message says what to change, such as a line of agentsd.yaml."""

    code = "http_refused"


class HttpFailed(ToolError):
    """A request without a usable response. The message says what came instead."""

    code = "http_failed"


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host from the system's resolver; raises OSError."""
    entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


def split_host_port(entry: str) -> tuple[str, int | None]:
    """Split an entry of `tools.http.domains` into host and port, and remove the brackets of an IPv6 address."""
    host, _, port = entry.rpartition(":")
    if not host or not port.isdecimal():
        host, port = entry, ""
    return (_normalized_address(host[1:-1]) if host.startswith("[") else host), int(port) if port else None


def _normalized_address(address: str) -> str:
    try:
        return str(ip_address(address))
    except ValueError:
        return address


def is_address(host: str) -> bool:
    """Return whether a host is an IP address, not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


class CheckedNetwork:
    """Opens connections for httpcore2, to allowed addresses only."""

    def __init__(self, limits: HttpLimits, resolver: Resolver) -> None:
        self._networks = limits.private_networks
        self._listed_addresses = frozenset(host for host, _ in map(split_host_port, limits.domains) if is_address(host))
        self._resolver = resolver

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to an allowed address of the host; raises HttpRefused or HttpFailed."""
        import httpcore2

        failure = ""
        for address in await self.addresses(host, port):
            try:
                return await httpcore2.AnyIOBackend().connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = str(error)
        raise HttpFailed(f"cannot connect to {host}:{port}: {failure}")

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a host; raises HttpRefused if one is not allowed, HttpFailed if there is none."""
        try:
            addresses = [host] if is_address(host) else await self._resolver(host, port)
        except (OSError, UnicodeError):
            addresses = []
        if not addresses:
            raise HttpFailed(f"there is no host named {host}")
        networks = (*self._networks, host) if host in self._listed_addresses else self._networks
        if not all(is_allowed_address(address, networks) for address in addresses):
            raise HttpRefused(
                f"{host} resolves to an address that is not public: the operator can allow private networks with "
                "tools.http.private_networks in agentsd.yaml, but no metadata service"
            )
        return addresses

    async def connect_unix_socket(self, *_: object, **__: object) -> NoReturn:
        """Raise HttpRefused: unix sockets are not allowed."""
        raise HttpRefused("unix sockets are not allowed")

    async def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""
        await asyncio.sleep(seconds)


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
    """A response with any status."""

    url: str
    """URL of the response, after redirects."""
    status: int
    headers: Mapping[str, str]
    """Headers by name in lower case."""
    body: bytes
    """Decompressed body, at most `max_bytes` long."""
    truncated: bool
    """Whether the body was longer than `max_bytes`."""

    @property
    def content_type(self) -> str:
        """Media type, such as `text/html`; empty if the response has none."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def text(self) -> str:
        """Body as text; bytes that cannot be decoded are replaced."""
        charset = _CHARSET.search(self.headers.get("content-type", ""))
        try:
            return self.body.decode(charset[1] if charset else "utf-8", "replace")
        except LookupError:
            return self.body.decode("utf-8", "replace")


class HttpClient:
    """Sends requests within limits. No connection and no cookie is kept between requests."""

    def __init__(self, limits: HttpLimits, *, resolver: Resolver = resolve_host) -> None:
        """Create a client.

        Args:
            limits: the limits set under `tools.http` in agentsd.yaml; a tool passes `context.http`.
            resolver: returns the addresses of a host.
        """
        self._limits = limits
        self._network = CheckedNetwork(limits, resolver)
        self._only = ""
        """The only server, if the operator chose one."""

    @classmethod
    def to(cls, server: str | WebUrl, *, timeout: float = 20.0, **more: Any) -> HttpClient:
        """Return a client for one server that the operator chose, not a model; it may be on a private network.

        `more` are other limits of `HttpLimits`; by default, GET and POST requests are allowed.

        Raises:
            UrlRefused: the URL is not a plain http(s) URL.
        """
        url = parse_http_url(server) if isinstance(server, str) else server
        limits = {"methods": ("GET", "POST"), "private_networks": _EVERYWHERE, "timeout": timeout} | more
        client = cls(HttpLimits(domains=(f"{url.url_host}:{url.port}",), **limits))
        client._only = url.origin
        return client

    async def request(
        self,
        method: str,
        url: str | WebUrl,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        follow: bool = True,
    ) -> HttpReply:
        """Send a request and read the response.

        Args:
            method: the HTTP method, in capitals.
            url: the URL, in its canonical spelling.
            headers: request headers. After a redirect to another host, only `accept`, `accept-language`, `user-agent`
                and `content-type` are sent.
            body: the request body; its content type is one of the headers.
            follow: follow redirects, each of which must be allowed, too; otherwise return the redirect.

        Raises:
            UrlRefused: the URL is not a plain http(s) URL, or not in its canonical spelling.
            HttpRefused: the request is not allowed; the message names the setting that would allow it.
            HttpFailed: there was no response, or none that can be read.
        """
        target_url = parse_canonical_url(url) if isinstance(url, str) else url
        request_headers = validate_headers(headers or {})
        try:
            async with asyncio.timeout(self._limits.timeout):
                return await self._follow(method, target_url, request_headers, body, follow)
        except TimeoutError:
            message = (
                f"{target_url.host} did not respond in full within {self._limits.timeout:g}s{_unknown_outcome(method)}"
            )
            raise HttpFailed(message) from None

    async def _follow(
        self, method: str, url: WebUrl, headers: dict[str, str], body: bytes | None, follow: bool
    ) -> HttpReply:
        for _ in range(self._limits.max_redirects + 1):
            self.check(method, url)
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
        last = str(url).partition("?")[0]  # the query may contain a key
        raise HttpFailed(f"more than {self._limits.max_redirects} redirects: the last one is to {last}")

    def check(self, method: str, url: str | WebUrl) -> None:
        """Raise UrlRefused or HttpRefused if a request is not allowed, without sending it."""
        url = parse_canonical_url(url) if isinstance(url, str) else url
        if method not in self._limits.methods:
            listed = ", ".join((*self._limits.methods, method))
            line = f"tools: {{http: {{methods: [{listed}]}}}}"
            raise HttpRefused(f"tools may not send {method} requests: to allow it, write in agentsd.yaml: {line}")
        if not any(_entry_matches(entry, url) for entry in self._limits.domains):
            if self._only:
                raise HttpRefused(f"{self._only} redirects to {url.origin}, which is another server: it is not called")
            entry = url.url_host if url.port in {80, 443} else f"{url.url_host}:{url.port}"
            listed = ", ".join(self._limits.domains) or "none"
            line = f'tools: {{http: {{domains: ["{entry}"]}}}}'
            raise HttpRefused(
                f"tools may not reach {entry}; allowed: {listed}. To allow it, write in agentsd.yaml: {line}"
            )

    async def _exchange(self, method: str, url: WebUrl, headers: dict[str, str], body: bytes | None) -> HttpReply:
        import httpcore2
        import httpx2

        host = url.origin.partition("://")[2]
        defaults = {"user-agent": "agentsd", "accept": "*/*"}
        request_headers = {**defaults, **headers, "accept-encoding": "gzip, deflate", "host": host}
        content = (body or b"") if method not in _SAFE_METHODS or body else None
        httpcore_url = httpcore2.URL(scheme=url.scheme, host=url.host, port=url.port, target=url.target)
        # httpcore2 only calls the methods of a network backend; inheriting its class would import httpcore2 early
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
            raise HttpFailed(f"no usable response from {url.host}{why}{_unknown_outcome(method)}") from None
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
    """Return headers by name in lower case; raise HttpRefused for those that could change the request itself."""
    checked: dict[str, str] = {}
    for header, value in headers.items():
        name = header.lower()
        if not _HEADER_NAME.match(header) or not _HEADER_VALUE.match(value):
            raise HttpRefused(f"the header {header[:80]!r} is not one line of plain ASCII text")
        if name in _RESERVED_HEADERS or name.startswith("proxy-"):
            raise HttpRefused(f"the header {name!r} is set by the client: remove it")
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
        raise HttpRefused(f"{url.host} redirects to a URL that is not plain ASCII without spaces")
    scheme, mark, rest = urljoin(str(url), location).partition("://")
    host, slash, path = rest.partition("/")
    try:
        target = parse_http_url(scheme.lower() + mark + host.lower() + slash + path)
        refuse_ambiguous_path(target)
    except UrlRefused as error:
        raise HttpRefused(f"{url.host} redirects to a URL that is not allowed: {error.message}") from None
    if url.scheme == "https" and target.scheme == "http":
        raise HttpRefused(f"{url.host} redirects from https to http, which is not encrypted")
    return target


def _unknown_outcome(method: str) -> str:
    return "" if method in _SAFE_METHODS else "; whether it took effect is unknown"


MAX_BODY_CHARS = 20_000
_SHOWN_HEADERS = ("content-type", "location", "retry-after", "etag", "last-modified", "link")


def _preview(
    url: str,
    method: Method,
    headers: Mapping[str, str] | None,
    body: str | None,
    data: Any,
    context: ToolContext,
) -> str:
    """Raise ToolError if `http_request` would send nothing."""
    validate_headers(_content(method, body, data, headers or {})[1])
    HttpClient(context.http).check(method, url)
    return ""


@tool(risk="high", urls="url", preview=_preview)
async def http_request(
    url: str,
    method: Method = "GET",
    headers: dict[str, str] | None = None,
    body: str | None = None,
    data: Any = None,
    *,
    context: ToolContext,
) -> dict[str, Any]:
    """Send one HTTP request to an allowed server; return the status, a few headers and the body as text.

    A redirect is not followed: its address is in the header location.

    Args:
        url: An http(s) URL in its plain spelling, such as https://api.example.com/orders?id=3.
        method: The HTTP method.
        headers: Request headers.
        body: Text to send.
        data: Values to send as JSON, instead of body.
        context: The run.
    """
    content, request_headers = _content(method, body, data, dict(headers or {}))
    # The model decides about a redirect: the policy evaluates the next call like this one.
    reply = await HttpClient(context.http).request(method, url, headers=request_headers, body=content, follow=False)
    text = _text(reply)
    return {
        "status": reply.status,
        "headers": {name: reply.headers[name][:500] for name in _SHOWN_HEADERS if name in reply.headers},
        "body": text[:MAX_BODY_CHARS],
        "truncated": reply.truncated or len(text) > MAX_BODY_CHARS,
    }


def _content(
    method: Method, body: str | None, data: Any, headers: Mapping[str, str]
) -> tuple[bytes | None, dict[str, str]]:
    """Return the encoded body, and the headers with its content type."""
    if body is None and data is None:
        return None, dict(headers)
    if body is not None and data is not None:
        raise ToolError("give either body or data, not both")
    if method in {"GET", "HEAD"}:
        raise ToolError(f"{method} has no body: put the parameters into the URL, or use POST")
    content_type = "text/plain; charset=utf-8" if data is None else "application/json"
    text = json.dumps(data, ensure_ascii=False) if body is None else body
    has_type = "content-type" in {name.lower() for name in headers}
    return text.encode("utf-8", "replace"), {**headers, **({} if has_type else {"content-type": content_type})}


def _text(reply: HttpReply) -> str:
    if b"\0" in reply.body[:8192]:
        return f"(binary, {len(reply.body)} bytes{' or more' if reply.truncated else ''})"
    return reply.text
