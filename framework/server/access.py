"""Access control: requests need a key of `server.api_keys` or, without keys, must be local."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from hmac import compare_digest
from ipaddress import ip_address

from pydantic import SecretStr

from framework.server.errors import AccessDenied, Unauthenticated

_OTHER_SITE = "requests from web pages of other sites are refused; set server.api_keys, and send a key"
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9.-]+))(?::[0-9]{1,5})?")
"""A Host header: an address or a name, and a port. URL parsers accept more, and disagree with each other."""

AccessCheck = Callable[[Mapping[str, str], str | None], None]
"""Called with the headers and the client's address. Raises Unauthenticated or AccessDenied."""


def access_check(keys: Callable[[], Sequence[SecretStr]]) -> AccessCheck:
    """Return a check that calls `keys` for each request, so that edits of the keys apply immediately."""

    def check(headers: Mapping[str, str], client: str | None) -> None:
        if current := keys():
            _check_key(headers.get("authorization", ""), current)
        else:
            _check_local(headers, client)

    return check


def _check_key(authorization: str, keys: Sequence[SecretStr]) -> None:
    scheme, _, credential = authorization.partition(" ")
    digest = _digest(credential.strip())
    # All keys are compared, so that the response time does not depend on which one matches.
    matches = [compare_digest(digest, _digest(key.get_secret_value())) for key in keys]
    if scheme.lower() != "bearer" or not any(matches):
        raise Unauthenticated("missing or invalid key: send a key of this server as `Authorization: Bearer KEY`")


def _check_local(headers: Mapping[str, str], client: str | None) -> None:
    """Raise AccessDenied unless the client is a program on this machine. Web pages opened on it are refused."""
    if client is None or not is_loopback(client):
        raise AccessDenied("requests from other machines are refused because server.api_keys is not set")
    host = headers.get("host", "")
    if not _names_loopback(host):
        raise AccessDenied("the Host header names another machine; use 127.0.0.1 or localhost, or set server.api_keys")
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        raise AccessDenied(_OTHER_SITE)
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):  # images and forms send no Origin
        raise AccessDenied(_OTHER_SITE)


def is_loopback(host: str) -> bool:
    """Return whether an address or a name always refers to this machine."""
    try:
        address = ip_address(host)
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _names_loopback(host: str) -> bool:
    match = _HOST.fullmatch(host)
    return match is not None and is_loopback(match[1] or match[2])


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogateescape")).digest()
