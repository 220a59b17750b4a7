"""Results, errors and spans of MCP servers, as runs see them."""

from __future__ import annotations

import asyncio
import json
import random
import time
from base64 import b64decode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
from mcp import MCPError
from opentelemetry import metrics, trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags
from pydantic import ValidationError

from framework.types.errors import RequestError, ToolError
from framework.types.file import File
from framework.types.http import missing_certificates, server_address
from framework.types.text import one_line
from framework.types.tool_servers import McpServer

if TYPE_CHECKING:
    from mcp import types


_MAX_CHARS = 300
_MIN_SECRET_CHARS = 6
"""Minimum length of a secret. Shorter values are words such as `debug`."""
UNINFORMATIVE_MESSAGES = {"Server returned an error response", "Not Found"}
"""Messages of the SDK for HTTP errors without details."""


class NotConnected(Exception):
    """There is no connection. The message states the reason."""


class ConnectionLost(NotConnected):
    """The connection ended during a call, whose outcome is unknown."""


class SessionExpired(NotConnected):
    """The server does not know the session any longer: the call was not executed."""


class InputRequested(Exception):
    """The server requested input from a person, a model or the file system, which is not supported."""


class RequestFailed(ToolError):
    """The server was connected but sent no valid answer."""


def describe_error(error: BaseException, server: McpServer, status: int | None = None) -> str:
    """Describe an error of a connection, with a fix and without secrets.

    Args:
        error: the error.
        server: configuration of the server.
        status: status of the last failed HTTP response.
    """
    return mask_secrets(_description(error, server, status), server)


def first_error(error: BaseException) -> BaseException:
    """Return the first error inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def mask_secrets(text: str, server: McpServer) -> str:
    """Mask the values of the server's variables and headers in a message, and shorten it to one line."""
    for secret in (*server.env.values(), *server.headers.values()):
        for part in {secret.get_secret_value(), *secret.get_secret_value().split()}:
            text = text.replace(part, "***") if len(part) >= _MIN_SECRET_CHARS else text
    return one_line(text, _MAX_CHARS)


def _description(error: BaseException, server: McpServer, status: int | None) -> str:
    match error:
        case FileNotFoundError() if server.command:
            return f"no program {server.command[0]!r}: install it, or correct `command`"
        case PermissionError() if server.command:
            return f"cannot execute {server.command[0]!r}: correct `command`"
        case httpx2.ConnectError() if "CERTIFICATE_VERIFY_FAILED" in str(error) and (missing := missing_certificates()):
            return f"SSL_CERT_FILE names a file that does not exist ({missing}): correct or unset it"
        case httpx2.ConnectError() | httpx2.ConnectTimeout():
            return f"cannot connect to its `url`: {error}"
        case ValidationError():
            return "its response is not valid MCP"
        case MCPError() if status and error.message in UNINFORMATIVE_MESSAGES:
            return f"it responded with HTTP {status}: check {'`headers`' if status in {401, 403} else '`url`'}"
        case MCPError():
            return error.message
    return f"{type(error).__name__}: {error}"


MAX_RESULT_CHARS = 200_000
MAX_RESULT_FILES = 20
"""Files that the model gets from one result; the remaining ones are mentioned in its text."""
_THREAD_CHARS = 1_000_000
"""Size from which on a result is converted in a thread."""


async def tool_output(result: types.CallToolResult) -> Any:
    """Return the output of a tool: its structured content, or its text; with files, a list that also contains them.

    Images, PDFs and audio become a `File` if their content is of a supported type, whatever the server declares.

    Raises:
        ToolError: the result is an error.
    """
    if result.is_error:
        raise ToolError(truncate(text_of(result.content)) or "the tool failed without an error message")
    data = [_data(block) for block in result.content]
    if not any(data):
        return _plain_output(result, text_of(result.content))
    if sum(map(len, data)) < _THREAD_CHARS:
        return _output_with_files(result)
    return await asyncio.to_thread(_output_with_files, result)


def _plain_output(result: types.CallToolResult, text: str) -> Any:
    if result.structured_content is None:
        return truncate(text)
    encoded = json.dumps(result.structured_content, ensure_ascii=False)
    return result.structured_content if len(encoded) <= MAX_RESULT_CHARS else truncate(encoded)


def _output_with_files(result: types.CallToolResult) -> Any:
    """Return the output with files in place of blocks that contain one."""
    items: list[str | File] = []
    for block in result.content:
        data = _data(block)
        if not data:
            items.append(_block_text(block))
            continue
        count = sum(isinstance(item, File) for item in items)
        found = _read_file(block.type, data) if count < MAX_RESULT_FILES else f"at most {MAX_RESULT_FILES} files"
        if block.type == "resource":
            items.append(f"[resource {block.resource.uri}]")
        items.append(_blob(_kind(block), data, found) if isinstance(found, str) else found)
    files = [item for item in items if isinstance(item, File)]
    text = "\n".join(item for item in items if isinstance(item, str))
    if not files:
        return _plain_output(result, text)
    if result.structured_content is not None or len(text) > MAX_RESULT_CHARS:
        return [_plain_output(result, text), *files]
    return items


def _read_file(block_type: str, data: str) -> File | str:
    """Return the file in a block, or why the model cannot get it."""
    try:
        content = b64decode(data, validate=True)
        file = File.from_bytes(content)
    except ValueError:
        return "its data is not valid base64"
    except RequestError as error:
        return error.message
    if block_type in ("image", "audio") and file.part.kind != block_type:
        return f"its content is {file.media_type}"
    return file


def _data(block: types.ContentBlock) -> str:
    """Return the base64 data in a block; empty if it contains none."""
    if block.type == "resource":
        return getattr(block.resource, "blob", "")
    return block.data if block.type in ("image", "audio") else ""


def _kind(block: types.ContentBlock) -> str:
    if block.type == "resource":
        return block.resource.mime_type or "binary data"
    return f"{block.type} {block.mime_type}" if block.type in ("image", "audio") else block.type


def text_of(blocks: Iterable[types.ContentBlock]) -> str:
    """Return the text of content blocks. Other content is replaced by a placeholder."""
    return "\n".join(map(_block_text, blocks))


def resource_text(contents: Iterable[types.TextResourceContents | types.BlobResourceContents]) -> str:
    """Return the text of a resource."""
    return "\n".join(_contents_text(content) for content in contents)


def prompt_text(messages: Iterable[types.PromptMessage]) -> str:
    """Return the text of a prompt. Several messages are prefixed with their roles."""
    parts = [(message.role, _block_text(message.content)) for message in messages]
    return parts[0][1] if len(parts) == 1 else "\n\n".join(f"{role}: {text}" for role, text in parts)


def truncate(text: str) -> str:
    """Cut the text to the maximum length and append the number of omitted characters."""
    omitted = len(text) - MAX_RESULT_CHARS
    return text if omitted <= 0 else f"{text[:MAX_RESULT_CHARS]}… ({omitted} more characters omitted)"


def _block_text(block: types.ContentBlock) -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return _blob(_kind(block), block.data)
        case "resource_link":
            return f"[resource {block.uri}: {block.title or block.name}]"
        case "resource":
            return f"[resource {block.resource.uri}]\n{_contents_text(block.resource)}"


def _contents_text(content: types.TextResourceContents | types.BlobResourceContents) -> str:
    blob: str | None = getattr(content, "blob", None)
    return getattr(content, "text", "") if blob is None else _blob(content.mime_type or "binary data", blob)


def _blob(kind: str, base64: str, reason: str = "") -> str:
    return f"[{kind}, {len(base64) * 3 / 4 / 1024:.1f} kB, not shown{': ' if reason else ''}{reason}]"


_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
"""Histogram boundaries in seconds, as the conventions recommend."""


class McpMetrics:
    """Durations of the requests and sessions of one server. Without a MeterProvider, the cost is negligible."""

    def __init__(self, name: str, server: McpServer) -> None:
        meter = metrics.get_meter("agentsd")
        self._where = server_attributes(name, server)
        self._requests = meter.create_histogram(
            "mcp.client.operation.duration",
            unit="s",
            description="Duration of a request to an MCP server, as the client observes it.",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )
        self._sessions = meter.create_histogram(
            "mcp.client.session.duration",
            unit="s",
            description="Duration of a session with an MCP server, as the client observes it.",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )

    @contextmanager
    def request(self, method: str, *, tool: str = "", prompt: str = "") -> Iterator[dict[str, Any]]:
        """Measure a request. Yields its attributes, to which `error.type` can be added for a result with an error."""
        about: dict[str, Any] = {"mcp.method.name": method, **self._where}
        if tool:
            about |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool}
        if prompt:
            about["gen_ai.prompt.name"] = prompt
        began = time.perf_counter()
        try:
            yield about
        except BaseException as error:
            about["error.type"] = request_error_type(error)
            if isinstance(error, MCPError):
                about["rpc.response.status_code"] = str(error.code)
            raise
        finally:
            self._requests.record(time.perf_counter() - began, about)

    @contextmanager
    def session(self) -> Iterator[None]:
        """Measure a session, from connecting to its end."""
        about, began = dict(self._where), time.perf_counter()
        try:
            yield
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):
                about["error.type"] = request_error_type(error)
            raise
        finally:
            self._sessions.record(time.perf_counter() - began, about)


def server_attributes(name: str, server: McpServer) -> dict[str, Any]:
    """Return the attributes of a server: its name in the file, the transport, and for HTTP its address and port."""
    about: dict[str, Any] = {"agentsd.tool.server": name, "network.transport": "pipe" if server.command else "tcp"}
    host, port = server_address(server.url)
    if host is not None and port is not None:
        about |= {"server.address": host, "server.port": port}
    return about


def request_error_type(error: BaseException) -> str:
    """Return `error.type` of a failed request: JSON-RPC error code, `timeout`, `cancelled`, or exception class."""
    if isinstance(error, BaseExceptionGroup):
        return request_error_type(error.exceptions[0])
    if isinstance(error, MCPError):
        return str(error.code)
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, asyncio.CancelledError):
        return "timeout" if anyio.current_effective_deadline() <= anyio.current_time() else "cancelled"
    return type(error).__name__


@contextmanager
def trace_failure(span: str, name: str, server: McpServer) -> Iterator[None]:
    """Suppress the SDK's spans for a request outside runs, and emit a root span if the request fails.

    Args:
        span: name of the root span.
        name: name of the server in its file.
        server: configuration of the server.
    """
    began = time.time_ns()
    unsampled = SpanContext(random.getrandbits(128), random.getrandbits(64), False, TraceFlags(TraceFlags.DEFAULT))
    token = attach(trace.set_span_in_context(NonRecordingSpan(unsampled), Context()))
    try:
        yield
    except asyncio.CancelledError as error:
        if (error_type := request_error_type(error)) == "timeout":  # other cancellations are intended
            _emit_failure_span(span, name, server, began, error_type)
        raise
    except BaseException as error:
        _emit_failure_span(span, name, server, began, request_error_type(error))
        raise
    finally:
        detach(token)


def _emit_failure_span(span: str, name: str, server: McpServer, began: int, error_type: str) -> None:
    attributes = {"openinference.span.kind": "CHAIN", "error.type": error_type, **server_attributes(name, server)}
    failed = trace.get_tracer("agentsd").start_span(span, context=Context(), attributes=attributes, start_time=began)
    failed.set_status(Status(StatusCode.ERROR, error_type))
    failed.end()
