"""Requests to an MCP server; answers are checked and converted to text, plain data and files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from mcp import MCPError
from mcp import types as wire
from pydantic import TypeAdapter, ValidationError

from framework.tools.mcp.connection import ConnectionCallbacks, McpConnection
from framework.tools.mcp.content import prompt_text, resource_text, tool_output, truncate
from framework.tools.mcp.errors import ConnectionLost, InputRequested, NotConnected, RequestFailed, SessionExpired
from framework.tools.mcp.telemetry import McpMetrics, trace_failure
from framework.types.errors import ToolError
from framework.types.tool_servers import McpServer

if TYPE_CHECKING:
    from mcp import Client
    from mcp.shared.dispatcher import ProgressFnT

_MAX_PAGES = 100
_CONNECT_WAIT_SECONDS = 3.0
"""Time that a call waits for a connection to be re-established, in seconds."""
_GLOBAL_SCHEMES = ("file:", "http:", "https:", "ftp:", "data:")
"""Schemes of URIs with a meaning outside the server. Such a resource is read only if the server lists it."""

_POLL_SECONDS = 0.25
"""Delay before polling a server for the result of an unfinished call, in seconds."""

_CALL_RESULT: TypeAdapter[wire.CallToolResult | wire.InputRequiredResult] = TypeAdapter(
    wire.CallToolResult | wire.InputRequiredResult
)
T = TypeVar("T")


class McpClient:
    """The tools, resources and prompts of one MCP server. Failures raise ToolError."""

    def __init__(self, name: str, server: McpServer, callbacks: ConnectionCallbacks) -> None:
        """Create a client; `start` connects.

        Args:
            name: name of the server in messages, such as `mcp.docs`.
            server: configuration of the server.
            callbacks: called when the connection or its tools change.
        """
        self._name, self._server = name, server
        in_file = name.removeprefix("mcp.")
        self._metrics = McpMetrics(in_file, server)
        self._connection = McpConnection(in_file, server, callbacks, self._metrics)
        self.start, self.close = self._connection.start, self._connection.close

    async def tools(self, enough: int) -> tuple[list[wire.Tool], dict[str, str]]:
        """List the tools of the server; stop after the page with which there are more than `enough`.

        If listing them fails, the connection is dropped.

        Returns:
            The valid tools, and the reason for each invalid one by its name.
        """
        self._connection.invalid_tools.clear()
        try:
            with trace_failure("mcp.list_tools", self._name.removeprefix("mcp."), self._server):
                patience = self._server.connect_timeout
                listed = await self._request(
                    lambda client: _list_tools(client, enough), about={"method": "tools/list"}, timeout=patience
                )
                return listed, dict(self._connection.invalid_tools)
        except RequestFailed as error:
            self._connection.drop(f"listing its tools failed: {error.message}")
            raise

    async def call(
        self, tool: str, arguments: dict[str, Any], progress: ProgressFnT | None, *, repeatable: bool
    ) -> Any:
        """Call a tool. A repeatable call is retried if the connection is lost during it."""
        _check_text(arguments)
        # Not `client.call_tool`: it validates results against the server's schema, whose patterns may never finish.
        about = {"method": "tools/call", "tool": tool}
        result = await self._request(
            lambda client: _call(client, tool, arguments, progress), about=about, repeatable=repeatable
        )
        return await tool_output(result)

    async def resource(self, uri: str) -> str:
        """Read a resource and return its text."""
        _check_text({"uri": uri})
        if uri.strip().lower().startswith(_GLOBAL_SCHEMES) and uri not in await self._request(
            _list_resources, about={"method": "resources/list"}, repeatable=True
        ):
            raise ToolError(f"{self._name} does not list the resource {uri!r}; URIs with this scheme must be listed")
        about = {"method": "resources/read"}
        result = await self._request(lambda client: client.session.read_resource(uri), about=about, repeatable=True)
        return truncate(resource_text(result.contents))

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> str:
        """Get a prompt and return its text."""
        _check_text(arguments)
        about = {"method": "prompts/get", "prompt": name}
        result = await self._request(
            lambda client: client.session.get_prompt(name, dict(arguments)), about=about, repeatable=True
        )
        return truncate(prompt_text(result.messages))

    async def _request(
        self,
        send: Callable[[Client], Awaitable[T]],
        *,
        about: Mapping[str, str],
        timeout: float | None = None,
        repeatable: bool = False,
    ) -> T:
        patience = timeout or self._server.timeout
        for again in (True, False):
            try:
                with self._metrics.request(**about) as measured:
                    answer = await self._connection.request(send, wait=_CONNECT_WAIT_SECONDS, timeout=patience)
                    if isinstance(answer, wire.CallToolResult) and answer.is_error:
                        measured["error.type"] = "tool_error"
                return answer
            except NotConnected as error:
                refused = isinstance(error, SessionExpired)
                if again and (refused or (repeatable and isinstance(error, ConnectionLost))):
                    continue
                raise ToolError(self._unavailable(error)) from None
            except TimeoutError:
                raise RequestFailed(f"{self._name} did not respond within {patience:g} s") from None
            except MCPError as error:
                raise RequestFailed(f"{self._name}: {self._connection.describe(error)}") from None
            except ValidationError:
                raise RequestFailed(f"{self._name} sent a response that is not valid MCP") from None
            except (InputRequested, RuntimeError):  # the SDK raises the latter
                raise ToolError(f"{self._name} requests input from the client, which is not supported") from None
        raise AssertionError("the second attempt either returns or raises")

    def _unavailable(self, error: NotConnected) -> str:
        if isinstance(error, ConnectionLost):
            return f"the connection to {self._name} was lost during the call: {error}; it may have taken effect"
        return f"{self._name} is not connected: {error}; try again later, or continue without it"


async def _call(
    client: Client, tool: str, arguments: dict[str, Any], progress: ProgressFnT | None
) -> wire.CallToolResult:
    state = None
    while True:
        params = wire.CallToolRequestParams(name=tool, arguments=arguments, request_state=state)
        request = wire.CallToolRequest(params=params)
        result = await client.session.send_request(request, _CALL_RESULT, progress_callback=progress)
        if isinstance(result, wire.CallToolResult):
            return result
        if result.input_requests:
            raise InputRequested
        state = result.request_state  # not finished: poll again
        await asyncio.sleep(_POLL_SECONDS)


async def _list_tools(client: Client, enough: int) -> list[wire.Tool]:
    tools: list[wire.Tool] = []
    cursor = None
    for _ in range(_MAX_PAGES if client.server_capabilities.tools else 0):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None or len(tools) > enough:
            break
    return tools


async def _list_resources(client: Client) -> set[str]:
    uris: set[str] = set()
    cursor = None
    for _ in range(_MAX_PAGES if client.server_capabilities.resources else 0):
        page = await client.list_resources(cursor=cursor)
        uris |= {resource.uri for resource in page.resources}
        cursor = page.next_cursor
        if cursor is None:
            break
    return uris


def _check_text(arguments: Mapping[str, Any]) -> None:
    """Raise ToolError for unpaired surrogates, which would break the connection for all calls."""
    try:
        json.dumps(arguments, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ToolError("the arguments contain characters that are not valid Unicode: remove them") from None
