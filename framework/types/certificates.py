"""The certificates that HTTPS clients trust, read once a process."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl


def trusted_certificates() -> ssl.SSLContext:
    """Return a context that all HTTPS clients share; reading the certificates for each takes 20 ms.

    It trusts the certificates of the system, or those that `SSL_CERT_FILE` or `SSL_CERT_DIR` name. A file is read again
    after it has changed.

    Raises:
        OSError: `SSL_CERT_FILE` or `SSL_CERT_DIR` cannot be read; an ssl.SSLError if it contains no certificates.
    """
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    return _read(file, folder, Path(file).stat().st_mtime_ns if file else 0)


@lru_cache(maxsize=4)
def _read(_file: str | None, _folder: str | None, _modified: int) -> ssl.SSLContext:
    import httpx2

    return httpx2.create_ssl_context()
