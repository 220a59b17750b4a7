"""Transports to MCP servers: child processes (stdio) and streamable HTTP.

The SDK's stdio transport is not used: it does not limit the length of lines, logs a traceback for each line that is not
MCP, passes the server's standard error through, and leaves the process running after native cancellation.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process, SubprocessStreamProtocol
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any, cast

import anyio
import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCResponse, jsonrpc_message_adapter
from mcp.types.methods import validate_server_result
from pydantic import ValidationError

from framework.tools.child_processes import child_environment, forbid_inspection
from framework.tools.mcp import child_launcher
from framework.types.http import trusted_certificates
from framework.types.http_transport import BoundedStream
from framework.types.text import shorten
from framework.types.tool_servers import McpServer

if TYPE_CHECKING:
    from types import TracebackType

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.client import Transport

TransportStreams = tuple[Any, Any]
"""What a server sends and what is sent to it; the SDK does not export the types of these streams."""
_MAX_LINE_BYTES = 16 * 1024 * 1024
_MAX_STRAY_LINES = 1000
"""Maximum number of lines that are not MCP. Some servers log to their standard output."""
_GRACE_SECONDS = 1.0
"""Time for a child process to exit after its input is closed, and again after SIGTERM, in seconds."""
_MAX_ERROR_BYTES = 2000

MAX_RESPONSE_BYTES = 16 * 1024 * 1024
_MAX_IDLE_SECONDS = 300.0
"""Idle time on a stream, in seconds, after which the connection counts as lost."""

OnHttpError = Callable[[int], None]
"""Called with the status of a failed HTTP response."""

OnDisconnect = Callable[[str], None]
"""Called with the reason when the connection to a server ends."""

OnInvalidTool = Callable[[str, str], None]
"""Called with the name of a tool in a server's list that is left out, and why it is invalid."""
_USED_FIELDS = ("name", "title", "description", "inputSchema", "annotations")
"""Fields of a tool's definition that are read. An invalid icon or output schema, which nothing reads, is no fault."""
_CHECKED_LISTS = ("tools", "resources")
_STRICTEST_VERSION = "2025-11-25"
"""The version of MCP by which each entry is validated; the later one accepts more input schemas."""
_UNREAD = ("annotations", "_meta", "icons")
"""Fields of a block of a result that nothing reads."""
_MAX_BLOCK_CHARS = 2000
"""Characters that are shown of a block of an unknown form."""


class _Protocol(SubprocessStreamProtocol):
    """The pipes of a child process, and its exit, which they may outlive."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=_MAX_LINE_BYTES, loop=loop)
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        """Note that the process has ended."""
        self.exited.set()
        super().process_exited()


class _ServerProcess:
    """The child process of a server."""

    def __init__(self, transport: asyncio.SubprocessTransport, protocol: _Protocol, process: Process) -> None:
        self._transport, self._protocol, self._process = transport, protocol, process
        self._errors = b""
        self._silent = asyncio.Event()

    async def read(
        self, to_session: MemoryObjectSendStream[SessionMessage | Exception], on_disconnect: OnDisconnect
    ) -> None:
        """Pass the server's messages to the session, until it ends or writes too many lines that are not MCP.

        A process that was killed has ended, even if a child of it keeps its standard output open.
        """
        reason = ""
        async with to_session:
            async with anyio.create_task_group() as tasks:

                async def end_after_exit() -> None:
                    await self._protocol.exited.wait()
                    await anyio.sleep(_GRACE_SECONDS)  # for what it wrote last
                    tasks.cancel_scope.cancel()

                tasks.start_soon(end_after_exit)
                reason = await self._pass_on(to_session)
                tasks.cancel_scope.cancel()
            on_disconnect(reason or await self._ended())

    async def _pass_on(self, to_session: MemoryObjectSendStream[SessionMessage | Exception]) -> str:
        """Pass the server's messages to the session; return why it ends."""
        output, strays = self._process.stdout, 0
        assert output
        while strays <= _MAX_STRAY_LINES:
            try:
                line = await output.readline()
            except ValueError:
                return f"it sent a line of more than {_MAX_LINE_BYTES // 2**20} MB"
            if not line:
                return await self._ended()
            message = _message(line)
            if message is None:
                strays += 1
                continue
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the session ended first
                await to_session.send(message)
        return "its standard output is not MCP"

    async def write(self, from_session: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Pass the session's messages to the server. `read` detects that the server has ended."""
        assert self._process.stdin
        async with from_session:
            async for item in from_session:
                line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                with suppress(ConnectionError):
                    self._process.stdin.write(line.encode() + b"\n")
                    await self._process.stdin.drain()

    async def collect_errors(self) -> None:
        """Collect the last bytes that the server writes to its standard error."""
        assert self._process.stderr
        while chunk := await self._process.stderr.read(65536):
            self._errors = (self._errors + chunk)[-_MAX_ERROR_BYTES:]
        self._silent.set()

    async def terminate(self) -> None:
        """Stop the server's process group: close its input, then send SIGTERM, then SIGKILL."""
        try:
            with anyio.CancelScope(shield=True):
                if self._process.stdin:
                    self._process.stdin.close()
                if not await self._exits_within(_GRACE_SECONDS):
                    self._signal(signal.SIGTERM)
                    await self._exits_within(_GRACE_SECONDS)
        finally:  # also on native cancellation, which scopes do not shield from
            self._signal(signal.SIGKILL)
            self._transport.close()
        with anyio.CancelScope(shield=True):
            await self._exits_within(_GRACE_SECONDS)

    async def _ended(self) -> str:
        with anyio.move_on_after(_GRACE_SECONDS):
            await self._silent.wait()
        code = self._process.returncode if await self._exits_within(_GRACE_SECONDS) else None
        lines = self._errors.decode("utf-8", "replace").strip().splitlines()
        return _exit_reason(code, lines[-1].strip() if lines else "")

    async def _exits_within(self, seconds: float) -> bool:
        """Return whether the process exits in time. `process.wait()` would also wait for its children's pipes."""
        with anyio.move_on_after(seconds):
            await self._protocol.exited.wait()
        return self._process.returncode is not None

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


@asynccontextmanager
async def stdio_transport(server: McpServer, on_disconnect: OnDisconnect) -> AsyncIterator[TransportStreams]:
    """Start a server as a child process, and stop it on exit. An MCP SDK transport.

    `on_disconnect` is called when the connection ends.

    Raises:
        OSError: the process cannot be started.
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
    forbid_inspection()
    env = child_environment() | {name: value.get_secret_value() for name, value in server.env.items()}
    transport, protocol = await loop.subprocess_exec(
        lambda: _Protocol(loop),
        *_launched(server.command, env),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=env,
        start_new_session=True,
    )
    return _ServerProcess(transport, protocol, Process(transport, protocol, loop))


def _launched(command: Sequence[str], env: Mapping[str, str]) -> Sequence[str]:
    """Return the command, wrapped on Linux so that the server ends even if this process is killed.

    Raises:
        FileNotFoundError: the program does not exist.
        PermissionError: the program is not executable.
    """
    if sys.platform != "linux" or not sys.executable:
        return command
    program = which(command[0], path=env.get("PATH", os.defpath))
    if program is None:
        raise PermissionError(command[0]) if Path(command[0]).is_file() else FileNotFoundError(command[0])
    return (sys.executable, "-I", "-S", child_launcher.__file__, str(os.getpid()), program, *command)


def _exit_reason(code: int | None, last_error: str) -> str:
    if code is not None and code < 0:
        reason = f"it was killed by signal {-code}{_signal_name(-code)}"
        return f"{reason}; the last line of its standard error: {last_error}" if last_error else reason
    reason = "it closed its standard output" if code is None else f"it ended with exit code {code}"
    return f"{reason}: {last_error}" if last_error else reason


def _signal_name(number: int) -> str:
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
async def http_transport(
    server: McpServer, on_http_error: OnHttpError, auth: httpx2.Auth | None
) -> AsyncIterator[TransportStreams]:
    """Connect to a server over streamable HTTP. An MCP SDK transport."""
    assert server.url
    async with (
        _http_client(server, on_http_error, auth) as client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=MAX_RESPONSE_BYTES) as streams,
    ):
        yield streams


def _http_client(server: McpServer, on_http_error: OnHttpError, auth: httpx2.Auth | None) -> httpx2.AsyncClient:
    """Create an HTTP client with the server's headers that rejects compressed and oversized responses."""
    message = f"it sent an answer of more than {MAX_RESPONSE_BYTES // 2**20} MB"

    async def check(response: httpx2.Response) -> None:
        if response.status_code >= 400:
            on_http_error(response.status_code)
        if response.headers.get("content-encoding", "identity") != "identity":
            raise httpx2.DecodingError(
                "it sends compressed responses, which are not accepted", request=response.request
            )
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = BoundedStream(response.stream, MAX_RESPONSE_BYTES, message, response.request)

    configured = {name: value.get_secret_value() for name, value in server.headers.items()}
    idle = max(_MAX_IDLE_SECONDS, server.timeout + 30)
    timeout = httpx2.Timeout(server.connect_timeout, read=idle)
    # A compressed body can expand to any size before its length is known.
    headers = {"accept-encoding": "identity"} | configured
    hooks = {"response": [check]}
    verify = trusted_certificates()
    return httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks=hooks, verify=verify, auth=auth)


@asynccontextmanager
async def tool_by_tool(transport: Transport, on_invalid: OnInvalidTool) -> AsyncIterator[TransportStreams]:
    """Leave invalid tools out of a server's lists, and repair its results: the SDK rejects all for one invalid part."""
    async with transport as (received, sent):
        yield cast("Any", _ValidTools(received, on_invalid)), sent


class _ValidTools:
    """A stream of a server's messages, without invalid tools and resources in its lists and blocks in its results."""

    def __init__(self, received: Any, on_invalid: OnInvalidTool) -> None:
        self._received, self._on_invalid = received, on_invalid

    @property
    def last_context(self) -> Any:
        """The context of the last message, which some transports record."""
        return getattr(self._received, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message."""
        return self._checked(await self._received.receive())

    async def aclose(self) -> None:
        """Close the stream."""
        await self._received.aclose()

    def __aiter__(self) -> _ValidTools:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        return self._checked(await self._received.__anext__())

    async def __aenter__(self) -> _ValidTools:
        await self._received.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        closed: bool | None = await self._received.__aexit__(kind, error, trace)
        return closed

    def _checked(self, item: SessionMessage | Exception) -> SessionMessage | Exception:
        message = item.message if isinstance(item, SessionMessage) else None
        if not isinstance(message, JSONRPCResponse) or not isinstance(item, SessionMessage):
            return item
        if message.result.keys() & {"content", "structuredContent"}:
            return replace(item, message=message.model_copy(update={"result": _readable_result(message.result)}))
        lists = {name: value for name in _CHECKED_LISTS if isinstance(value := message.result.get(name), list)}
        if not lists:
            return item
        check = {"tools": self._checked_tool, "resources": _checked_resource}
        valid = {name: [used for one in value if (used := check[name](one))] for name, value in lists.items()}
        return replace(item, message=message.model_copy(update={"result": message.result | valid}))

    def _checked_tool(self, tool: Any) -> dict[str, Any] | None:
        """Return the used part of a tool's definition, or None if it is invalid."""
        used = {key: tool[key] for key in _USED_FIELDS if key in tool} if isinstance(tool, dict) else {}
        if not isinstance(used.get("title"), str):
            used.pop("title", None)
        schema = used.get("inputSchema")
        kind = schema.get("type", "object") if isinstance(schema, dict) else None
        if isinstance(schema, dict) and "object" in (kind if isinstance(kind, list) else [kind]):
            used["inputSchema"] = {**schema, "type": "object"}  # arguments are always an object
        try:
            validate_server_result("tools/list", _STRICTEST_VERSION, {"tools": [used]})
        except ValidationError as error:
            self._on_invalid(str(used.get("name", "without a name")), _first_fault(error))
            return None
        return used


def _checked_resource(resource: Any) -> dict[str, Any] | None:
    """Return the URI and the name of a resource in a list, or None if they are invalid."""
    used = {key: resource[key] for key in ("uri", "name") if key in resource} if isinstance(resource, dict) else {}
    try:
        validate_server_result("resources/list", _STRICTEST_VERSION, {"resources": [used]})
    except ValidationError:
        return None
    return used


def _readable_result(result: dict[str, Any]) -> dict[str, Any]:
    """Return a tool's result with text in place of each invalid block: the tool was executed, whatever it answers."""
    known = {key: value for key, value in result.items() if key != "_meta" and value is not None}
    content, structured = known.get("content", []), known.get("structuredContent")
    # Any object is valid as data, and validating a large one takes seconds.
    if _is_result(known | {"structuredContent": {}} if isinstance(structured, dict) else known):
        return known
    blocks = content if isinstance(content, list) else [content] if isinstance(content, str | dict) else None
    if blocks is None:
        return result
    if not isinstance(structured, dict | None) and "resultType" not in result:  # later versions allow any value
        known["structuredContent"] = {"result": structured}
    if not isinstance(is_error := known.pop("isError", False), bool):
        is_error = str(is_error).lower() not in ("", "0", "false")
    return {**known, "content": [*map(_readable_block, blocks)], "isError": is_error}


def _readable_block(block: Any) -> dict[str, Any]:
    text = block
    if isinstance(block, dict):
        plain = {key: value for key, value in block.items() if key not in _UNREAD and value is not None}
        for used in (plain, {"name": plain.get("uri"), "mimeType": "unknown", **plain}):
            if _is_result({"content": [used]}):
                return used
        text = block.get("text")
    shown = text if isinstance(text, str) else shorten(json.dumps(block, ensure_ascii=False), _MAX_BLOCK_CHARS)
    return {"type": "text", "text": shown}


def _is_result(result: dict[str, Any]) -> bool:
    try:
        validate_server_result("tools/call", _STRICTEST_VERSION, result)
    except ValidationError:
        return False
    return True


def _first_fault(error: ValidationError) -> str:
    """Return where the first fault of a tool's definition is, and what it is."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"][2:])  # after `tools` and the position
    return f"{place}: {first['msg']}" if place else first["msg"]
