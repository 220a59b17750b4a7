"""Hostile requests for the console's files: nothing but these files is served, to anyone, with any key."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.support.api_keys import KEY
from tests.support.loopback import LOOPBACK
from tests.support.paths import ROOT
from tests.support.projects import agent, write
from tests.support.served import PATIENCE, Served, served

FILES = {
    "agents.d/one.yaml": agent("secretive", model="offline"),
    "agentsd.yaml": f"server: {{api_keys: [{KEY}]}}\n",
}
PATHS = (
    "../app.py",
    "../../framework/server/app.py",
    "..%2f..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/__init__.py",
    "..%5c..%5c__init__.py",
    "....//....//etc/passwd",
    "core/../../__init__.py",
    "core/../main.js",
    "/etc/passwd",
    "//etc/passwd",
    f"{ROOT}/framework/console/main.js",
    "main.js%00",
    "main.js%00.css",
    "main.js/",
    "MAIN.JS",
    "main.js%20",
    "main.js;x",
    "main.js%3f",
    "index.html",
    "__init__.py",
    "types.d.ts",
    "jsconfig.json",
    "__pycache__",
    ".",
    "..",
    "~root",
    "file:///etc/passwd",
    "http://127.0.0.1/",
    "%ff%fe",
    "a" * 20_000,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(write(tmp_path_factory.mktemp("console"), FILES)) as found:
        yield found


def send(server: Served, target: str, *headers: str, method: str = "GET") -> tuple[int, str]:
    """Send a request with exactly this target, and return the status and the whole response."""
    lines = "".join(f"{header}\r\n" for header in headers or ("Host: 127.0.0.1",))
    request = f"{method} {target} HTTP/1.1\r\n{lines}Connection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
        connection.sendall(request.encode("latin-1"))
        received = bytearray()
        while chunk := connection.recv(65536):
            received += chunk
    text = received.decode("latin-1")
    return int(text.split(" ", 2)[1]), text


def base(server: Served) -> str:
    return httpx2.get(server.url, timeout=PATIENCE, **LOOPBACK).text.partition('src="')[2].partition("/main.js")[0]


@pytest.mark.hostile(11)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path[:30])
def test_llm02_no_other_file_is_served_in_any_spelling(server: Served, path: str) -> None:
    for target in (f"{base(server)}/{path}", f"/console/{path}", f"/{path}" if path[0] != "/" else path):
        status, text = send(server, target)
        assert status in {400, 401, 404, 405}, (target, text)
        assert not any(word in text for word in ("root:", "import ", "secretive", "HTMLElement"))


@pytest.mark.hostile(11)
def test_llm02_a_link_in_the_project_is_not_the_console(tmp_path: Path) -> None:
    """The console comes from the package: files of the project are not below its URL, whatever they are called."""
    root = write(tmp_path, {**FILES, "framework/console/main.js": "hostile", "console/main.js": "hostile"})
    (root / "index.html").symlink_to("/etc/passwd")
    with served(root) as started:
        assert "hostile" not in httpx2.get(f"{started.url}{base(started)}/main.js", timeout=PATIENCE, **LOOPBACK).text
        assert "root:" not in httpx2.get(started.url, timeout=PATIENCE, **LOOPBACK).text


@pytest.mark.hostile(42)
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "[::1]:1", "evil.example\tx", ""])
def test_asi03_the_page_is_the_same_for_every_host_and_names_none(server: Served, host: str) -> None:
    status, text = send(server, "/", f"Host: {host}", f"X-Forwarded-Host: {host}", "Origin: http://evil.example")
    assert status in {200, 400}
    assert "evil" not in text
    assert status == 400 or text.partition("\r\n\r\n")[2] == httpx2.get(server.url, timeout=PATIENCE, **LOOPBACK).text


@pytest.mark.hostile(42)
def test_asi03_other_sites_can_neither_frame_nor_read_the_page(server: Served) -> None:
    response = httpx2.get(server.url, headers={"origin": "http://evil.example"}, timeout=PATIENCE, **LOOPBACK)
    assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
    assert response.headers["cross-origin-resource-policy"] == "same-origin"
    assert not any(name.startswith("access-control") for name in response.headers)


@pytest.mark.hostile(41)
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "X" * 300])
def test_asi02_the_page_can_only_be_read(server: Served, method: str) -> None:
    for target in ("/", f"{base(server)}/main.js"):
        status, text = send(server, target, method=method)
        assert status in {400, 405}, text
        assert status == 400 or "allow: GET, HEAD" in text


@pytest.mark.hostile(38)
def test_llm02_a_key_in_the_url_of_the_page_changes_nothing_and_is_not_returned(server: Served) -> None:
    response = httpx2.get(f"{server.url}/?key={KEY}", timeout=PATIENCE, **LOOPBACK)
    assert response.status_code == 200
    assert KEY not in response.text
    assert KEY not in str(response.headers)
    assert "secretive" not in response.text


@pytest.mark.hostile(41)
def test_llm10_pages_of_old_digests_are_not_kept(server: Served) -> None:
    for digest in ("0" * 16, "..", "%00", "a" * 5000, base(server).rpartition("/")[2].upper()):
        status, text = send(server, f"/console/{digest}/main.js")
        assert status in {400, 404}
        assert "no-store" in text.lower() or status == 400
