"""MCP servers as tool sources. Their tools are named `mcp.<server>.<tool>`."""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

from framework.tools.logins import Account, LoginStore
from framework.tools.tool import Tool, ToolContext
from framework.tools.tool_source import OnChange, RemoteCall, external_tool
from framework.types.errors import ConfigError, ToolError
from framework.types.installation import install_command
from framework.types.spec import Risk
from framework.types.text import shorten
from framework.types.tool_servers import McpServer

if TYPE_CHECKING:
    from mcp import types as wire
    from mcp.shared.dispatcher import ProgressFnT

    from framework.tools.mcp.client import ConnectionCallbacks, McpClient
    from framework.tools.mcp.login import Login

MAX_TOOLS = 1000
"""Maximum number of tools of one server. `skill_policy` selects those that an agent is offered."""
MAX_USERS = 50
"""Maximum number of users whose connections to one server are kept."""
_LIST_INTERVAL = 0.5
"""Minimum time between two listings of a server's tools, in seconds."""
_MAX_NAMED = 20
"""Maximum number of invalid tools that a problem names."""
_MAX_FAULT_CHARS = 200
_PROGRESS_INTERVAL = 0.1
"""Minimum time between two progress events of a call, in seconds."""


class _ListedTool(NamedTuple):
    """A tool in a server's list: its definition as JSON, and the tool built from it."""

    definition: str
    tool: Tool | None
    """The tool; None if the definition is invalid."""
    fault: str = ""
    """Why the definition is invalid."""


class McpSource:
    """One MCP server as a source of tools, resources and prompts."""

    def __init__(self, name: str, server: McpServer, changed: OnChange, logins: LoginStore | None = None) -> None:
        """Create a source; `start` connects. `logins` are required by a server with `auth`."""
        self.name = f"mcp.{name}"
        self._server, self._changed, self._logins = server, changed, logins
        self._of_users: OrderedDict[tuple[str | None, str | None], McpClient] = OrderedDict()
        """Clients with the logins of users, the one that was used last at the end."""
        self._listed: dict[str, _ListedTool] = {}
        self._list_fault = self._connection_fault = ""
        self._client: McpClient | None = None
        self._looking: asyncio.Task[None] | None = None
        self._settled, self._stale = asyncio.Event(), asyncio.Event()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The last known tools, even without a connection. An unchanged tool remains the same object."""
        return tuple(listed.tool for listed in self._listed.values() if listed.tool)

    @property
    def faults(self) -> tuple[str, ...]:
        """Reasons why the server or some of its tools are unavailable."""
        tool_faults = (listed.fault for listed in self._listed.values())
        return tuple(fault for fault in (self._connection_fault, self._list_fault, *tool_faults) if fault)

    async def start(self) -> None:
        """Connect. Return once the tools are known or the first attempt failed; retries continue in the background."""
        try:
            client_type, callbacks_type = await asyncio.to_thread(_import_client)  # takes over a second at first
        except ImportError as error:
            self._connection_fault = f"{self.name} needs the MCP SDK ({error}): {install_command('agentsd[mcp]')}"
            self._changed()
            return
        if self._settled.is_set():  # the server was removed meanwhile
            return
        callbacks = callbacks_type(on_tools_changed=self._stale.set, on_disconnect=self._on_disconnect)
        self._client = client_type(self.name, self._server, callbacks, self._login(None, None))
        self._looking = asyncio.create_task(self._look(), context=contextvars.Context())  # outside the trace of any run
        self._client.start()
        await self._settled.wait()

    async def close(self) -> None:
        """Disconnect. A child process has ended afterwards."""
        self._settled.set()
        if self._looking:
            self._looking.cancel()
            await asyncio.wait({self._looking})
        for client in (self._client, *self._of_users.values()):
            if client:
                await client.close()

    async def abandon(self, continuation: Mapping[str, Any]) -> None:
        """End a call that waits for a person and will not be continued."""
        for client in (self._client, *self._of_users.values()):
            if client:
                await client.abandon(continuation)

    async def resource(self, uri: str) -> str:
        """Return the text of a resource. Raise ToolError."""
        return await self._connected().resource(uri)

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> str:
        """Return the text of a prompt, which is data and never rendered as a template. Raise ToolError."""
        return await self._connected().prompt(name, arguments)

    def _on_disconnect(self, reason: str) -> None:
        fault = f"{self.name} is not connected: {reason}"
        news = fault != self._connection_fault
        self._connection_fault = fault
        self._settled.set()
        if news:
            self._changed()

    def _connected(self) -> McpClient:
        if self._client is None:
            raise ToolError(self._connection_fault or f"{self.name} has not been started")
        return self._client

    def _login(self, tenant: str | None, user: str | None) -> Login | None:
        if self._server.auth is None or self._logins is None:
            return None
        from framework.tools.mcp.login import Login

        account = Account(self.name.removeprefix("mcp."), str(self._server.url), tenant, user)
        return Login(self._logins, account, self._server.auth.oauth)

    async def _client_of(self, context: ToolContext) -> McpClient:
        """Return the client for a call: with the login of its user, if each user has one."""
        shared = self._connected()
        if self._server.auth is None or self._server.auth.oauth.per == "server":
            return shared
        client_type, callbacks_type = _import_client()
        owner = (context.tenant, context.user)
        client = self._of_users.pop(owner, None)
        if client is None:
            silent = callbacks_type(on_tools_changed=lambda: None, on_disconnect=lambda _: None)
            client = client_type(self.name, self._server, silent, self._login(*owner))
            client.start()
        self._of_users[owner] = client
        while len(self._of_users) > MAX_USERS:
            _, oldest = self._of_users.popitem(last=False)
            await oldest.close()
        return client

    async def _look(self) -> None:
        """List the tools whenever they may have changed. Several notifications cause one listing."""
        while True:
            await self._stale.wait()
            self._stale.clear()
            with suppress(ToolError):  # they are listed again after the next connection
                self._update(*await self._connected().tools(MAX_TOOLS))
                self._settled.set()
            await asyncio.sleep(_LIST_INTERVAL)

    def _update(self, listed: list[wire.Tool], invalid: Mapping[str, str]) -> None:
        before = self.tools, self.faults
        current: dict[str, _ListedTool] = {}
        duplicates = []
        selected = [tool for tool in listed[:MAX_TOOLS] if self._is_selected(tool.name)]
        for tool in selected:
            if tool.name in current:
                duplicates.append(tool.name)
            else:
                current[tool.name] = self._build(tool)
        self._listed, self._connection_fault = current, ""
        unmatched = [glob for glob in self._server.tools if not any(fnmatchcase(tool.name, glob) for tool in selected)]
        selected_faults = {name: fault for name, fault in invalid.items() if self._is_selected(name)}
        about_list = _list_faults(self.name, len(listed), duplicates, unmatched)
        self._list_fault = "; ".join([*about_list, *_invalid_faults(self.name, selected_faults)])
        tools, faults = before
        same = len(tools) == len(self.tools) and all(a is b for a, b in zip(tools, self.tools, strict=True))
        if not same or faults != self.faults:
            self._changed()

    def _is_selected(self, tool: str) -> bool:
        return not self._server.tools or any(fnmatchcase(tool, glob) for glob in self._server.tools)

    def _build(self, tool: wire.Tool) -> _ListedTool:
        definition = json.dumps(
            tool.model_dump(include={"name", "title", "description", "input_schema", "annotations"})
        )
        previous = self._listed.get(tool.name)
        if previous and previous.definition == definition:
            return previous
        hints = tool.annotations
        idempotent = bool(hints and (hints.idempotent_hint or hints.read_only_hint))
        try:
            built = external_tool(
                f"{self.name}.{tool.name}",
                tool.description or tool.title or tool.name,
                tool.input_schema,
                self._call(tool.name, idempotent),
                source="mcp",
                risk=self._server.risk or _risk_from_hints(hints),
                idempotent=idempotent,
                timeout=self._server.timeout,
                paths=_declared(self._server.paths, tool.name),
                urls=_declared(self._server.urls, tool.name),
            )
        except ConfigError as error:
            fault = f"{self.name}: invalid tool {_quoted(tool.name)}: {error.message}"
            return _ListedTool(definition, None, fault)
        return _ListedTool(definition, built)

    def _call(self, tool: str, idempotent: bool) -> RemoteCall:
        async def call(arguments: dict[str, Any], context: ToolContext) -> Any:
            client = await self._client_of(context)
            return await client.call(tool, arguments, context, _progress(context), repeatable=idempotent)

        return call


def _declared(arguments: Mapping[str, Iterable[str]], tool: str) -> Iterator[str]:
    """Yield the arguments that the server's configuration declares for one tool."""
    for pattern, names in arguments.items():
        if fnmatchcase(tool, pattern):
            yield from names


def _risk_from_hints(hints: wire.ToolAnnotations | None) -> Risk:
    """Return the risk of a tool according to the hints of its server."""
    if hints and hints.destructive_hint:
        return "high"
    return "low" if hints and hints.read_only_hint else "medium"


def _progress(context: ToolContext) -> ProgressFnT | None:
    """Return a callback that reports a server's progress to the run, at most every `_PROGRESS_INTERVAL`."""
    report = context.progress
    if report is None:
        return None
    last = -_PROGRESS_INTERVAL

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        nonlocal last
        now = asyncio.get_running_loop().time()
        fraction = min(max(progress / total, 0.0), 1.0) if total and total > 0 else 0.0
        if now - last >= _PROGRESS_INTERVAL:
            last = now
            await report(fraction, (message or "")[:200])

    return on_progress


def _list_faults(source: str, count: int, duplicates: Iterable[str], unmatched: Iterable[str]) -> Iterable[str]:
    if count > MAX_TOOLS:
        yield f"{source} has more than {MAX_TOOLS} tools: the remaining ones are omitted"
    if duplicates:
        yield f"{source} lists tools more than once, using the first: {', '.join(map(_quoted, duplicates))}"
    if unmatched:
        yield f"{source} has no tool that matches {', '.join(map(_quoted, unmatched))} (`tools` of the server)"


def _invalid_faults(source: str, invalid: Mapping[str, str]) -> Iterable[str]:
    for name in list(invalid)[:_MAX_NAMED]:
        yield f"{source}: invalid tool {_quoted(name)}: {shorten(invalid[name], _MAX_FAULT_CHARS)}"
    if len(invalid) > _MAX_NAMED:
        yield f"{source}: {len(invalid) - _MAX_NAMED} more tools are invalid"


def _quoted(name: str) -> str:
    return repr(shorten(name, 80))


def _import_client() -> tuple[type[McpClient], type[ConnectionCallbacks]]:
    from framework.tools.mcp.client import ConnectionCallbacks, McpClient

    return McpClient, ConnectionCallbacks
