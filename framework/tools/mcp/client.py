"""What is asked of an MCP server, each answer checked and turned into plain data."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from mcp import MCPError
from mcp import types as wire
from pydantic import TypeAdapter, ValidationError

from framework.tools.mcp.connection import Lost, McpConnection, Notices, Refused, Unavailable
from framework.tools.mcp.content import contents_text, cut, prompt_text, result_of
from framework.tools.mcp.metrics import McpMetrics
from framework.tools.mcp.trace import outside_runs
from framework.types.errors import ToolError
from framework.types.source import McpServer

if TYPE_CHECKING:
    from mcp import Client
    from mcp.shared.dispatcher import ProgressFnT

MAX_PAGES = 100
PATIENCE = 3.0
"""Seconds a call waits for a connection that is just being made again."""
OUTWARD = ("file:", "http:", "https:", "ftp:", "data:")
"""Addresses that mean the same to everybody: a server is asked only for those that it lists itself."""

STATE_PAUSE = 0.25
"""Seconds until a server that is not done yet is asked again."""

_ANSWERS: TypeAdapter[wire.CallToolResult | wire.InputRequiredResult] = TypeAdapter(
    wire.CallToolResult | wire.InputRequiredResult
)
T = TypeVar("T")


class AsksBack(Exception):
    """A server wants a human's answer, a model's or a folder: no policy allows that."""


class Useless(ToolError):
    """There was a connection, but no answer that can be used."""


class McpClient:
    """One server's tools, resources and prompts. What fails raises ToolError."""

    def __init__(self, name: str, server: McpServer, notices: Notices) -> None:
        """Connect with `start`.

        Args:
            name: what messages call the server.
            server: where it is.
            notices: told of the connection.
        """
        self._name, self._server = name, server
        in_file = name.removeprefix("mcp.")
        self._metrics = McpMetrics(in_file, server)
        self._connection = McpConnection(in_file, server, notices, self._metrics)
        self.start, self.close = self._connection.start, self._connection.close

    async def tools(self, enough: int) -> list[wire.Tool]:
        """Its tools; no more are asked for when there are more than `enough`.

        A connection over which they cannot be listed is given up.
        """
        try:
            with outside_runs("mcp.list_tools", self._name.removeprefix("mcp."), self._server):
                patience = self._server.connect_timeout
                return await self._asked(
                    lambda client: _list_tools(client, enough), about={"method": "tools/list"}, timeout=patience
                )
        except Useless as error:
            self._connection.drop(f"its tools cannot be listed: {error.message}")
            raise

    async def call(
        self, tool: str, arguments: dict[str, Any], progress: ProgressFnT | None, *, repeatable: bool
    ) -> Any:
        """Call a tool; a repeatable call is made again if the connection is lost in the middle of it."""
        _check_text(arguments)
        # Not `client.call_tool`: it checks results against the server's own schema, whose patterns may run for ever.
        about = {"method": "tools/call", "tool": tool}
        return result_of(
            await self._asked(
                lambda client: _call(client, tool, arguments, progress), about=about, repeatable=repeatable
            )
        )

    async def resource(self, uri: str) -> str:
        """The text of a resource."""
        _check_text({"uri": uri})
        if uri.strip().lower().startswith(OUTWARD) and uri not in await self._asked(
            _list_resources, about={"method": "resources/list"}, repeatable=True
        ):
            raise ToolError(f"{self._name} lists no resource {uri!r}, and is asked for no other of this kind")
        about = {"method": "resources/read"}
        result = await self._asked(lambda client: client.session.read_resource(uri), about=about, repeatable=True)
        return cut(contents_text(result.contents))

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> str:
        """The text of a prompt."""
        _check_text(arguments)
        about = {"method": "prompts/get", "prompt": name}
        result = await self._asked(
            lambda client: client.session.get_prompt(name, dict(arguments)), about=about, repeatable=True
        )
        return cut(prompt_text(result.messages))

    async def _asked(
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
                    answer = await self._connection.ask(send, wait=PATIENCE, timeout=patience)
                    if isinstance(answer, wire.CallToolResult) and answer.is_error:
                        measured["error.type"] = "tool_error"
                return answer
            except Unavailable as error:
                refused = isinstance(error, Refused)
                if again and (refused or (repeatable and isinstance(error, Lost))):
                    continue
                raise ToolError(self._unavailable(error)) from None
            except TimeoutError:
                raise Useless(f"{self._name} did not answer within {patience:g} s") from None
            except MCPError as error:
                raise Useless(f"{self._name}: {self._connection.told(error)}") from None
            except ValidationError:
                raise Useless(f"{self._name} gave an answer that is not MCP") from None
            except (AsksBack, RuntimeError):  # the latter is the SDK's word for it
                raise ToolError(f"{self._name} asks for something in return, which it may not") from None
        raise AssertionError("the second time either returns or raises")

    def _unavailable(self, error: Unavailable) -> str:
        if isinstance(error, Lost):
            return f"{self._name} was lost in the middle of the call: {error}; whether it took effect is not known"
        return f"{self._name} is not connected: {error}; try again later, or do without it"


async def _call(
    client: Client, tool: str, arguments: dict[str, Any], progress: ProgressFnT | None
) -> wire.CallToolResult:
    state = None
    while True:
        params = wire.CallToolRequestParams(name=tool, arguments=arguments, request_state=state)
        request = wire.CallToolRequest(params=params)
        result = await client.session.send_request(request, _ANSWERS, progress_callback=progress)
        if isinstance(result, wire.CallToolResult):
            return result
        if result.input_requests:
            raise AsksBack
        state = result.request_state  # it is not done yet: ask again
        await asyncio.sleep(STATE_PAUSE)


async def _list_tools(client: Client, enough: int) -> list[wire.Tool]:
    tools: list[wire.Tool] = []
    cursor = None
    for _ in range(MAX_PAGES if client.server_capabilities.tools else 0):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None or len(tools) > enough:
            break
    return tools


async def _list_resources(client: Client) -> set[str]:
    uris: set[str] = set()
    cursor = None
    for _ in range(MAX_PAGES if client.server_capabilities.resources else 0):
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
