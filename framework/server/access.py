"""Who may ask. With `server.api_keys` whoever shows one of them; without, only programs on this machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from hmac import compare_digest
from ipaddress import ip_address

from pydantic import SecretStr

from framework.server.errors import AccessDenied, Unauthenticated

_OTHER_SITE = "pages of other sites may not ask; set server.api_keys, and send one"
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9.-]+))(?::[0-9]{1,5})?")
"""A Host header: an address or a name, and a port. URL parsers accept more, each something else."""

AccessCheck = Callable[[Mapping[str, str], str | None], None]
"""Is told a request's headers and its client's address; raises Unauthenticated or AccessDenied."""


def access_check(keys: Callable[[], Sequence[SecretStr]]) -> AccessCheck:
    """Judges each request by the keys that hold at that moment."""

    def admit(headers: Mapping[str, str], client: str | None) -> None:
        if now := keys():
            _check_key(headers.get("authorization", ""), now)
        else:
            _check_local(headers, client)

    return admit


def _check_key(authorization: str, keys: Sequence[SecretStr]) -> None:
    scheme, _, given = authorization.partition(" ")
    shown = _digest(given.strip())
    known = [compare_digest(shown, _digest(key.get_secret_value())) for key in keys]  # all: no time tells which
    if scheme.lower() != "bearer" or not any(known):
        raise Unauthenticated("a key of this server is needed, as the header `Authorization: Bearer KEY`")


def _check_local(headers: Mapping[str, str], client: str | None) -> None:
    """A web page that a person of this machine has open is not: it may send requests, but under names of its own."""
    if client is None or not is_loopback(client):
        raise AccessDenied("only this machine may ask, for server.api_keys are not set")
    host = headers.get("host", "")
    if not _names_loopback(host):
        raise AccessDenied("the Host header names another machine; ask for 127.0.0.1 or localhost, or set api_keys")
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        raise AccessDenied(_OTHER_SITE)
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):  # of images and forms, without an Origin
        raise AccessDenied(_OTHER_SITE)


def is_loopback(host: str) -> bool:
    """Whether an address, or a name, can only be this machine."""
    try:
        address = ip_address(host)
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _names_loopback(host: str) -> bool:
    named = _HOST.fullmatch(host)
    return named is not None and is_loopback(named[1] or named[2])


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogateescape")).digest()
