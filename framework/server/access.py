"""Access control: requests need a key of `server.api_keys` or, without keys, must be local."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from hmac import compare_digest

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from framework.config.api_keys import ApiKey, key_digest, text_digest
from framework.server.errors import AccessDenied, Unauthenticated
from framework.server.identity import FULL_ACCESS, LOCAL, Identify, Identity
from framework.server.loopback import is_loopback

_OTHER_SITE = (
    "requests from web pages of other sites are refused; set server.api_keys and send a key, or add the page's origin "
    "to server.cors_origins"
)
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9.-]+))(?::[0-9]{1,5})?")
"""A Host header: an address or a name, and a port. URL parsers accept more, and disagree with each other."""

_KEY_PARAMETERS = ("key", "api_key", "apikey", "api-key", "token", "access_token")
"""Names under which clients put keys into URLs."""


def access_check(
    keys: Callable[[], tuple[SecretStr | ApiKey, ...]], origins: Callable[[], Collection[str]] = tuple
) -> Identify:
    """Return a check that calls `keys` and `origins` for each request, so that edits of them apply immediately.

    Args:
        keys: returns `server.api_keys`.
        origins: returns `server.cors_origins`, whose pages have access like programs of this machine.
    """
    ring = _KeyRing(())

    def check(connection: HTTPConnection) -> Identity:
        nonlocal ring
        current = keys()
        if not current:
            _check_local(connection.headers, connection.client.host if connection.client else None, origins())
            return LOCAL
        if ring.keys is not current:
            ring = _KeyRing(current)
        return ring.identity_of(connection)

    return check


class _KeyRing:
    """The digests of all keys, with their identities."""

    def __init__(self, keys: tuple[SecretStr | ApiKey, ...]) -> None:
        self.keys = keys
        self._identities = [
            (key_digest(key), Identity.of_key(key) if isinstance(key, ApiKey) else FULL_ACCESS) for key in keys
        ]

    def identity_of(self, connection: HTTPConnection) -> Identity:
        """Return the identity whose key a request sends; raise Unauthenticated if it sends none of them."""
        sent = connection.headers.getlist("authorization")
        if len(sent) > 1:
            raise Unauthenticated("the request has several Authorization headers: send one, with `Bearer KEY`")
        scheme, _, credential = (sent[0] if sent else "").partition(" ")
        digest = text_digest(credential.strip(" "))
        found: Identity | None = None
        for key, identity in self._identities:  # all are compared: the time does not depend on which one matches
            found = identity if compare_digest(digest, key) else found
        if scheme.lower() == "bearer" and found is not None:
            return found
        if not sent and any(name.lower() in _KEY_PARAMETERS for name in connection.query_params):
            raise Unauthenticated(
                "keys in the URL are not accepted, because URLs are logged: send the key in the header Authorization"
            )
        raise Unauthenticated(
            "missing or invalid key: send `Bearer KEY` in the header Authorization, with a key of this server"
        )


def _check_local(headers: Headers, client: str | None, origins: Collection[str]) -> None:
    """Raise AccessDenied unless the client is a program on this machine. Web pages of other origins are refused."""
    if client is None or not is_loopback(client):
        raise AccessDenied("requests from other machines are refused because server.api_keys is not set")
    host = headers.get("host", "")
    if len(headers.getlist("host")) > 1 or not _names_loopback(host):
        raise AccessDenied("the Host header names another machine; use 127.0.0.1 or localhost, or set server.api_keys")
    origin = headers.get("origin")
    if origin in origins and len(headers.getlist("origin")) == 1:
        return
    if len(headers.getlist("origin")) > 1 or (origin is not None and origin.partition("://")[2] != host):
        raise AccessDenied(_OTHER_SITE)
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):  # images and forms send no Origin
        raise AccessDenied(_OTHER_SITE)


def _names_loopback(host: str) -> bool:
    match = _HOST.fullmatch(host)
    return match is not None and is_loopback(match[1] or match[2])
