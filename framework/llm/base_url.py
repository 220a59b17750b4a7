"""Where a model's server is: an address as people write it, and as clients take it."""

from __future__ import annotations

from urllib.parse import urlsplit

_EXPECTED = "a server's address is expected, such as http://127.0.0.1:8080/v1"
_ONE_CALL = "/chat/completions"
"""The path that clients add; addresses are often copied with it."""
_NEVER = frozenset("\\{}$<>\"'")


def normalize_base_url(text: str) -> str:
    """The address without what does no harm: blanks and slashes at its ends, the path of the call that is made.

    Raises:
        ValueError: it is no address of a server. The address is not repeated: there may be a password in it.
    """
    url = text.strip().rstrip("/").removesuffix(_ONE_CALL).rstrip("/")
    if wrong := _wrong(url):
        raise ValueError(f"{_EXPECTED}; {wrong}")
    return url


def _wrong(url: str) -> str:
    if not url:
        return "this is empty"
    if not url.lower().startswith(("http://", "https://")):
        return "this does not begin with http:// or https://"
    if any(char in _NEVER or char.isspace() or not char.isprintable() for char in url):
        return "this holds a character that no address has"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "what stands in brackets, or the port, is none"
    if not host or port == 0:
        return f"this names no {'port' if host else 'server'}"
    return "nothing may follow its path, no ? and no #" if parts.query or parts.fragment else ""
