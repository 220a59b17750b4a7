"""What is asked of an MCP server, each answer checked and turned into plain data."""

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
"""Seconds a call waits for a connection that is just being made again."""
_GLOBAL_SCHEMES = ("file:", "http:", "https:", "ftp:", "data:")
"""Addresses that mean the same to everybody: a server is asked only for those that it lists itself."""

_POLL_SECONDS = 0.25
"""Seconds until a server that is not done yet is asked again."""

_CALL_RESULT: TypeAdapter[wire.CallToolResult | wire.InputRequiredResult] = TypeAdapter(
    wire.CallToolResult | wire.InputRequiredResult
)
T = TypeVar("T")


class McpClient:
    """One server's tools, resources and prompts. What fails raises ToolError."""

    def __init__(self, name: str, server: McpServer, callbacks: ConnectionCallbacks) -> None:
        """Connect with `start`.

        Args:
            name: what messages call the server.
            server: where it is.
            callbacks: told of the connection.
        """
        self._name, self._server = name, server
        in_file = name.removeprefix("mcp.")
        self._metrics = McpMetrics(in_file, server)
        self._connection = McpConnection(in_file, server, callbacks, self._metrics)
        self.start, self.close = self._connection.start, self._connection.close

    async def tools(self, enough: int) -> list[wire.Tool]:
        """Its tools; no more are asked for when there are more than `enough`.

        A connection over which they cannot be listed is given up.
        """
        try:
            with trace_failure("mcp.list_tools", self._name.removeprefix("mcp."), self._server):
                patience = self._server.connect_timeout
                return await self._request(
                    lambda client: _list_tools(client, enough), about={"method": "tools/list"}, timeout=patience
                )
        except RequestFailed as error:
            self._connection.drop(f"its tools cannot be listed: {error.message}")
            raise

    async def call(
        self, tool: str, arguments: dict[str, Any], progress: ProgressFnT | None, *, repeatable: bool
    ) -> Any:
        """Call a tool; a repeatable call is made again if the connection is lost in the middle of it."""
        _check_text(arguments)
        # Not `client.call_tool`: it checks results against the server's own schema, whose patterns may run for ever.
        about = {"method": "tools/call", "tool": tool}
        return tool_output(
            await self._request(
                lambda client: _call(client, tool, arguments, progress), about=about, repeatable=repeatable
            )
        )

    async def resource(self, uri: str) -> str:
        """The text of a resource."""
        _check_text({"uri": uri})
        if uri.strip().lower().startswith(_GLOBAL_SCHEMES) and uri not in await self._request(
            _list_resources, about={"method": "resources/list"}, repeatable=True
        ):
            raise ToolError(f"{self._name} lists no resource {uri!r}, and is asked for no other of this kind")
        about = {"method": "resources/read"}
        result = await self._request(lambda client: client.session.read_resource(uri), about=about, repeatable=True)
        return truncate(resource_text(result.contents))

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> str:
        """The text of a prompt."""
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
                raise RequestFailed(f"{self._name} did not answer within {patience:g} s") from None
            except MCPError as error:
                raise RequestFailed(f"{self._name}: {self._connection.describe(error)}") from None
            except ValidationError:
                raise RequestFailed(f"{self._name} gave an answer that is not MCP") from None
            except (InputRequested, RuntimeError):  # the latter is the SDK's word for it
                raise ToolError(f"{self._name} asks for something in return, which it may not") from None
        raise AssertionError("the second time either returns or raises")

    def _unavailable(self, error: NotConnected) -> str:
        if isinstance(error, ConnectionLost):
            return f"{self._name} was lost in the middle of the call: {error}; whether it took effect is not known"
        return f"{self._name} is not connected: {error}; try again later, or do without it"


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
        state = result.request_state  # it is not done yet: ask again
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
    """Half a character cannot be sent: it would break the connection for everybody."""
    try:
        json.dumps(arguments, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ToolError("the arguments hold characters that are not Unicode text: leave them out") from None
