"""The certificates that HTTPS clients trust, read once a process."""

from __future__ import annotations

import os
import ssl
from functools import lru_cache
from pathlib import Path


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
