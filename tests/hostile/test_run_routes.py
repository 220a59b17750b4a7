"""Hostile requests about runs: to a server with keys of two tenants, and to one that web pages can reach."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from examples.scale_demo import postgres
from tests.support.api_keys import key_entry
from tests.support.cases import FACTOR
from tests.support.loopback import LOOPBACK
from tests.support.projects import agent, write
from tests.support.served import PATIENCE, Served, served
from tests.support.sse_readers import Reader, check_complete, http_session
from tests.support.wire import Answer, calls, says, wire_server

ALL = ["chat", "decide", "read", "admin"]
OURS, THEIRS, ANN, CHAT = (f"{name}-key-0123456789abcdef" for name in ("ours", "theirs", "ann", "chat"))
ENTRIES = [
    key_entry("ours", OURS, tenant="acme", roles=ALL),
    key_entry("theirs", THEIRS, tenant="beta", roles=ALL),
    key_entry("ann", ANN, tenant="acme", user="ann", roles=ALL),
    key_entry("chat", CHAT, tenant="acme", roles=["chat"]),
]
FILES = {
    "agents.d/one.yaml": agent("one", model="offline", skill_policy="{allow: [echo], ask: [echo]}"),
    "agents.d/two.yaml": agent("two", model="offline"),
    "triggers.d/hook.yaml": f"agent: one\nmessage: m\nwebhook: {{verify: github, secret: {'s' * 12}}}\n",
}
SECRET = "password-4711"
MB = 1 << 20
CHATS = ("/agent/chat", "/agent/runs", "/v1/chat/completions", "/v1/responses", "/agui/one", "/mcp")
"""The routes that start runs."""


def settings(*entries: Any) -> dict[str, str]:
    return {"agentsd.yaml": f"server: {{api_keys: {json.dumps(entries)}}}\n"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = write(tmp_path_factory.mktemp("runs"), {**FILES, **settings(*ENTRIES)})
    with served(root, key=OURS) as found:
        yield found


def send(server: Served, key: str, method: str, path: str, **options: Any) -> httpx2.Response:
    return server.request(method, path, **{**options, "headers": {**options.get("headers", {}), **bearer(key)}})


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def paused(server: Served, conversation: str, **body: str) -> tuple[str, str]:
    """Begin a run that waits for a decision; return its id and that of the confirmation."""
    asked = {"message": f"echo {SECRET}", "agent": "one", "conversation_id": conversation, **body}
    response = server.request("POST", "/agent/chat", json=asked)
    assert response.status_code == 202, response.text
    found = response.json()
    return found["run_id"], found["pending"][0]["id"]


def all_events(server: Served, run_id: str) -> list[dict[str, Any]]:
    """Return the events of a run once it has ended."""
    lines = server.request("GET", f"/agent/runs/{run_id}/events?wait=true").text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def decisions(confirmation: str) -> dict[str, Any]:
    return {"decisions": {confirmation: {"type": "approve"}}}


# --- 39: ids of others


SPELLINGS = (
    "{}",
    "{}%20",
    "%20{}",
    "{}%00",
    "{}%0a",
    "./{}",
    "..%2fruns%2f{}",
    "%2e%2e/runs/{}",
    "{}%2f",
    "{}%3f",
    "{}#",
    "{};",
)


@pytest.mark.hostile(39)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_asi03_ids_of_another_tenant_are_unknown_in_every_spelling(server: Served, spelling: str) -> None:
    conversation = f"ours-{SPELLINGS.index(spelling)}"
    run_id, confirmation = paused(server, conversation)
    forged = {"x-tenant": "acme", "x-agentsd-tenant": "acme", "x-user": "ann", "cookie": "tenant=acme"}
    for query in ("", "?tenant=acme", "?user=ann&tenant=acme"):
        run, talk = (f"{spelling.format(found)}" for found in (run_id, conversation))
        for method, path, body in (
            ("GET", f"/agent/runs/{run}", None),
            ("GET", f"/agent/runs/{run}/trace", None),
            ("GET", f"/agent/runs/{run}/events", None),
            ("POST", f"/agent/runs/{run}/decisions", decisions(confirmation)),
            ("POST", f"/agent/runs/{run}/cancel", None),
            ("GET", f"/agent/conversations/{talk}", None),
            ("DELETE", f"/agent/conversations/{talk}", None),
        ):
            response = send(server, THEIRS, method, path + query, json=body, headers=forged)
            assert response.status_code in {400, 404, 405}, (method, path + query, response.text)
            assert SECRET not in response.text
    for path in ("runs", "conversations", "approvals", f"runs?before={run_id}", f"runs?conversation_id={conversation}"):
        assert SECRET not in send(server, THEIRS, "GET", f"/agent/{path}").text
    assert server.get(f"/agent/runs/{run_id}")["status"] == "paused"


@pytest.mark.hostile(39)
def test_asi03_another_tenants_conversation_is_not_continued_on_any_surface(server: Served) -> None:
    run_id, _ = paused(server, "surfaces")
    users = [{"role": "user", "content": "what was said before?"}]
    thread = {"threadId": "surfaces", "runId": "r", "messages": [{"id": "m", **users[0]}], "tools": [], "context": []}
    answers = [
        send(
            server, THEIRS, "POST", "/agent/chat", json={"message": "hi", "agent": "one", "conversation_id": "surfaces"}
        ),
        send(
            server,
            THEIRS,
            "POST",
            "/v1/chat/completions",
            json={"model": "one", "messages": users},
            headers={"x-conversation-id": "surfaces"},
        ),
        send(server, THEIRS, "POST", "/agui/one", json={**thread, "state": {}, "forwardedProps": {}}),
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 200], "conversations of its own, with the same id"
    for answer in answers:
        assert not any(word in answer.text for word in (SECRET, run_id))
    found = server.get("/agent/conversations/surfaces")
    assert (found["tenant"], found["turns"], found["open_run"]) == ("acme", 1, run_id)


# --- 40: decisions


@pytest.mark.hostile(40)
def test_asi09_of_twenty_decisions_at_once_one_counts(server: Served) -> None:
    run_id, confirmation = paused(server, "twice")

    def decide(number: int) -> int:
        body = (
            decisions(confirmation) if number % 2 else {"decisions": {confirmation: {"type": "reject", "reason": "no"}}}
        )
        return send(server, OURS, "POST", f"/agent/runs/{run_id}/decisions", json=body).status_code

    with ThreadPoolExecutor(20) as threads:
        statuses = Counter(threads.map(decide, range(20)))
    assert statuses == {202: 1, 409: 19}
    names = [event["event"] for event in all_events(server, run_id)]
    assert names.count("tool_result") == 1


@pytest.mark.hostile(40)
def test_asi03_others_cannot_decide(server: Served) -> None:
    run_id, confirmation = paused(server, "others")
    path, body = f"/agent/runs/{run_id}/decisions", decisions(confirmation)
    assert send(server, THEIRS, "POST", path, json=body).status_code == 404
    assert send(server, ANN, "POST", path, json=body).status_code == 404, "another user of the tenant"
    assert send(server, CHAT, "POST", path, json=body).status_code == 403
    for wrong in (
        {},
        {"other": {"type": "approve"}},
        {confirmation: {"type": "respond"}},
        {confirmation: {"type": "sudo"}},
    ):
        assert send(server, OURS, "POST", path, json={"decisions": wrong}).status_code in {400, 409}
    assert server.get(f"/agent/runs/{run_id}")["status"] == "paused"


@pytest.mark.hostile(40)
def test_asi09_a_decision_counts_once_even_if_the_server_is_killed(tmp_path: Path) -> None:
    write(tmp_path, {**FILES, **settings(*ENTRIES)})
    with served(tmp_path, key=OURS) as server:
        run_id, confirmation = paused(server, "killed")
        server.process.kill()
    with served(tmp_path, key=OURS) as server:
        path = f"/agent/runs/{run_id}/decisions"
        assert send(server, OURS, "POST", path, json=decisions(confirmation)).status_code == 202
        server.process.kill()
    with served(tmp_path, key=OURS) as server:
        assert send(server, OURS, "POST", path, json=decisions(confirmation)).status_code == 409
        found = all_events(server, run_id)
        numbers = [event["seq"] for event in found if event["seq"]]
        assert numbers == [*range(1, len(numbers) + 1)]
        assert (found[-1]["status"], found[-1]["output"]) == ("completed", SECRET)


@pytest.mark.hostile(40)
def test_asi09_an_expired_decision_is_refused(tmp_path: Path) -> None:
    expiring = agent(
        "one",
        model="offline",
        skill_policy="{allow: [echo], ask: [echo]}",
        runtime_policy="{confirm: {expires: 10ms}}",
    )
    write(tmp_path, {"agents.d/one.yaml": expiring, **settings(*ENTRIES)})
    with served(tmp_path, key=OURS) as server:
        run_id, confirmation = paused(server, "expired")
        assert all_events(server, run_id)[-1]["event"] == "done"
        response = send(server, OURS, "POST", f"/agent/runs/{run_id}/decisions", json=decisions(confirmation))
        assert response.status_code == 409
        assert server.get(f"/agent/runs/{run_id}")["output"] != SECRET


# --- 41: bodies


@pytest.mark.hostile(41)
@pytest.mark.parametrize("framing", ["content-length", "chunked"])
@pytest.mark.parametrize("path", [*CHATS, "/hooks/hook"])
def test_llm10_a_body_of_100_mb_is_refused_without_being_kept(server: Served, path: str, framing: str) -> None:
    before, refused = peak_memory(server), b""
    length = "transfer-encoding: chunked" if framing == "chunked" else f"content-length: {100 * MB}"
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {OURS}\r\n{length}\r\n"
    accepts = "accept: application/json, text/event-stream\r\n"
    block = b"x" * MB
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
        connection.sendall(f"{head}{accepts}content-type: application/json\r\n\r\n".encode())
        try:
            for _ in range(100):
                connection.sendall(b"%x\r\n%s\r\n" % (MB, block) if framing == "chunked" else block)
            refused = connection.recv(65536)
        except ConnectionError:
            refused = b"closed"
    assert refused == b"closed" or b" 413 " in refused.partition(b"\r\n")[0]
    assert peak_memory(server) - before < 40 * MB
    assert server.get("/health") == {"status": "ok"}


def peak_memory(server: Served) -> int:
    """Return the largest resident size of the server so far, in bytes."""
    status = Path(f"/proc/{server.process.pid}/status").read_text("ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


@pytest.mark.hostile(41)
@pytest.mark.parametrize("path", CHATS)
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b'{"message": "\xff\xfe"}'),
        ("application/json", b'{"message": "\\ud800"}'),
        ("application/json", b"\xef\xbb\xbf{}"),
        ("application/json", '{"message": "hi"}'.encode("utf-16")),
        ("application/json", b"[" * 100_000),
        ("application/json", b'{"message": 1' + b"0" * 5000 + b"}"),
        ("application/json", b'{"message": "a", "message": "b"}'),
        ("application/json", b""),
        ("text/plain", b'{"message": "hi"}'),
        ("application/x-www-form-urlencoded", b"message=hi"),
        ("multipart/form-data; boundary=x", b"--x--"),
    ],
    ids=lambda value: value[:20] if isinstance(value, bytes) else value,
)
def test_llm10_a_body_that_is_not_json_starts_nothing(server: Served, path: str, kind: str, body: bytes) -> None:
    before = number_of_runs(server)
    headers = {"content-type": kind, "accept": "application/json, text/event-stream"}
    response = send(server, OURS, "POST", path, content=body, headers=headers)
    assert 400 <= response.status_code < 500, response.text
    assert number_of_runs(server) == before


def number_of_runs(server: Served) -> int:
    return len(server.get("/agent/runs?limit=100")["runs"])


# --- 42: web pages


@pytest.mark.hostile(42)
@pytest.mark.parametrize("path", CHATS)
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example.com"},
        {"origin": "null"},
        {"host": "evil.example.com"},
        {"sec-fetch-site": "cross-site"},
        {"origin": "http://evil.example.com", "content-type": "text/plain"},
    ],
    ids=str,
)
def test_asi03_a_web_page_starts_no_run(keyless: Served, path: str, headers: dict[str, str]) -> None:
    bodies = {"message": "hi", "model": "two", "messages": [{"role": "user", "content": "hi"}], "input": "hi"}
    content = json.dumps(bodies).encode()
    response = keyless.request("POST", path, content=content, headers={"content-type": "application/json", **headers})
    assert response.status_code == 403
    assert not any(name.startswith("access-control") for name in response.headers)
    assert number_of_runs(keyless) == 0


@pytest.fixture(scope="module")
def keyless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(write(tmp_path_factory.mktemp("keyless"), FILES)) as found:
        yield found


# --- 43: queues, repeated requests, and a store that is gone


@pytest.mark.hostile(43)
def test_llm10_of_forty_messages_at_once_twenty_wait(server: Served) -> None:
    paused(server, "full")

    def submit(number: int) -> httpx2.Response:
        body = {"message": f"{number}", "agent": "two", "conversation_id": "full", "queue": True}
        return send(server, OURS, "POST", "/agent/runs", json=body)

    with ThreadPoolExecutor(20) as threads:
        responses = [*threads.map(submit, range(40))]
    assert Counter(response.status_code for response in responses) == {202: 20, 429: 20}
    assert all(int(one.headers["retry-after"]) > 0 for one in responses if one.status_code == 429)
    assert server.get("/agent/conversations/full")["waiting"] == 20


@pytest.mark.hostile(43)
def test_asi03_an_idempotency_key_names_one_request_of_one_key(server: Served) -> None:
    def submit(key: str, message: str = "once") -> httpx2.Response:
        body = {"message": message, "agent": "two"}
        return send(server, key, "POST", "/agent/runs", json=body, headers={"idempotency-key": "k" * 100})

    with ThreadPoolExecutor(20) as threads:
        responses = [*threads.map(submit, [OURS] * 20)]
    assert {response.status_code for response in responses} == {202}
    (run_id,) = {response.json()["run_id"] for response in responses}
    another = submit(OURS, "another")
    assert (another.status_code, another.json()["error"]["code"]) == (409, "idempotency_conflict")
    for key in (THEIRS, ANN, CHAT):
        assert submit(key, "another").json()["run_id"] != run_id


@pytest.fixture(scope="module")
def database() -> Iterator[postgres.Server]:
    """A database server that a test can stop and start again."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(postgres.server())
        except LookupError as missing:
            pytest.skip(str(missing))
        yield found


@pytest.mark.hostile(43)
def test_asi08_a_store_that_is_gone_in_mid_stream_is_an_error_and_a_reconnect_continues(
    tmp_path: Path, database: postgres.Server
) -> None:
    url = postgres.new_database(database.url)
    write(tmp_path, {**FILES, "agentsd.yaml": f"store: {{url: '{url}'}}\n"})
    with served(tmp_path) as server:
        run_id, confirmation = paused(server, "gone")
        path, seen = f"{server.url}/agent/runs/{run_id}", list[str]()
        with httpx2.stream("GET", f"{path}/events?wait=true", timeout=PATIENCE, **LOOPBACK) as response:
            for line in response.iter_lines():
                if line == "event: done":  # the run is paused
                    database.stop("fast")
                seen += [line] if line.startswith(("id:", "event: error", "data: ")) else []
        assert seen[-2] == "event: error"
        error = json.loads(seen[-1].removeprefix("data: "))
        assert (error["code"], error["type"]) == ("store_error", "server_error")
        database.start()
        decided = 500
        while decided >= 500:  # its connections are new
            body = decisions(confirmation)
            decided = server.request("POST", f"/agent/runs/{run_id}/decisions", json=body).status_code
        assert decided == 202
        last = [line for line in seen if line.startswith("id:")][-1].removeprefix("id: ")
        rest = server.request("GET", f"/agent/runs/{run_id}/events?wait=true", headers={"last-event-id": last})
        numbers = [int(line.removeprefix("id: ")) for line in rest.text.splitlines() if line.startswith("id:")]
        assert numbers == [*range(int(last) + 1, int(last) + 1 + len(numbers))]
        assert server.get(f"/agent/runs/{run_id}")["output"] == SECRET


@pytest.mark.hostile(43)
@pytest.mark.timeout(300)
@pytest.mark.skipif(FACTOR == 1, reason="waits until a lease expires: only in `make test-long`")
def test_asi08_a_run_whose_store_is_gone_continues_once_the_store_is_back(
    tmp_path: Path, database: postgres.Server
) -> None:
    """The database stops while the run asks its model."""
    stops = [lambda: database.stop("fast")]

    def answers(body: dict[str, Any]) -> Answer:
        if body["messages"][-1]["role"] == "user":
            return calls(("calculator", {"expression": "1+1"}))
        while stops:
            stops.pop()()
        return says("It is 2.")

    async def main() -> None:
        async with wire_server(answers) as wire:
            alias = f"models: {{live: {{model: openai/m, base_url: '{wire.url}', api_key: k}}}}\n"
            store = f"store: {{url: '{postgres.new_database(database.url)}'}}\n"
            one = agent("one", model="live", skill_policy="{allow: [calculator]}")
            write(tmp_path, {"agents.d/one.yaml": one, "agentsd.yaml": alias + store})
            with served(tmp_path) as server:
                async with http_session(server.url) as session:
                    reader = Reader(session)
                    await reader.chat({"message": "what is 1 + 1"})
                    (error,) = reader.errors
                    assert (error["code"], error["type"]) == ("store_error", "server_error")
                    database.start()
                    while not reader.is_done:
                        await reader.follow()
                    reader.errors.clear()
                    check_complete(reader, "It is 2.")

    asyncio.run(main())
