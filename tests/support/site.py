"""A real HTTP server for tests that sends exactly the given bytes, valid or not."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

Write = Callable[[asyncio.StreamWriter], Awaitable[None]]
"""Writes a response at its own pace; cancelled at the end of the test."""
Pages = Mapping[str, bytes | Write]


@dataclass(frozen=True, slots=True)
class Request:
    """A received request."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class Site:
    """The state of the server."""

    pages: Pages
    port: int = 0
    requests: list[Request] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by each request."""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client disconnects before its response is complete."""

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    async def wait_for_requests(self, times: int) -> None:
        """Wait for `times` more requests."""
        total = len(self.requests) + times
        while len(self.requests) < total:
            self.arrived.clear()
            await self.arrived.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _read(reader)
            self.requests.append(request)
            self.arrived.set()
            page = self.pages.get(request.target.partition("?")[0], answer("not here", status="404 Not Found"))
            if isinstance(page, bytes):
                writer.write(page)
            else:
                await page(writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.set()
        finally:
            writer.close()


def answer(body: str | bytes = b"", *headers: str, status: str = "200 OK") -> bytes:
    """Return a complete response: status line, content-length, the given headers, the body."""
    content = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(content)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + content


def redirect(location: str, status: str = "302 Found") -> bytes:
    return answer("", f"location: {location}", status=status)


@asynccontextmanager
async def site(
    pages: Pages, *, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Site]:
    """Serve `pages` by path on a free port of loopback."""
    served = Site(pages)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.ensure_future(served.serve(reader, writer)))

    server = await asyncio.start_server(accept, host, port, ssl=tls)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, target, headers, body)


def make_certificate(folder: Path) -> Path:
    """Create a self-signed certificate for 127.0.0.1, with its key next to it."""
    program = shutil.which("openssl") or pytest.skip("openssl makes the certificate")
    names = ["-subj", "/CN=a", "-addext", "subjectAltName=IP:127.0.0.1,DNS:service.internal"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command = [program, "req", "-x509", *curve, *names, "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "cert.pem"


def served_with(certificate: Path) -> ssl.SSLContext:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, certificate.with_name("key.pem"))
    return tls
