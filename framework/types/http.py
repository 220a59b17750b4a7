"""What tools may reach over HTTP: a ceiling that the operator sets and no agent raises."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from framework.types.frozen import Duration, Frozen

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
_NAME = r"(\*\.)?[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*"
Domain = Annotated[str, StringConstraints(pattern=rf"^(\*|({_NAME}|\[[0-9a-f:.]+\])(:[0-9]{{1,5}})?)$", max_length=260)]


def _network(text: str) -> str:
    ip_network(text)  # its ValueError says what is wrong
    return text


Network = Annotated[str, AfterValidator(_network)]


class HttpLimits(Frozen):
    """What tools may reach over HTTP. Nothing, unless it is listed."""

    domains: tuple[Domain, ...] = ()
    """Hosts: `api.example.com`, `*.example.com` for all below it, `*` for every public one; `host:8080` for a port
    other than 80 and 443. An address that is written here, such as `127.0.0.1:8900`, may be private."""
    methods: tuple[Method, ...] = ("GET",)
    """What may be done there; methods other than GET and HEAD change things and send data away."""
    private_networks: tuple[Network, ...] = ()
    """Private networks, such as `10.1.0.0/16`, that the listed names may lead to."""
    max_redirects: Annotated[int, Field(ge=0, le=10)] = 4
    """How many redirects are followed, each checked like the first address."""
    max_bytes: Annotated[int, Field(gt=0, le=100_000_000)] = 1_000_000
    """How much of an answer is read, unpacked; the rest is cut off."""
    timeout: Duration = Field(default=20.0, validate_default=False)
    """How long one request may take in all, with its redirects."""

    def narrowed_by(self, other: HttpLimits) -> HttpLimits:
        """The same, but permitting only what the other permits as well."""
        kept = [domain for domain in self.domains if other._lists(domain)]
        return HttpLimits(
            domains=(*kept, *(domain for domain in other.domains if domain not in kept and self._lists(domain))),
            methods=tuple(method for method in self.methods if method in other.methods),
            private_networks=tuple(net for net in self.private_networks if net in other.private_networks),
            max_redirects=min(self.max_redirects, other.max_redirects),
            max_bytes=min(self.max_bytes, other.max_bytes),
            timeout=min(self.timeout, other.timeout),
        )

    def _lists(self, domain: str) -> bool:
        """Whether all that a listed domain stands for is listed here too."""
        if domain in self.domains or (self.domains and "*" in self.domains and _is_plain(domain)):
            return True
        return any(wide.startswith("*.") and domain.endswith(wide[1:]) for wide in self.domains)


def _is_plain(domain: str) -> bool:
    """A name that stands for public addresses at the usual ports, as `*` does: no address, no port."""
    return ":" not in domain and not domain.replace(".", "").isdigit()
