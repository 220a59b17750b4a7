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
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

from framework.tools.mcp import child_launcher
from framework.types.source import McpServer

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.client._transport import TransportStreams

MAX_LINE_BYTES = 16 * 1024 * 1024
MAX_STRAY_LINES = 1000
"""Lines that are not MCP: some servers log to their standard output, none does only that."""
INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
"""What a child gets of our environment: what finds programs and folders and sets the language, no secrets."""
GRACE = 1.0
"""Seconds for a child to go when its input ends, and again when it is asked to."""
_LAST_WORDS = 2000

Gone = Callable[[str], None]
"""Called with why a server cannot be spoken to any longer."""


class Child:
    """A started server."""

    def __init__(self, transport: asyncio.SubprocessTransport, process: Process) -> None:
        self._transport, self._process = transport, process
        self._errors = b""
        self._silent = asyncio.Event()

    async def read(self, to_session: MemoryObjectSendStream[SessionMessage | Exception], gone: Gone) -> None:
        """Hand over what the server says, until it ends or says too much that is not MCP."""
        output, strays = self._process.stdout, 0
        assert output
        async with to_session:
            while strays <= MAX_STRAY_LINES:
                try:
                    line = await output.readline()
                except ValueError:
                    gone(f"it sent a line of more than {MAX_LINE_BYTES // 2**20} MB")
                    return
                if not line:
                    gone(await self._ended())
                    return
                message = _message(line)
                if message is None:
                    strays += 1
                    continue
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the session ended first
                    await to_session.send(message)
        gone("it prints what is not MCP to its standard output")

    async def write(self, from_session: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Pass on what the session says; that the server is gone is noticed by reading."""
        assert self._process.stdin
        async with from_session:
            async for item in from_session:
                line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                with suppress(ConnectionError):
                    self._process.stdin.write(line.encode() + b"\n")
                    await self._process.stdin.drain()

    async def overhear(self) -> None:
        """Keep the end of what the server writes to its standard error."""
        assert self._process.stderr
        while chunk := await self._process.stderr.read(65536):
            self._errors = (self._errors + chunk)[-_LAST_WORDS:]
        self._silent.set()

    async def end(self) -> None:
        """Let it go, ask it to go, make it go: with all the processes it started in its group."""
        try:
            with anyio.CancelScope(shield=True):
                if self._process.stdin:
                    self._process.stdin.close()
                if not await self._exits_within(GRACE):
                    self._signal(signal.SIGTERM)
                    await self._exits_within(GRACE)
        finally:  # also when the task is cancelled natively, which no scope shields from
            self._signal(signal.SIGKILL)
            self._transport.close()
        with anyio.CancelScope(shield=True):
            await self._exits_within(GRACE)

    async def _ended(self) -> str:
        with anyio.move_on_after(GRACE):
            await self._silent.wait()
        code = self._process.returncode if await self._exits_within(GRACE) else None
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
async def child_streams(server: McpServer, gone: Gone) -> AsyncIterator[TransportStreams]:
    """Start a server; afterwards it is gone. An MCP SDK transport.

    Args:
        server: with a command.
        gone: called when it can no longer be spoken to.

    Raises:
        OSError: it cannot be started.
    """
    child = await _start(server)
    to_session, from_child = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_child, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with anyio.create_task_group() as tasks, from_child, to_child:
            tasks.start_soon(child.overhear)
            tasks.start_soon(child.read, to_session, gone)
            tasks.start_soon(child.write, from_session)
            try:
                yield from_child, to_child
            finally:
                tasks.cancel_scope.cancel()
    finally:
        to_session.close()
        from_session.close()
        await child.end()


async def _start(server: McpServer) -> Child:
    loop = asyncio.get_running_loop()
    kept = {name: os.environ[name] for name in INHERITED if name in os.environ}
    given = {name: value.get_secret_value() for name, value in server.env.items()}
    env = kept | given
    transport, protocol = await loop.subprocess_exec(
        lambda: SubprocessStreamProtocol(limit=MAX_LINE_BYTES, loop=loop),
        *_launched(server.command, env),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=env,
        start_new_session=True,
    )
    return Child(transport, Process(transport, protocol, loop))


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
