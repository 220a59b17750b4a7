"""Validates and normalizes the base URL of a model server."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_EXPECTED = "expected the URL of a server, such as http://127.0.0.1:8080/v1"
_ENDPOINTS = ("/chat/completions", "/responses")
"""The paths that clients append; base URLs are often copied with them."""
_FORBIDDEN = frozenset("\\{}$<>\"'")
_REGION = re.compile(r"[a-z0-9-]+")


def normalize_base_url(text: str) -> str:
    """Return the URL without surrounding white space, trailing slashes and an endpoint's path.

    Raises:
        ValueError: it is not the URL of a server. The message does not quote it: it may contain a password.
    """
    url = text.strip().rstrip("/")
    for endpoint in _ENDPOINTS:
        url = url.removesuffix(endpoint).rstrip("/")
    if problem := _problem(url):
        raise ValueError(f"{_EXPECTED}; {problem}")
    return url


def is_region(text: str) -> bool:
    """Return whether the text may be the name of a region, which becomes part of a host name."""
    return _REGION.fullmatch(text) is not None


def _problem(url: str) -> str:
    """Return why the URL is invalid, or an empty string."""
    if not url:
        return "it is empty"
    if not url.lower().startswith(("http://", "https://")):
        return "it does not begin with http:// or https://"
    if any(char in _FORBIDDEN or char.isspace() or not char.isprintable() for char in url):
        return "it contains a character that is not allowed in a URL"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "its port, or the address in brackets, is invalid"
    if not host or port == 0:
        return f"it has no valid {'port' if host else 'host'}"
    return "it must end with its path, without ? or #" if parts.query or parts.fragment else ""
