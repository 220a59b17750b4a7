"""HTTP limits of tools: the operator sets them, and no agent can raise them."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Annotated, Literal

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
