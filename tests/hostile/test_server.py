"""Hostile requests to a server with keys: refused before anything of them is used, and the server keeps answering."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from tests.support.api_keys import KEY, OTHER, key_entry
from tests.support.loopback import LOOPBACK
from tests.support.projects import agent, write
from tests.support.served import PATIENCE, Served, served

FILES = {"agents.d/one.yaml": agent("one", model="offline"), "agents.d/two.yaml": agent("two", model="offline")}
ADMIN, LIMITED = "admin-key-0123456789", "limited-key-0123456789"
ENTRIES = [
    KEY,
    key_entry("chat", OTHER, tenant="acme"),
    key_entry("admin", ADMIN, roles=["admin"]),
    key_entry("limited", LIMITED, agents=["two"], roles=["read", "chat"]),
]
SETTINGS = f"server: {{api_keys: {json.dumps(ENTRIES)}}}\n"
PATHS = ("/agent/agents", "/agent/config", "/agent/config/history", "/agent/events", "/metrics")
BEARER = f"Authorization: Bearer {KEY}\r\n".encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = write(tmp_path_factory.mktemp("hostile"), {**FILES, "agentsd.yaml": SETTINGS})
    with served(root, key=KEY) as found:
        yield found


def answer(server: Served, request: bytes) -> tuple[int, str]:
    """Send bytes, and return the status and the whole response; 0 if the server closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
        connection.sendall(request)
        received = bytearray()
        while chunk := connection.recv(65536):
            received += chunk
    text = received.decode("latin-1")
    return (int(text.split(" ", 2)[1]) if text else 0), text


def get(path: str, *headers: bytes) -> bytes:
    lines = b"".join(headers)
    return b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n%s\r\n" % (path.encode(), lines)


@pytest.mark.hostile(38)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "headers",
    [
        b"",
        b"Authorization: \r\n",
        b"Authorization: Bearer\r\n",
        f"Authorization: {KEY}\r\n".encode(),
        f"Authorization: Basic {KEY}\r\n".encode(),
        f"Authorization: Bearer {KEY[:-1]}\r\n".encode(),
        f"Authorization: Bearer {KEY}, Bearer {KEY}\r\n".encode(),
        f"Authorization: Bearer {KEY}\r\nAuthorization: Bearer {KEY}\r\n".encode(),
        f"Authorization: Bearer wrong\r\nauthorization: Bearer {KEY}\r\n".encode(),
        f"Authorization: Bearer {KEY} {KEY}\r\n".encode(),
        b"Authorization: Bearer \xff\xfe\xc3\xa9\r\n",
        b"Authorization: Bearer " + b"k" * 20000 + b"\r\n",
        f"Proxy-Authorization: Bearer {KEY}\r\n".encode(),
        f"X-Api-Key: {KEY}\r\nCookie: key={KEY}\r\n".encode(),
        f"Authorization: Bearer {ENTRIES[1]['sha256']}\r\n".encode(),  # type: ignore[index]  # the second is an object
    ],
    ids=lambda headers: headers[:40],
)
def test_asi03_without_one_valid_key_nothing_is_answered(server: Served, path: str, headers: bytes) -> None:
    status, text = answer(server, get(path, headers))
    assert status == 401
    assert "www-authenticate: bearer" in text.lower()
    assert not any(word in text for word in (KEY, OTHER, '"one"', '"two"', "generation"))
    assert server.get("/agent/config")["generation"] == 1


@pytest.mark.hostile(38)
@pytest.mark.parametrize(
    "line", [b"Authorization: Bearer a\x00b\r\n", b"Authorization: Bearer\r\n x\r\n", b"Bearer\r\n"]
)
def test_asi03_headers_that_are_not_http_are_refused(server: Served, line: bytes) -> None:
    status, text = answer(server, get("/agent/config", line))
    assert status in {400, 401}
    assert "generation" not in text


@pytest.mark.hostile(38)
def test_llm02_a_key_in_the_url_is_refused_and_not_logged(tmp_path: Path) -> None:
    write(tmp_path, {**FILES, "agentsd.yaml": SETTINGS})
    with served(tmp_path) as started:
        for name in ("key", "api_key", "access_token", "token", "API_KEY"):
            response = started.request("GET", f"/agent/config?{name}={KEY}")
            assert (response.status_code, KEY in response.text) == (401, False)
            assert "keys in the URL are not accepted" in response.json()["error"]["message"]
        started.stop()
    assert KEY not in "\n".join(started.output)


@pytest.mark.hostile(38)
def test_asi03_a_removed_key_is_refused_at_the_next_request_and_its_streams_end(tmp_path: Path) -> None:
    def settings(*keys: object) -> dict[str, str]:
        return {"agentsd.yaml": f"server: {{api_keys: {json.dumps(keys)}}}\n"}

    removed, kept = key_entry("removed", OTHER, roles=["read"]), key_entry("kept", KEY, roles=["read", "admin"])
    write(tmp_path, {**FILES, **settings(removed, kept)})
    with served(tmp_path, key=OTHER) as started, started.event_stream() as events:
        write(tmp_path, settings(kept))
        assert list(events) == [], "the stream ends, without the event of the edit"
        assert started.request("GET", "/agent/agents").status_code == 401
        started.key = KEY
        assert started.get("/agent/config")["generation"] == 2
        with started.event_stream() as rest:
            write(tmp_path, settings({**kept, "tenant": "another"}))
            assert list(rest) == [], "the stream of a key with another tenant ends too"
        assert started.get("/agent/agents")["agents"]


@pytest.mark.hostile(38)
def test_asi03_a_key_without_the_role_changes_nothing(server: Served) -> None:
    for key, path, body in (
        (OTHER, "/agent/config/rollback", {"generation": 1}),
        (OTHER, "/agent/config/check", {}),
        (LIMITED, "/agent/config/rollback", {"generation": 1}),
    ):
        headers = {"authorization": f"Bearer {key}"}
        response = httpx2.post(server.url + path, json=body, headers=headers, timeout=PATIENCE, **LOOPBACK)
        assert (response.status_code, response.json()["error"]["code"]) == (403, "access_denied")
    assert server.get("/agent/config")["generation"] == 1


@pytest.mark.hostile(39)
def test_llm02_a_key_for_one_agent_learns_of_no_other(server: Served) -> None:
    headers = [f"Authorization: Bearer {LIMITED}\r\n".encode()]
    for path in PATHS:
        status, text = answer(server, get(path, *headers))
        assert (status, '"one"' in text) == ((200 if path == "/agent/agents" else 403), False)
        assert path != "/agent/agents" or '"two"' in text


@pytest.mark.hostile(39)
@pytest.mark.parametrize(
    "path",
    [
        "/agent/..%2fhealth",
        "/agent/%2e%2e/agent/config",
        "/agent/../../etc/passwd",
        "//agent/config",
        "/agent//config",
        "/agent/config/",
        "/AGENT/config",
        "/agent/config%00",
        "/agent/config;x",
        "/agent/%c0%ae%c0%ae/config",
        "http://evil.example.com/agent/nosuch",
    ],
)
def test_asi03_other_spellings_of_a_path_are_no_route(server: Served, path: str) -> None:
    status, text = answer(server, get(path, BEARER))
    assert status in {400, 404}
    assert "location:" not in text.lower(), "no redirect"
    assert "root:" not in text


@pytest.mark.hostile(41)
@pytest.mark.parametrize(
    "begin",
    [
        b"GET /agent/config HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ",
        b"GET /agent/con",
        b"",
        b"POST /agent/config/rollback HTTP/1.1\r\nHost: 127.0.0.1\r\n" + BEARER + b"Content-Length: 99\r\n\r\n{",
        b"POST /agent/config/rollback HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        + BEARER
        + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
    ],
    ids=["half a header", "half a line", "nothing", "half a body", "an endless body"],
)
def test_llm10_400_requests_that_never_end_stop_no_other(server: Served, begin: bytes) -> None:
    """A proxy closes them: see docs/serving-operations.md."""
    with ExitStack() as stack:
        for number in range(400):
            source = (f"127.0.0.{number % 4 + 2}", 0)
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), PATIENCE, source))
            connection.sendall(begin)
        assert server.get("/health") == {"status": "ok"}
    assert server.get("/health") == {"status": "ok"}


@pytest.mark.hostile(42)
@pytest.mark.parametrize(
    "headers",
    [
        b"Host: evil.example.com\r\n",
        b"Host: 127.0.0.1.evil.example.com\r\n",
        b"Host: 127.0.0.1\r\nOrigin: http://evil.example.com\r\n",
        b"Host: 127.0.0.1\r\nOrigin: null\r\n",
        b"Host: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\nOrigin: http://evil.example.com\r\n",
        b"Host: 127.0.0.1\r\nSec-Fetch-Site: cross-site\r\n",
        b"Host: 127.0.0.1\r\nHost: evil.example.com\r\n",
        b"Host: 127.0.0.1\r\nX-Forwarded-For: 192.0.2.1\r\n",
        b"Host: 127.0.0.1@evil.example.com\r\n",
        b"",
    ],
)
@pytest.mark.parametrize("path", [b"/agent/config", b"/agent/events", b"/metrics", b"/agent/agents"])
def test_asi03_without_keys_web_pages_and_other_machines_are_refused(
    keyless: Served, path: bytes, headers: bytes
) -> None:
    status, text = answer(keyless, b"GET " + path + b" HTTP/1.1\r\nConnection: close\r\n" + headers + b"\r\n")
    assert status in {400, 403}
    assert not any(word in text for word in ('"one"', "generation", "access-control-allow-origin"))


@pytest.mark.hostile(42)
def test_asi03_with_keys_a_page_gets_no_permission_to_read(server: Served) -> None:
    """A page cannot know the key, and a preflight request of a browser gets no permission to send one."""
    for method in ("OPTIONS", "GET"):
        headers = {"origin": "http://evil.example.com", "access-control-request-headers": "authorization"}
        response = server.request(method, "/agent/config", headers=headers)
        assert not any(name.startswith("access-control") for name in response.headers)


@pytest.fixture(scope="module")
def keyless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(write(tmp_path_factory.mktemp("keyless"), FILES)) as found:
        yield found


BOMBS = {
    "a loop": {"n": 10**9},
    "nested loops": {"n": 60_000},
    "a long text": {"n": 1, "text": "x" * 60_000},
    "a large number": {"n": 10**18},
    "a wide object": {"n": 1, "data": {str(number): number for number in range(5_000)}},
}
TEMPLATE = """\
Prompt.
{% for a in range(n) %}{% for b in range(n) %}{{ text * (a + 99999) }}{% endfor %}{% endfor %}
{% for key in data %}{% for other in data %}{{ data ~ data }}{% endfor %}{% endfor %}
"""


@pytest.mark.hostile(29)
def test_llm10_sample_inputs_cannot_make_a_prompt_endless_or_large(tmp_path: Path) -> None:
    inputs = "{n: {type: integer, default: 0}, text: {default: ''}, data: {type: object, default: {}}}"
    bomb = agent("bomb", model="offline", instructions="{template: bomb.j2}", inputs=inputs)
    write(tmp_path, {**FILES, "agents.d/bomb.yaml": bomb, "prompts/bomb.j2": TEMPLATE})
    with served(tmp_path) as server, ThreadPoolExecutor() as threads:
        assert server.post("/agent/agents/bomb/prompt", {})["rendered"].startswith("Prompt.")
        bodies = [{"inputs": sample} for sample in BOMBS.values()]
        sent = [threads.submit(server.request, "POST", "/agent/agents/bomb/prompt", json=body) for body in bodies]
        assert server.get("/agent/agents")["agents"], "other requests are answered meanwhile"
        for name, future in zip(BOMBS, sent, strict=True):
            found = future.result()
            assert found.status_code == 200, (name, found.text[:500])
            details = found.json()["details"]
            assert details["path"] == "prompts/bomb.j2", name
            assert details.get("line") in (2, 3) or "exceeds" in details["message"], (name, details)
            assert len(found.text) < 5_000, name
        one = server.post("/agent/agents/bomb/prompt", {"inputs": {"text": "{{ n }}{% raw %}"}})
        assert one["rendered"].startswith("Prompt.")
        assert (
            server.request("POST", "/agent/agents/bomb/prompt", json={"inputs": {"text": "x" * 70_000}}).status_code
            == 413
        )
        deep = b'{"inputs": {"data": ' + b'{"a":' * 5_000 + b"1" + b"}" * 5_000 + b"}}"
        headers = {"content-type": "application/json"}
        assert server.request("POST", "/agent/agents/bomb/prompt", content=deep, headers=headers).status_code == 400
        assert server.stop() == 0
    assert not [line for line in server.output if "Traceback" in line or "failed" in line]
