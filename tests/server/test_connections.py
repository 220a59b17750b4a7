"""Connections that never send a request: a server closes them and answers the others."""

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
from framework.server.connections import ConnectionLimits, client_key
from framework.server.listen_socket import bind_socket
from tests.support.loopback import LOOPBACK
from tests.support.projects import agent, write
from tests.support.served import PATIENCE, Served, served

ONE = {"agents.d/one.yaml": agent("one", model="offline")}
HALF = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
FILES = 400
"""Limit of open files of the servers here."""


LIMITS = {"AGENTSD_SERVER__MAX_CONNECTIONS": "100", "AGENTSD_SERVER__MAX_CONNECTIONS_PER_ADDRESS": "40"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    environment = {**LIMITS, "AGENTSD_SERVER__REQUEST_TIMEOUT": "2s"}
    with served(write(tmp_path, ONE), environment=environment) as started:
        resource.prlimit(started.process.pid, resource.RLIMIT_NOFILE, (FILES, FILES))
        yield started


def half_open(stack: ExitStack, port: int, source: str = "127.0.0.1") -> socket.socket:
    """A connection whose request never ends."""
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE, (source, 0)))
    connection.sendall(HALF)
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Wait until the server closes a connection."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_half_open_connections_do_not_block_health(server: Served) -> None:
    with ExitStack() as stack:
        for number in range(2 * FILES):
            half_open(stack, server.port, f"127.0.0.{number % 200 + 1}")
            if number % 100 == 99:
                assert server.get("/health") == {"status": "ok"}
        assert server.get("/health") == {"status": "ok"}
    assert server.stop() == 0
    assert len(server.output) < 5, server.output[:20]


def test_an_incomplete_request_times_out(server: Served) -> None:
    with ExitStack() as stack:
        assert is_closed(half_open(stack, server.port))
        silent = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), PATIENCE))
        assert is_closed(silent)


def test_an_incomplete_body_times_out(server: Served) -> None:
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
        connection.sendall(
            b"POST /agent/config/rollback HTTP/1.1\r\nHost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b'content-length: 20\r\n\r\n{"gen'
        )
        assert is_closed(connection)


def test_a_client_that_does_not_read_times_out(server: Served) -> None:
    """Without a deadline the request would stay in progress forever and keep its connection."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(3 * PATIENCE)
        connection.connect(("127.0.0.1", server.port))
        requests = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 1_000_000
        with pytest.raises(ConnectionError):
            connection.sendall(requests)
    assert server.get("/health") == {"status": "ok"}


def test_one_address_cannot_exhaust_the_connections_of_others(tmp_path: Path) -> None:
    with served(write(tmp_path, ONE), environment=LIMITS) as server, ExitStack() as stack:
        other = half_open(stack, server.port, "127.0.0.2")
        first = half_open(stack, server.port)
        for _ in range(60):
            half_open(stack, server.port)
        assert is_closed(first)
        other.sendall(b"\r\nConnection: close\r\n\r\n")
        assert other.recv(15) == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("192.0.2.1", "192.0.2.2", False),
    ],
)
def test_addresses_of_one_ipv6_network_share_their_limit(one: str, other: str, is_same: bool) -> None:
    assert (client_key(one) == client_key(other)) == is_same


def test_a_new_connection_gets_503_if_all_are_busy(tmp_path: Path) -> None:
    write(tmp_path, {**ONE, "agentsd.yaml": "server: {max_connections: 2}\n"})
    with served(tmp_path) as server, server.event_stream(), server.event_stream():
        answered = server.request("GET", "/health")
        assert (answered.status_code, answered.json()["error"]["code"]) == (503, "too_many_connections")


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
    limits = ConnectionLimits.of(ServerSettings(max_connections=500, max_connections_per_address=300))
    assert (limits.total, limits.per_address) == (FILES - 256, FILES - 256)


def test_a_lack_of_open_files_is_logged_once_and_recovers(server: Served) -> None:
    open_now = len([*Path(f"/proc/{server.process.pid}/fd").iterdir()])
    with ExitStack() as stack:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (open_now + 5, FILES))
        waiting = [half_open(stack, server.port) for _ in range(30)]
        assert is_closed(waiting[0]), "those that were accepted time out"
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (FILES, FILES))
    assert server.get("/health") == {"status": "ok"}
    assert server.stop() == 0
    logged = [line for line in server.output if "cannot accept connections: Too many open files" in line]
    assert (len(logged), len(server.output) < 20) == (1, True), server.output
