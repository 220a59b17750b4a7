"""`agentsd serve`: the HTTP API while files are edited, startup and shutdown."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import Depends, FastAPI, HTTPException

from framework import Runtime
from framework.server import router
from tests.support.commands import COMMAND, ENVIRONMENT, agentsd, install_command_in
from tests.support.loopback import LOOPBACK
from tests.support.otlp_sink import sink
from tests.support.paths import ROOT
from tests.support.projects import agent, write
from tests.support.served import PATIENCE, Served, served

ONE = "agents.d/one.yaml"
PLUGIN = '''
from framework import tool

@tool
def hello() -> str:
    """Say it."""
    return "hello"
'''

SETUP_BY_PORT = """

async def setup(context):
    import asyncio
    from pathlib import Path

    if Path("port").exists():
        reader, writer = await asyncio.open_connection("127.0.0.1", int(Path("port").read_text()))
        await reader.read()
        writer.close()
"""


STREAMS = 20
"""Limit of event streams of the server that all tests without edits use."""


def one(**keys: str) -> str:
    return agent("one", model="offline", **keys)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    """A server whose only agent is at its first version."""
    write(tmp_path, {ONE: one(description="v1")})
    with served(tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server for all tests that do not edit files."""
    settings = f"server: {{max_streams_per_key: {STREAMS}}}\n"
    root = write(tmp_path_factory.mktemp("still"), {ONE: one(description="v1"), "agentsd.yaml": settings})
    with served(root) as found:
        yield found


def edit(server: Served, root: Path, text: str) -> dict[str, Any]:
    """Save the agent's file, and return the event of the server."""
    with server.event_stream() as events:
        write(root, {ONE: text})
        return next(events)


def test_the_first_line_contains_the_url_and_the_live_agents(still: Served) -> None:
    assert still.line == f"agentsd serves 1 agent and the console at {still.url} (generation 1; Ctrl-C ends it)"
    assert still.get("/health") == {"status": "ok"}
    live = still.get("/agent/config")
    assert (live["generation"], live["agents"], live["problems"], live["held"]) == (1, ["one"], [], False)
    assert (live["trigger"], len(live["digest"])) == ("startup", 16)
    assert [still.request("HEAD", path).status_code for path in ("/health", "/ready")] == [200, 200]
    (listed,) = still.get("/agent/agents")["agents"]
    assert (listed["name"], listed["description"], listed["model"]) == ("one", "v1", "offline")


def test_each_published_edit_is_added_to_the_history(server: Served, tmp_path: Path) -> None:
    edit(server, tmp_path, one(description="v2"))
    edit(server, tmp_path, one(description="v2", runtime_policy="{max_steps: 3}"))
    kept = server.get("/agent/config/history")["generations"]
    assert [(entry["generation"], entry["trigger"], entry["live"]) for entry in kept] == [
        (3, "watch", True),
        (2, "watch", False),
        (1, "startup", False),
    ]
    (change,) = kept[0]["changes"]
    assert change == {
        "agent": "one",
        "key": "runtime_policy.max_steps",
        "file_key": "limits.steps",
        "before": 10,
        "after": 3,
        "effect": "tightens",
    }


def test_a_rollback_publishes_the_old_generation_until_a_file_changes(server: Served, tmp_path: Path) -> None:
    first = server.get("/agent/config")
    edit(server, tmp_path, one(description="v2"))
    with server.event_stream() as events:
        live = server.post("/agent/config/rollback", {"generation": 1})
        assert next(events)["generation"] == 3
    assert (live["generation"], live["digest"], live["trigger"], live["held"]) == (
        3,
        first["digest"],
        "rollback",
        True,
    )
    assert server.get("/agent/agents")["agents"][0]["description"] == "v1"
    assert server.post("/agent/config/check")["held"] is True
    write(tmp_path, {ONE: one(description="v2")})  # the held-back bytes
    event = edit(server, tmp_path, one(description="v3"))
    assert (event["event"], event["generation"]) == ("config_reloaded", 4), "nothing went live in between"
    assert server.get("/agent/config")["held"] is False
    assert server.get("/agent/agents")["agents"][0]["description"] == "v3"


def test_an_unknown_generation_is_404_with_the_available_ones(still: Served) -> None:
    response = still.request("POST", "/agent/config/rollback", json={"generation": 9})
    assert response.status_code == 404
    assert response.json() == {
        "error": {
            "code": "generation_not_found",
            "type": "not_found_error",
            "message": "generation 9 is not in the history; available: 1",
            "param": "generation",
        }
    }


def test_a_rollback_whose_plugin_setup_fails_is_409_and_changes_nothing(tmp_path: Path) -> None:
    fails = "\n\nasync def setup(context):\n    from pathlib import Path\n    Path('once').rename('gone')\n"
    write(tmp_path, {ONE: one(description="v1"), "plugins/say.py": PLUGIN + fails, "once": ""})
    with served(tmp_path) as server:
        with server.event_stream() as events:
            write(tmp_path, {"plugins/say.py": PLUGIN})
            assert next(events)["event"] == "config_reloaded"
        response = server.request("POST", "/agent/config/rollback", json={"generation": 1})
        assert response.status_code == 409
        error = response.json()["error"]
        assert (error["code"], error["problems"][0]["path"]) == ("not_usable", "plugins/say.py")
        assert server.get("/agent/config")["generation"] == 2


def test_check_returns_what_the_files_would_change_and_publishes_nothing(tmp_path: Path) -> None:
    write(tmp_path, {ONE: one(description="v1")})
    with served(tmp_path, environment={"AGENTSD_RELOAD__QUIET": "1h"}) as server:  # nothing is published automatically
        assert server.post("/agent/config/check")["outcome"] == "unchanged"
        write(tmp_path, {ONE: one(description="v2", runtime_policy="{max_steps: 99}"), "agents.d/two.yaml": "name: ["})
        found = server.post("/agent/config/check")
        assert (found["outcome"], found["agents"]) == ("partial", ["one"])
        assert [(change["key"], change["effect"]) for change in found["changes"]] == [
            ("description", "neutral"),
            ("runtime_policy.max_steps", "widens"),
        ]
        assert [problem["path"] for problem in found["problems"]] == ["agents.d/two.yaml"]
        write(tmp_path, {"agents.d/two.yaml": agent("two", model="offline")})
        assert server.post("/agent/config/check")["outcome"] == "applied"
        write(tmp_path, {"agentsd.yaml": "modle: x\n"})
        rejected = server.post("/agent/config/check")
        assert (rejected["outcome"], rejected["problems"][0]["hint"]) == ("rejected", "did you mean 'model'?")
        assert server.get("/agent/config")["generation"] == 1
        assert server.get("/agent/agents")["agents"][0]["description"] == "v1"


def test_in_strict_mode_check_reports_that_one_invalid_file_rejects_the_edit(tmp_path: Path) -> None:
    write(tmp_path, {ONE: one(description="v1"), "agentsd.yaml": "reload: {mode: strict, quiet: 1h}\n"})
    with served(tmp_path, environment={"AGENTSD_RELOAD__QUIET": "1h"}) as server:
        write(tmp_path, {ONE: one(description="v2"), "agents.d/two.yaml": "name: ["})
        assert server.post("/agent/config/check")["outcome"] == "rejected"


def test_events_report_published_and_rejected_edits(server: Served, tmp_path: Path) -> None:
    with server.event_stream() as events:
        write(tmp_path, {ONE: one(description="v2")})
        reloaded = next(events)
        assert (reloaded["event"], reloaded["changed"]) == ("config_reloaded", ["one"])
        write(tmp_path, {ONE: "name: ["})
        rejected = next(events)
        assert (rejected["event"], rejected["problems"][0]["path"]) == ("config_rejected", ONE)
    assert server.get("/agent/config")["stale"] == ["one"]


def test_a_reconnecting_client_gets_the_missed_events(server: Served, tmp_path: Path) -> None:
    first = edit(server, tmp_path, one(description="v2"))
    edit(server, tmp_path, one(description="v3"))
    edit(server, tmp_path, one(description="v4"))
    with server.event_stream(first["id"]) as events:
        assert [next(events)["generation"] for _ in range(2)] == [3, 4]
    with server.event_stream("0a1b2c3d-3") as events:
        assert [next(events)["generation"] for _ in range(3)] == [2, 3, 4], "an id of another process: all there is"


@pytest.mark.parametrize(
    ("body", "content_type", "message"),
    [
        (
            b"{",
            "application/json",
            "the body is not JSON: Expecting property name enclosed in double quotes, at character 1",
        ),
        (b"[]", "application/json", "must be a JSON object"),
        (b'{"generation": 1}', "text/plain", "must be a JSON object"),
        (b'{"generation": true}', "application/json", "generation: "),
        (b'{"generation": "1"}', "application/json", "generation: "),
        (b'{"generation": 0}', "application/json", "generation: "),
        (b'{"generation": 1, "x": 1}', "application/json", "unknown field 'x'"),
        (b'{"generation": 1, "generation": 1}', "application/json", "duplicate key 'generation'"),
        (b"[" * 60_000, "application/json", ""),
        (b"\xff\xfe", "application/json", ""),
        (b"", "application/json", "must be a JSON object"),
    ],
)
def test_an_invalid_body_is_400_in_the_error_format(
    still: Served, body: bytes, content_type: str, message: str
) -> None:
    headers = {"content-type": content_type}
    response = still.request("POST", "/agent/config/rollback", content=body, headers=headers)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["type"]) == ("bad_request", "invalid_request_error")
    assert message in error["message"]
    assert error["param"] == ("generation" if message == "generation: " else "x" if "'x'" in message else None)
    assert still.get("/agent/config")["generation"] == 1


def test_a_body_that_is_too_long_is_413(still: Served) -> None:
    def chunks() -> Iterator[bytes]:
        yield from (b" " * 1024 for _ in range(100))

    for content in (b" " * 100_000, chunks()):
        headers = {"content-type": "application/json"}
        response = still.request("POST", "/agent/config/rollback", content=content, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")


def test_unknown_paths_and_methods_use_the_error_format(still: Served) -> None:
    for method, path, status, code in (
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/agent/nothing", 404, "not_found"),
        ("DELETE", "/agent/config", 405, "method_not_allowed"),
        ("GET", "/agent/config/", 404, "not_found"),
        ("GET", "//agent/config", 404, "not_found"),
        ("GET", "/agent/%2e%2e/health", 404, "not_found"),
        ("GET", "/docs", 404, "not_found"),
        ("GET", "/openapi.json", 404, "not_found"),
    ):
        response = still.request(method, path)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)
        assert response.headers["cache-control"] == "no-store"
        assert ("the routes are /health" if status == 404 else "`Allow`") in response.json()["error"]["message"]
    assert still.request("DELETE", "/agent/config").headers["allow"] == "GET"


def may_listen(server: Served) -> bool:
    with httpx2.stream("GET", f"{server.url}/agent/events", timeout=PATIENCE, **LOOPBACK) as response:
        return response.status_code == 200


def test_the_number_of_streams_is_limited_and_a_closed_one_is_free_again(still: Served) -> None:
    with ExitStack() as streams:
        for _ in range(STREAMS):
            stream = streams.enter_context(socket.create_connection(("127.0.0.1", still.port), PATIENCE))
            stream.sendall(b"GET /agent/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            received = b""
            while b"retry" not in received:
                received += (part := stream.recv(4096))
                assert part, received
        refused = still.request("GET", "/agent/events")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limited")
        assert int(refused.headers["retry-after"]) > 0
        assert still.get("/agent/config")["generation"] == 1
    while not may_listen(still):  # the server notices the closed connections a little later
        pass


@pytest.mark.parametrize("command", ["serve", "worker"])
@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({ONE: "version: 1\nname: one\n"}, "no valid agent; --allow-empty starts without one\nagents.d/one.yaml:1:1: "),
        ({}, "there are no agents: put one under agents.d/, or run `agentsd init`; --allow-empty"),
    ],
    ids=["invalid", "none"],
)
def test_without_a_valid_agent_a_start_exits_with_78(
    tmp_path: Path, command: str, files: dict[str, str], message: str
) -> None:
    port = ("--port", "0") if command == "serve" else ()
    done = agentsd(command, *port, cwd=write(tmp_path, files))

    assert done.returncode == 78
    assert f"error: {message}" in done.stderr


def test_without_a_valid_agent_the_server_is_not_ready_and_returns_the_reason(tmp_path: Path) -> None:
    write(tmp_path, {ONE: "version: 1\nname: one\n"})
    with served(tmp_path, "--allow-empty") as server:
        assert server.get("/health")
        response = server.request("GET", "/ready")
        assert response.status_code == 503
        assert "the key 'description' is missing" in str(response.json()["problems"])
        edit(server, tmp_path, one())
        assert server.get("/ready")["ready"] is True
        with server.event_stream() as events:
            (tmp_path / ONE).unlink()
            assert next(events)["removed"] == ["one"]
        assert server.request("GET", "/ready").json()["not_ready"] == ["agents"]


# --- shutdown


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_server_stops_cleanly_with_open_streams(tmp_path: Path, number: int) -> None:
    teardown = "\n\nasync def teardown(context):\n    print('torn down', flush=True)\n"
    write(tmp_path, {ONE: one(), "plugins/say.py": PLUGIN + teardown})
    with served(tmp_path) as server, server.event_stream() as events:
        assert server.stop(number) == 0
        assert list(events) == []
    assert "torn down" in server.output
    assert not any("Traceback" in line for line in server.output)
    assert any("generation 1 is live" in line for line in server.output)


def test_a_request_in_progress_is_answered_before_the_server_stops(tmp_path: Path) -> None:
    """The setup of the plugin of the earlier generation connects, and ends when its connection is closed."""
    write(tmp_path, {ONE: one(), "plugins/say.py": PLUGIN + SETUP_BY_PORT})
    with served(tmp_path) as server, socket.create_server(("127.0.0.1", 0)) as gate, ThreadPoolExecutor(1) as threads:
        with server.event_stream() as events:
            write(tmp_path, {"plugins/say.py": PLUGIN})
            next(events)
        write(tmp_path, {"port": str(gate.getsockname()[1])})
        asked = threads.submit(server.post, "/agent/config/rollback", {"generation": 1})
        connection, _ = gate.accept()
        with connection:
            server.process.send_signal(signal.SIGTERM)
            server.wait_until_refused()
        assert asked.result(PATIENCE)["generation"] == 3
        assert server.process.wait(PATIENCE) == 0


def test_a_signal_during_startup_stops_the_server(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gate:
        port = str(gate.getsockname()[1])
        write(tmp_path, {ONE: one(), "plugins/say.py": PLUGIN + SETUP_BY_PORT, "port": port})
        command = [*COMMAND, "serve", "--port", "0"]
        env = {**ENVIRONMENT, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(command, cwd=tmp_path, env=env) as process:
            connection, _ = gate.accept()
            with connection:
                process.terminate()
            assert process.wait(PATIENCE) == 0


def test_reloads_are_traced_as_configured(tmp_path: Path) -> None:
    write(tmp_path, {ONE: one()})
    with sink() as kept:
        with served(tmp_path, environment={"AGENTSD_TELEMETRY__OTLP_ENDPOINT": kept.url}) as server:
            edit(server, tmp_path, one(description="v2"))
            assert server.stop() == 0
        assert [span.name for span in kept.spans].count("config.reload") == 1


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    write(tmp_path, {ONE: one()})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = agentsd("serve", "--port", str(port), cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        f"error: 127.0.0.1, port {port} is in use: choose another port with --port or server.port, or stop "
        "the program that uses it\n"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--host", "0.0.0.0"), 78, "set server.api_keys"),
        (("nowhere",), 2, "no such file or folder: nowhere"),
    ],
)
def test_an_unusable_address_or_folder_is_reported(
    tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    write(tmp_path, {ONE: one()})
    done = agentsd("serve", *arguments, cwd=tmp_path)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


def test_one_agent_file_can_be_served_without_a_project(tmp_path: Path) -> None:
    write(tmp_path, {"one.yaml": one(description="v1")})
    with served(tmp_path, path="one.yaml") as server:
        with server.event_stream() as events:
            write(tmp_path, {"one.yaml": one(description="v2")})
            assert next(events)["changed"] == ["one"]
        assert server.post("/agent/config/rollback", {"generation": 1})["generation"] == 3


def test_without_the_extra_serve_reports_it_and_other_commands_work(tmp_path: Path) -> None:
    write(tmp_path, {ONE: one()})
    without = "import sys; sys.modules.update(fastapi=None, uvicorn=None, starlette=None)"
    command = install_command_in(tmp_path, "agentsd[serve]")
    for arguments, code, message in (
        (["serve"], 78, f"`agentsd serve` needs FastAPI and uvicorn: {command}"),
        (["config", "history", "--url", "http://127.0.0.1:1"], 1, "there is no server at http://127.0.0.1:1"),
    ):
        program = f"{without}; from framework.cli.main import main; main({arguments!r})"
        env = {**ENVIRONMENT, "PYTHONPATH": str(ROOT)}
        words = [sys.executable, "-c", program]
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=30, check=False)
        assert (done.returncode, message in done.stderr) == (code, True), done.stderr


def test_invalid_files_in_strict_mode_exit_with_78(tmp_path: Path) -> None:
    write(tmp_path, {ONE: "name: [", "agentsd.yaml": "reload: {mode: strict}\n"})
    done = agentsd("serve", "--port", "0", cwd=tmp_path)
    assert done.returncode == 78
    assert "nothing is served until every file is valid" in done.stderr


# --- mounted into another app


async def _asked(app: FastAPI, path: str, **headers: str) -> httpx2.Response:
    transport = httpx2.ASGITransport(app, client=("192.0.2.7", 1))
    async with httpx2.AsyncClient(transport=transport, base_url="http://app.example.com") as client:
        return await client.get(path, headers=headers)


def test_the_routes_mount_into_any_app(tmp_path: Path) -> None:
    write(tmp_path, {ONE: one()})

    def signed_in(who: str | None = None) -> None:
        if who != "ann":
            raise HTTPException(401)

    async def main() -> None:
        async with Runtime.open(tmp_path, watch=False) as runtime:
            guarded, own = FastAPI(), FastAPI()
            guarded.include_router(router(runtime), prefix="/bots")
            own.include_router(router(runtime, guarded=False), dependencies=[Depends(signed_in)])
            refused = await _asked(guarded, "/bots/agent/config")
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "access_denied")
            assert (await _asked(own, "/agent/config")).status_code == 401
            live = await _asked(own, "/agent/config?who=ann")
            assert (live.status_code, live.json()["agents"]) == (200, ["one"])

    asyncio.run(main())


def test_one_app_serves_several_runtimes(tmp_path: Path) -> None:
    names = ("first", "second")

    async def main() -> None:
        app = FastAPI()
        async with AsyncExitStack() as stack:
            for name in names:
                project = write(tmp_path / name, {f"agents.d/{name}.yaml": agent(name, model="offline")})
                runtime = await stack.enter_async_context(Runtime.open(project, watch=False))
                app.include_router(router(runtime, guarded=False), prefix=f"/{name}")
            for name in names:
                assert (await _asked(app, f"/{name}/agent/config")).json()["agents"] == [name]
                assert (await _asked(app, f"/{name}/agent/runs")).status_code == 200

    asyncio.run(main())
