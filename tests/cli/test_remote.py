"""`agentsd config history` and `agentsd config rollback`, with agentsd servers and other servers."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from framework.cli.config import NoServer, Remote
from framework.server.schemas import ConfigHistory
from framework.types.errors import RequestError
from tests.support.api_keys import KEY, OTHER
from tests.support.commands import agentsd
from tests.support.projects import agent, write
from tests.support.served import Served, served
from tests.support.site import Site, answer, redirect

ONE = "agents.d/one.yaml"


def one(**keys: str) -> str:
    return agent("one", model="offline", **keys)


def settings(port: int, more: str = "") -> str:
    return f"server: {{port: {port}{more}}}\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    """A server that has seen two edits."""
    write(tmp_path, {ONE: one(description="v1")})
    with served(tmp_path) as server:
        with server.event_stream() as events:
            write(tmp_path, {ONE: one(description="v2", runtime_policy="{max_steps: 3}")})
            next(events)
            write(tmp_path, {"agents.d/two.yaml": agent("two", model="offline")})
            next(events)
        yield server


def test_history_is_a_table_with_the_live_generation_marked(server: Served, tmp_path: Path) -> None:
    done = agentsd("config", "history", "--url", server.url, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    when = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    digest = "[0-9a-f]{16}"
    for line, pattern in zip(
        done.stdout.splitlines(),
        (
            rf"\* 3  {when}  {digest}  watch    two: added \(widens\)",
            rf"  2  {when}  {digest}  watch    one: description: v1 -> v2 \(neutral\)",
            r" {53}one: limits\.steps: 10 -> 3 \(tightens\)",
            rf"  1  {when}  {digest}  startup  one: added \(widens\)",
        ),
        strict=True,
    ):
        assert re.fullmatch(pattern, line), line
    as_json = json.loads(agentsd("config", "history", "--url", server.url, "--json", cwd=tmp_path).stdout)
    assert [entry["generation"] for entry in as_json["generations"]] == [3, 2, 1]


def test_event_and_history_agree_about_a_rejected_edit(server: Served, tmp_path: Path) -> None:
    with server.event_stream() as events:
        write(tmp_path, {ONE: one(description="v3", max_stepz="1")})
        event = next(events)
    assert (event["event"], event["generation"]) == ("config_rejected", 4)
    live = agentsd("config", "history", "--url", server.url, cwd=tmp_path).stdout.splitlines()[0]
    assert live.startswith("* 4 ")
    assert live.endswith(f"invalid, last good version stays live: {ONE}")


def test_rollback_activates_an_old_generation_and_reports_the_held_edit(server: Served, tmp_path: Path) -> None:
    done = agentsd("config", "rollback", "1", "--url", server.url, cwd=tmp_path)
    assert done.returncode == 0
    first, second = done.stdout.splitlines()
    assert re.fullmatch(r"generation 4 is live, with the content of generation 1 \(digest [0-9a-f]{16}\)", first)
    assert second == "the files differ from it: they are not loaded until they change again"
    assert server.get("/agent/agents")["agents"][0]["description"] == "v1"
    table = agentsd("config", "history", "--url", server.url, cwd=tmp_path).stdout
    assert table.startswith("* 4  ")
    assert "rollback" in table.splitlines()[0]
    as_json = agentsd("config", "rollback", "3", "--url", server.url, "--json", cwd=tmp_path)
    assert json.loads(as_json.stdout)["generation"] == 5


def test_an_unknown_generation_is_an_error_that_lists_the_known_ones(server: Served, tmp_path: Path) -> None:
    done = agentsd("config", "rollback", "9", "--url", server.url, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "error: generation 9 is not in the history; available: 1, 2, 3\n")
    assert agentsd("config", "rollback", "0", "--url", server.url, cwd=tmp_path).returncode == 2


def test_the_server_and_its_key_come_from_the_settings(tmp_path: Path) -> None:
    write(tmp_path, {ONE: one(), "agentsd.yaml": settings(0, f", api_keys: ['{KEY}']")})
    with served(tmp_path, key=KEY) as server:
        other, keyless = str(tmp_path / "other"), str(tmp_path / "keyless")
        write(tmp_path / "other", {"agentsd.yaml": settings(server.port, f", api_keys: ['{KEY}']")})
        write(tmp_path / "keyless", {"agentsd.yaml": settings(server.port)})

        def ask(url: str | None, key: str | None, project: str) -> int:
            return len(Remote.of(url, key, project).request("/agent/config/history", ConfigHistory).generations)

        assert ask(None, None, other) == ask(None, KEY, keyless) == ask(server.url + "/", KEY, "nowhere") == 1
        for url, key, project, message in (
            (None, None, keyless, "missing key"),
            (None, OTHER, other, "wrong key"),
            (server.url, None, other, "missing key"),  # the key in the settings is only for the server in the settings
        ):
            with pytest.raises(RequestError) as caught:
                ask(url, key, project)
            where = f"for the server at {server.url}: pass it as --key or AGENTSD_API_KEY"
            assert caught.value.message == f"{message} {where}"
        assert agentsd("config", "history", "-C", "other", cwd=tmp_path).returncode == 0
        assert agentsd("config", "history", "-C", "keyless", cwd=tmp_path, AGENTSD_API_KEY=KEY).returncode == 0
        wrong = agentsd("config", "history", "-C", "keyless", "--key", OTHER, cwd=tmp_path)
        assert (wrong.returncode, "wrong key" in wrong.stderr) == (2, True)


def test_without_a_server_the_error_shows_how_to_start_one(tmp_path: Path) -> None:
    with socket.socket() as bound:  # nobody listens there, and no other process can
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        write(tmp_path, {"agentsd.yaml": settings(port)})
        done = agentsd("config", "history", cwd=tmp_path)
        as_json = agentsd("config", "rollback", "1", "--json", cwd=tmp_path)
    message = f"there is no server at http://127.0.0.1:{port}: start one with `agentsd serve`"
    assert (done.returncode, done.stderr) == (1, f"error: {message}\n")
    assert json.loads(as_json.stdout) == {"error": {"code": "no_server", "message": message}}


@pytest.mark.parametrize(
    "page",
    [
        answer("<html>Welcome</html>", "content-type: text/html"),
        answer("{}", "content-type: application/json"),
        answer("[]", "content-type: application/json"),
        answer('{"generations": [{"generation": "\\u001b[2J"}]}', "content-type: application/json"),
        answer('{"detail": "Not Found"}', "content-type: application/json", status="404 Not Found"),
        answer("[" * 100_000, "content-type: application/json"),
        answer(b"\xff\xfe\x00", "content-type: application/json"),
        redirect("http://127.0.0.1:1/agent/config/history"),
        b"220 mail.example.com ESMTP\r\n",
        b"",
    ],
)
def test_another_server_is_an_error(page: bytes) -> None:
    with other_server({"/agent/config/history": page}) as url:
        with pytest.raises(NoServer) as caught:
            Remote.of(url, None, ".").request("/agent/config/history", ConfigHistory)
        assert str(caught.value).startswith(f"{url} is not an agentsd server: ")
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("url", ["localhost:8321", "ftp://localhost", "http://", "http://[", "http://a b"])
def test_an_invalid_url_is_an_error(url: str) -> None:
    with pytest.raises(RequestError, match="not the URL of a server"):
        Remote.of(url, None, ".")


def test_text_from_a_server_cannot_move_the_cursor(tmp_path: Path) -> None:
    entry = {
        "generation": 1, "digest": "d\u001b[2J", "at": "2026-01-01T00:00:00Z", "trigger": "watch", "live": True,
        "changes": [{"agent": "a\u202e\u001b]0;x\u0007", "key": "k", "effect": "neutral"}], "new": 1,
    }  # fmt: skip
    body = json.dumps({"generations": [entry], "also new": 1})
    with other_server({"/agent/config/history": answer(body, "content-type: application/json")}) as url:
        done = agentsd("config", "history", "--url", url, cwd=tmp_path)
    assert done.returncode == 0
    assert not set("\x1b\x07\u202e") & set(done.stdout)


@contextmanager
def other_server(pages: dict[str, bytes]) -> Iterator[str]:
    """Serve `pages` by path in a separate thread; yield the URL."""
    started: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def main() -> None:
        site, over = Site(pages), asyncio.Event()
        async with await asyncio.start_server(site.serve, "127.0.0.1", 0) as serving:
            site.port = serving.sockets[0].getsockname()[1]
            started.set_result((site.url, asyncio.get_running_loop(), over))
            await over.wait()

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(lambda: asyncio.run(main()))
        url, loop, over = started.result()
        try:
            yield url
        finally:
            loop.call_soon_threadsafe(over.set)
            running.result()
