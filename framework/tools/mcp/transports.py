"""An MCP server as a child process: JSON lines over its standard streams, and nothing left of it afterwards.

The SDK has a transport of its own for this: its lines have no limit, each that is not MCP becomes a traceback in the
log, the child's errors go to our own standard error, and a natively cancelled task leaves the child behind.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process, SubprocessStreamProtocol
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any, cast

import anyio
import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

from framework.tools.mcp import child_launcher
from framework.types.bounded_body import BoundedStream
from framework.types.tool_servers import McpServer

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.client._transport import TransportStreams

_MAX_LINE_BYTES = 16 * 1024 * 1024
_MAX_STRAY_LINES = 1000
"""Lines that are not MCP: some servers log to their standard output, none does only that."""
INHERITED_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
"""What a child gets of our environment: what finds programs and folders and sets the language, no secrets."""
_GRACE_SECONDS = 1.0
"""Seconds for a child to go when its input ends, and again when it is asked to."""
_MAX_ERROR_BYTES = 2000

MAX_RESPONSE_BYTES = 16 * 1024 * 1024
_MAX_IDLE_SECONDS = 300.0
"""Idle time on a stream, in seconds, after which the connection counts as lost."""

OnHttpError = Callable[[int], None]
"""Called with the status of a failed HTTP response."""

OnDisconnect = Callable[[str], None]
"""Called with why a server cannot be spoken to any longer."""


class _ServerProcess:
    """A started server."""

    def __init__(self, transport: asyncio.SubprocessTransport, process: Process) -> None:
        self._transport, self._process = transport, process
        self._errors = b""
        self._silent = asyncio.Event()

    async def read(
        self, to_session: MemoryObjectSendStream[SessionMessage | Exception], on_disconnect: OnDisconnect
    ) -> None:
        """Hand over what the server says, until it ends or says too much that is not MCP."""
        output, strays = self._process.stdout, 0
        assert output
        async with to_session:
            while strays <= _MAX_STRAY_LINES:
                try:
                    line = await output.readline()
                except ValueError:
                    on_disconnect(f"it sent a line of more than {_MAX_LINE_BYTES // 2**20} MB")
                    return
                if not line:
                    on_disconnect(await self._ended())
                    return
                message = _message(line)
                if message is None:
                    strays += 1
                    continue
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the session ended first
                    await to_session.send(message)
        on_disconnect("it prints what is not MCP to its standard output")

    async def write(self, from_session: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Pass on what the session says; that the server is gone is noticed by reading."""
        assert self._process.stdin
        async with from_session:
            async for item in from_session:
                line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                with suppress(ConnectionError):
                    self._process.stdin.write(line.encode() + b"\n")
                    await self._process.stdin.drain()

    async def collect_errors(self) -> None:
        """Keep the end of what the server writes to its standard error."""
        assert self._process.stderr
        while chunk := await self._process.stderr.read(65536):
            self._errors = (self._errors + chunk)[-_MAX_ERROR_BYTES:]
        self._silent.set()

    async def terminate(self) -> None:
        """Let it go, ask it to go, make it go: with all the processes it started in its group."""
        try:
            with anyio.CancelScope(shield=True):
                if self._process.stdin:
                    self._process.stdin.close()
                if not await self._exits_within(_GRACE_SECONDS):
                    self._signal(signal.SIGTERM)
                    await self._exits_within(_GRACE_SECONDS)
        finally:  # also when the task is cancelled natively, which no scope shields from
            self._signal(signal.SIGKILL)
            self._transport.close()
        with anyio.CancelScope(shield=True):
            await self._exits_within(_GRACE_SECONDS)

    async def _ended(self) -> str:
        with anyio.move_on_after(_GRACE_SECONDS):
            await self._silent.wait()
        code = self._process.returncode if await self._exits_within(_GRACE_SECONDS) else None
        words = self._errors.decode("utf-8", "replace").strip().splitlines()
        return _how_it_ended(code, words[-1].strip() if words else "")

    async def _exits_within(self, seconds: float) -> bool:
        """Not `process.wait()`: that also waits for grandchildren who hold the pipes."""
        with anyio.move_on_after(seconds):
            while self._process.returncode is None:  # noqa: ASYNC110 - asyncio has no event for it without the pipes
                await anyio.sleep(0.01)
        return self._process.returncode is not None

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


@asynccontextmanager
async def stdio_transport(server: McpServer, on_disconnect: OnDisconnect) -> AsyncIterator[TransportStreams]:
    """Start a server; afterwards it is gone. An MCP SDK transport.

    Args:
        server: with a command.
        on_disconnect: called when it can no longer be spoken to.

    Raises:
        OSError: it cannot be started.
    """
    child = await _start(server)
    to_session, from_child = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_child, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with anyio.create_task_group() as tasks, from_child, to_child:
            tasks.start_soon(child.collect_errors)
            tasks.start_soon(child.read, to_session, on_disconnect)
            tasks.start_soon(child.write, from_session)
            try:
                yield from_child, to_child
            finally:
                tasks.cancel_scope.cancel()
    finally:
        to_session.close()
        from_session.close()
        await child.terminate()


async def _start(server: McpServer) -> _ServerProcess:
    loop = asyncio.get_running_loop()
    kept = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    given = {name: value.get_secret_value() for name, value in server.env.items()}
    env = kept | given
    transport, protocol = await loop.subprocess_exec(
        lambda: SubprocessStreamProtocol(limit=_MAX_LINE_BYTES, loop=loop),
        *_launched(server.command, env),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=env,
        start_new_session=True,
    )
    return _ServerProcess(transport, Process(transport, protocol, loop))


def _launched(command: Sequence[str], env: Mapping[str, str]) -> Sequence[str]:
    """The command, so that it ends with us even if we are killed. Elsewhere than on Linux, its input ends, no more.

    Raises:
        FileNotFoundError: there is no such program.
        PermissionError: it is not executable.
    """
    if sys.platform != "linux" or not sys.executable:
        return command
    program = which(command[0], path=env.get("PATH", os.defpath))
    if program is None:
        raise PermissionError(command[0]) if Path(command[0]).is_file() else FileNotFoundError(command[0])
    return (sys.executable, "-I", "-S", child_launcher.__file__, str(os.getpid()), program, *command)


def _how_it_ended(code: int | None, last_words: str) -> str:
    if code is not None and code < 0:
        how = f"it was killed by signal {-code}{_name_of(-code)}"
        return f"{how}; the last line of its standard error was: {last_words}" if last_words else how
    how = "it closed its standard output" if code is None else f"it ended with exit code {code}"
    return f"{how}: {last_words}" if last_words else how


def _name_of(number: int) -> str:
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:  # a real-time signal
        return ""


def _message(line: bytes) -> SessionMessage | None:
    try:
        return SessionMessage(cast("Any", jsonrpc_message_adapter.validate_json(line, by_name=False)))
    except ValueError:
        return None


@asynccontextmanager
async def http_transport(server: McpServer, on_http_error: OnHttpError) -> AsyncIterator[TransportStreams]:
    """Connect to a server over streamable HTTP. An MCP SDK transport."""
    assert server.url
    async with (
        _http_client(server, on_http_error) as client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=MAX_RESPONSE_BYTES) as streams,
    ):
        yield streams


def _http_client(server: McpServer, on_http_error: OnHttpError) -> httpx2.AsyncClient:
    """A client with the server's headers; no answer is compressed, none is larger than allowed."""
    message = f"it sent an answer of more than {MAX_RESPONSE_BYTES // 2**20} MB"

    async def check(response: httpx2.Response) -> None:
        if response.status_code >= 400:
            on_http_error(response.status_code)
        if response.headers.get("content-encoding", "identity") != "identity":
            raise httpx2.DecodingError("it compresses its answers unasked", request=response.request)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = BoundedStream(response.stream, MAX_RESPONSE_BYTES, message, response.request)

    configured = {name: value.get_secret_value() for name, value in server.headers.items()}
    idle = max(_MAX_IDLE_SECONDS, server.timeout + 30)
    timeout = httpx2.Timeout(server.connect_timeout, read=idle)
    # A compressed body can unfold to any size before its length is seen.
    headers = {"accept-encoding": "identity"} | configured
    return httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks={"response": [check]})
