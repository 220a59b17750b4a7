"""HTTP settings of tools, addresses of servers, and the certificates that clients trust."""

from __future__ import annotations

import os
import random
import ssl
from functools import lru_cache
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints

from framework.types.frozen import Duration, Frozen

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
_NAME = r"(\*\.)?[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*"
Domain = Annotated[str, StringConstraints(pattern=rf"^(\*|({_NAME}|\[[0-9a-f:.]+\])(:[0-9]{{1,5}})?)$", max_length=260)]


def _network(text: str) -> str:
    ip_network(text)  # raises ValueError with the reason
    return text


Network = Annotated[str, AfterValidator(_network)]


class HttpLimits(Frozen):
    """HTTP limits of tools. Hosts that are not listed are not reachable."""

    domains: tuple[Domain, ...] = ()
    """Allowed hosts: `api.example.com`, `*.example.com` for its subdomains, `*` for every public host; `host:8080` for
    a port other than 80 and 443. An IP address listed here, such as `127.0.0.1:8900`, may be private."""
    methods: tuple[Method, ...] = ("GET",)
    """Allowed methods. Methods other than GET and HEAD change data and send data out."""
    private_networks: tuple[Network, ...] = ()
    """Private networks, such as `10.1.0.0/16`, that the listed names may resolve to."""
    max_redirects: Annotated[int, Field(ge=0, le=10)] = 4
    """Maximum number of redirects to follow; each is checked like the first URL."""
    max_bytes: Annotated[int, Field(gt=0, le=100_000_000)] = 1_000_000
    """Maximum size of a response body after decompression; the rest is cut off."""
    timeout: Duration = Field(default=20.0, validate_default=False)
    """Time limit of a request, including its redirects."""

    def narrowed_by(self, other: HttpLimits) -> HttpLimits:
        """Return limits that permit only what both permit."""
        common = [domain for domain in self.domains if other._lists(domain)]
        return HttpLimits(
            domains=(*common, *(domain for domain in other.domains if domain not in common and self._lists(domain))),
            methods=tuple(method for method in self.methods if method in other.methods),
            private_networks=tuple(net for net in self.private_networks if net in other.private_networks),
            max_redirects=min(self.max_redirects, other.max_redirects),
            max_bytes=min(self.max_bytes, other.max_bytes),
            timeout=min(self.timeout, other.timeout),
        )

    def _lists(self, domain: str) -> bool:
        """Return whether these limits list every host that an entry matches."""
        if domain in self.domains or (self.domains and "*" in self.domains and _is_plain(domain)):
            return True
        return any(wide.startswith("*.") and domain.endswith(wide[1:]) for wide in self.domains)


def _is_plain(domain: str) -> bool:
    """Return whether an entry has no port and is not an IP address, so that `*` includes it."""
    return ":" not in domain and not domain.replace(".", "").isdigit()


_DEFAULT_PORTS = {"http": 80, "https": 443}


def server_address(url: str | None) -> tuple[str | None, int | None]:
    """Return host and port of `url`, or (None, None) without a host. The port defaults to that of the scheme."""
    parts = urlsplit(url or "")
    if not parts.hostname:
        return None, None
    return parts.hostname, parts.port or _DEFAULT_PORTS.get(parts.scheme.lower())


_MAX_DOUBLINGS = 64
"""Keeps the power within a float; every `cap` is reached before."""


def backoff(attempt: int, *, base: float, cap: float, spread: float = 1.0) -> float:
    """Return the wait before a retry, in seconds: exponential, capped and random.

    The upper bound is `base * 2**attempt`, and never more than `cap`. The wait is uniformly distributed over the last
    `spread` of it, so that clients that failed together do not retry together. The default is "full jitter", from 0 to
    the bound; a `spread` of 0.5 is "equal jitter". Both are compared in Marc Brooker, "Exponential Backoff And Jitter",
    AWS Architecture Blog, 2015: full jitter causes the fewest calls under contention.

    Args:
        attempt: number of earlier retries, so 0 for the first.
        base: upper bound of the first wait, in seconds.
        cap: upper bound of every wait, in seconds.
        spread: random share of the bound, from 0 (none) to 1 (all of it).
    """
    bound = min(cap, base * 2.0 ** min(attempt, _MAX_DOUBLINGS))
    return bound * random.uniform(1 - spread, 1)


def trusted_certificates() -> ssl.SSLContext:
    """Return a context that all HTTPS clients share; reading the certificates for each takes 20 ms.

    It trusts the certificates of the system, or those that `SSL_CERT_FILE` or `SSL_CERT_DIR` name. A file is read again
    after it has changed.

    If `SSL_CERT_FILE` does not exist, it trusts nobody: connections without TLS, such as to a local model, still work,
    and those with TLS fail (see `missing_certificates`).

    Raises:
        OSError: `SSL_CERT_FILE` or `SSL_CERT_DIR` cannot be read; an ssl.SSLError if it contains no certificates.
    """
    if missing_certificates():
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    return _read(file, folder, Path(file).stat().st_mtime_ns if file else 0)


def missing_certificates() -> str:
    """Return the path in `SSL_CERT_FILE` if there is no such file; else an empty text."""
    file = os.environ.get("SSL_CERT_FILE")
    return file if file and not Path(file).exists() else ""


@lru_cache(maxsize=4)
def _read(_file: str | None, _folder: str | None, _modified: int) -> ssl.SSLContext:
    import httpx2

    return httpx2.create_ssl_context()


@lru_cache(maxsize=256)  # asked before each event of a stream
def is_loopback(host: str) -> bool:
    """Return whether an address or a name always refers to this machine."""
    try:
        address = ip_address(host)
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def server_url(host: str, port: int) -> str:
    """Return the URL at which programs on this machine reach a server with this address."""
    try:
        address = ip_address(host)
    except ValueError:
        return f"http://{host}:{port}"
    if address.is_unspecified:
        address = ip_address("127.0.0.1" if address.version == 4 else "::1")
    return f"http://[{address}]:{port}" if address.version == 6 else f"http://{address}:{port}"
