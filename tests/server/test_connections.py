"""Connections of a server: their limit, open files, and small packets."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from framework.config.settings import ServerSettings
from framework.server.process import bind_socket, connection_limit
from tests.support.loopback import LOOPBACK
from tests.support.projects import agent, write
from tests.support.served import PATIENCE, Served, served

ONE = {"agents.d/one.yaml": agent("one", model="offline")}
FILES = 400
"""Limit of open files here."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with served(write(tmp_path, ONE)) as started:
        yield started


def test_a_request_beyond_the_limit_of_connections_gets_503(tmp_path: Path) -> None:
    write(tmp_path, {**ONE, "agentsd.yaml": "server: {max_connections: 2}\n"})
    with served(tmp_path) as server, server.event_stream(), server.event_stream():
        assert server.request("GET", "/health").status_code == 503


def test_a_keep_alive_connection_serves_many_requests(server: Served) -> None:
    with httpx2.Client(base_url=server.url, timeout=PATIENCE, **LOOPBACK) as client:
        assert [client.get("/health").status_code for _ in range(50)] == [200] * 50


def test_responses_are_not_delayed_until_the_client_acknowledges_their_beginning() -> None:
    async def main() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            found.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with bind_socket(ServerSettings(port=0)) as bound:
            async with await asyncio.start_server(accept, sock=bound):
                _, writer = await asyncio.open_connection(*bound.getsockname())
                writer.close()
                return await found

    assert asyncio.run(main()) == 1


@pytest.fixture
def few_files() -> Iterator[None]:
    """A low limit of open files for this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_files")
def test_the_limit_of_open_files_lowers_the_number_of_connections() -> None:
    assert connection_limit(ServerSettings(max_connections=500)) == FILES - 256
    assert connection_limit(ServerSettings(max_connections=100)) == 100


def test_a_lack_of_open_files_is_logged_once_and_recovers(server: Served) -> None:
    def logged() -> list[str]:
        return [line for line in server.output if "cannot accept connections: Too many open files" in line]

    open_now = len([*Path(f"/proc/{server.process.pid}/fd").iterdir()])
    with ExitStack() as stack:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (open_now + 5, FILES))
        for _ in range(30):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), PATIENCE))
        while not logged():  # a thread reads the output
            assert server.process.poll() is None
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (FILES, FILES))
    assert server.get("/health") == {"status": "ok"}
    assert server.stop() == 0
    assert (len(logged()), len(server.output) < 20) == (1, True), server.output
