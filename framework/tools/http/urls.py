"""Parses http(s) URLs and rejects those that clients or servers read in different ways.

Where a canonical spelling exists, the rejection names it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from urllib.parse import quote, unquote

from framework.types.errors import ToolError

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
