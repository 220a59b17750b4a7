"""`/` and `/console/…`: the web page for people, from the static files of `framework/console`.

The page needs no key, because it contains nothing about the project; the routes that it calls do. Files are sent as
they are in the folder, compressed: those of its build, if there is one and it is of the modules in the folder.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from framework.console import BUILT, SOURCES, has_current_build

log = logging.getLogger(__name__)
_ASSETS = "/console"
_INDEX = "index.html"
_NOT_BUILT = (
    "the console is served as modules: Markdown is plain text, the editor is a plain field; "
    "`make console` builds it, and wheels contain it built"
)
_CONTENT_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
"""Content types of the assets by suffix. Files with other suffixes are not served."""
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Only files of this server are loaded, and text never becomes markup: without a trusted type, `innerHTML` throws."""
_PAGE_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_ASSET_HEADERS = {
    "cache-control": "public, max-age=31536000, immutable",
    "cross-origin-resource-policy": "same-origin",
    "vary": "accept-encoding",
    "x-content-type-options": "nosniff",
}
_GZIP = re.compile(r"\bgzip\b(?!\s*;\s*q=0(?:\.0*)?\s*(?:,|$))")
"""In `Accept-Encoding`: the client reads gzip."""


@dataclass(frozen=True, slots=True)
class Asset:
    """An asset as it is sent."""

    content: bytes
    compressed: bytes
    content_type: str


@dataclass(frozen=True, slots=True)
class ConsoleFiles:
    """The files of the console at one time, which are only served together."""

    digest: str
    """Of the page and of all assets as they are sent; part of the assets' URLs."""
    page: bytes
    assets: Mapping[str, Asset]
    """By path, such as `main.js`."""

    @classmethod
    def of(cls, contents: Mapping[str, bytes]) -> ConsoleFiles:
        """Return the files with these contents by path, which contain the page."""
        sent = {name: content for name, content in contents.items() if name != _INDEX}
        digest = sha256(contents[_INDEX])
        for name, content in sorted(sent.items()):
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        base = f"{_ASSETS}/{digest.hexdigest()[:16]}"
        page = contents[_INDEX].replace(b"{{base}}", base.encode())
        assets = {
            name: Asset(content, gzip.compress(content, mtime=0), _CONTENT_TYPES[Path(name).suffix])
            for name, content in sent.items()
        }
        return cls(base.rpartition("/")[2], page, assets)


class _Folder:
    """The folder of the files, which are read again once one has changed: a reload of the page shows an edit."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[object, ConsoleFiles] | None = None

    async def with_digest(self, digest: str) -> ConsoleFiles:
        """Return the files with this digest; raises HTTPException 404 if these are others."""
        found = self._read[1] if self._read else await asyncio.to_thread(self.latest)
        if found.digest != digest:
            raise HTTPException(404)
        return found

    def latest(self) -> ConsoleFiles:
        """Return the files as they are now; raises HTTPException 404 if there are none."""
        version = sorted(_versions(self._path))
        if self._read is None or self._read[0] != version:
            built = has_current_build(self._path)
            folder = self._path / BUILT if built else self._path
            contents = {
                name: Path(path).read_bytes()
                for path, *_ in version
                if (name := os.path.relpath(path, folder).replace(os.sep, "/")) != SOURCES
                and not name.startswith(("../", f"{BUILT}/"))
            }
            if _INDEX not in contents:
                raise HTTPException(404)
            if not built:
                log.info(_NOT_BUILT)
            self._read = version, ConsoleFiles.of(contents)
        return self._read[1]


def console_routes(folder: Path | None = None) -> APIRouter:
    """Return the routes. They are 404 if there are no files.

    Args:
        folder: the files. Default: those of the package.
    """
    routes = APIRouter()
    console = _Folder(folder or Path(str(files("framework.console"))))

    @routes.api_route("/", methods=["GET", "HEAD"], response_class=Response)
    async def page(request: Request) -> Response:
        """Return the page, or 304 if the client has it already."""
        latest = await asyncio.to_thread(console.latest)
        headers = {**_PAGE_HEADERS, "etag": f'"{latest.digest}"'}
        if latest.digest in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(latest.page, media_type="text/html; charset=utf-8", headers=headers)

    @routes.api_route(_ASSETS + "/{digest}/{path:path}", methods=["GET", "HEAD"], response_class=Response)
    async def asset(digest: str, path: str, request: Request) -> Response:
        """Return an asset of the page with this digest. Its content never changes."""
        found = (await console.with_digest(digest)).assets.get(path)
        if found is None:
            raise HTTPException(404)
        headers = {**_ASSET_HEADERS, "content-type": found.content_type}
        if _GZIP.search(request.headers.get("accept-encoding", "")):
            return Response(found.compressed, headers={**headers, "content-encoding": "gzip"})
        return Response(found.content, headers=headers)

    return routes


def _versions(folder: str | Path) -> Iterator[tuple[str, int, int]]:
    """Yield the path, time and size of each file that is served. Fast, because each visit of the page looks."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _versions(entry.path)
            elif (entry.name == _INDEX or Path(entry.name).suffix in _CONTENT_TYPES) and entry.is_file():
                stat = entry.stat()  # editors leave broken links, too: these are no files
                yield entry.path, stat.st_mtime_ns, stat.st_size
