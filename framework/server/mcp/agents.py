"""The MCP server of a runtime: one tool per agent."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from copy import deepcopy
from importlib.metadata import version
from typing import Any

import anyio
from mcp import MCPError
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    CancelledNotificationParams,
    InputRequiredResult,
    ListToolsResult,
    NotificationParams,
    PaginatedRequestParams,
    Tool,
)
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request

from framework.config.agents.compile import Agent, agent_tool
from framework.engine.runtime.request import RunOptions
from framework.server.errors import client_message
from framework.server.identity import Identity
from framework.server.mcp.call import AgentCall, Context, McpCaller
from framework.server.mcp.results import error_result
from framework.server.run_service import OwnedRun, RunService
from framework.telemetry.redact import places
from framework.types.errors import AgentNotFound, AgentsdError

log = logging.getLogger(__name__)

MAX_MCP_SESSIONS = 500
"""Limit of concurrent sessions over HTTP. At the limit, new ones are refused."""
_NOTIFY_SECONDS = 5.0
"""Time limit for one notification to a client."""
_CANCEL_SECONDS = 5.0
"""Time after the end of a call during which the client's notification that it is cancelled is expected."""
_MESSAGE, _CONVERSATION = "message", "conversation_id"
_CONVERSATION_SCHEMA = {
    "type": "string",
    "description": "Any id of your choice. Calls with the same id continue one conversation, in which the agent "
    "remembers the earlier messages. Without it, the agent remembers nothing.",
}
_INSTRUCTIONS = (
    "Each tool is an agent that works on a task by itself and returns its answer. An agent may ask the user for "
    "approvals; a result that says so is not a failure of the agent."
)

CallerOf = Callable[[Context], McpCaller]
"""Returns the client behind a request."""
_CallKey = tuple[str, str]
"""Id of a session, which the server has chosen and which belongs to one identity, and request id of a call in it."""


class _NotifyingServer(Server[Any]):
    """A server that declares that its list of tools can change."""

    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *rest: Any, **options: Any
    ) -> InitializationOptions:
        """Return what the server declares to clients that begin with a handshake."""
        changes = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(changes, *rest, **options)


class AgentServer:
    """Serves the agents of the live generation to any number of MCP clients."""

    def __init__(self, service: RunService, caller_of: CallerOf) -> None:
        self._service, self._catalog, self._caller_of = service, service.runtime.catalog, caller_of
        self._tools: tuple[int, dict[str, Tool]] = (0, {})
        """The tools of a generation, by its number."""
        self._runs: dict[_CallKey, asyncio.Future[OwnedRun]] = {}
        """The run of each call that its client may cancel by a notification, once it is stored."""
        self._bus = InMemorySubscriptionBus()
        self._sessions: OrderedDict[str, ServerSession] = OrderedDict()
        """Sessions by id, which are notified of changes. Notifications to closed ones are dropped."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.server: Server[Any] = _NotifyingServer(
            "agentsd",
            version=version("agentsd"),
            instructions=_INSTRUCTIONS,
            get_tool_input_schema=lambda _: None,  # no argument is taken from a header
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=ListenHandler(self._bus),
        )
        self.server.middleware.clear()  # tracing: requests would add spans to any trace that a client names
        self.server.add_notification_handler("notifications/initialized", NotificationParams, self._on_initialized)
        self.server.add_notification_handler("notifications/cancelled", CancelledNotificationParams, self._on_cancelled)
        self._unsubscribe = self._catalog.subscribe(lambda _: self._in_background(self._notify()))

    def close(self) -> None:
        """Stop following reloads."""
        self._unsubscribe()
        for task in self._tasks:
            task.cancel()

    # --- tools

    async def _list_tools(self, context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:  # noqa: ARG002 - the signature is the SDK's
        identity = self._caller_of(context).identity
        return ListToolsResult(tools=[tool for name, tool in self._live_tools().items() if identity.may_use(name)])

    def _live_tools(self) -> dict[str, Tool]:
        """Return the tools by agent; they are built once per generation."""
        generation = self._catalog.current
        if self._tools[0] != generation.number:
            self._tools = generation.number, {name: _tool(agent) for name, agent in sorted(generation.agents.items())}
        return self._tools[1]

    # --- calls

    async def _call_tool(self, context: Context, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        caller = self._caller_of(context)
        if params.name not in self._live_tools() or not caller.identity.may_use(params.name):
            known = [name for name in self._live_tools() if caller.identity.may_use(name)]
            raise MCPError(INVALID_PARAMS, AgentNotFound(params.name, known).message)
        try:
            return await self._run(context, caller, params)
        except AgentsdError as error:
            return error_result(client_message(error))
        except MCPError:
            raise
        except Exception as error:  # noqa: BLE001 - the SDK would log and send its text
            log.error("call of %s failed: %s", params.name, places(error))
            return error_result("internal error; see the log of the server")

    async def _run(
        self, context: Context, caller: McpCaller, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        call, is_answer = AgentCall(self._service, caller, context), params.request_state is not None
        stored = asyncio.ensure_future((self._load if is_answer else self._submit)(caller.identity, params))
        # Without a session, nothing separates the request ids of clients, which all count from 1.
        lone = context.request if context.protocol_version in MODERN_PROTOCOL_VERSIONS else None
        key = None if lone is not None else (_session_of(context), str(context.request_id))
        if key is not None:
            self._runs[key] = stored
        try:
            run = await asyncio.shield(stored)
            return await (call.resume(run, params) if is_answer else call.follow(run))
        except asyncio.CancelledError:
            if lone is not None:
                self._in_background(self._cancel_if_left(lone, stored))
            raise
        finally:
            if key is not None:
                # Later, because the client's notification of a cancellation is handled after the cancellation itself.
                asyncio.get_running_loop().call_later(_CANCEL_SECONDS, self._forget, key, stored)

    def _forget(self, key: _CallKey, stored: asyncio.Future[OwnedRun]) -> None:
        """Forget a call, unless a newer one of the same session has its id."""
        if self._runs.get(key) is stored:
            del self._runs[key]

    async def _submit(self, identity: Identity, params: CallToolRequestParams) -> OwnedRun:
        """Start the run of a call."""
        given = dict(params.arguments or {})
        message, conversation = given.pop(_MESSAGE, None), None
        if _CONVERSATION not in self._catalog.current.agents[params.name].spec.inputs:
            conversation = given.pop(_CONVERSATION, None)
        options: RunOptions = {"agent": params.name, "conversation": conversation, "inputs": given or None}
        return await self._service.submit(identity, message, options, fields={"conversation": _CONVERSATION})

    async def _load(self, identity: Identity, params: CallToolRequestParams) -> OwnedRun:
        """Return the run whose questions a call answers."""
        run, _ = await self._service.load(identity, params.request_state or "")
        return run

    # --- notifications

    async def _on_initialized(self, context: Context, params: NotificationParams) -> None:  # noqa: ARG002 - the signature is the SDK's
        self._sessions[_session_of(context)] = context.session
        if len(self._sessions) > MAX_MCP_SESSIONS:
            self._sessions.popitem(last=False)

    async def _on_cancelled(self, context: Context, params: CancelledNotificationParams) -> None:
        if stored := self._runs.pop((_session_of(context), str(params.request_id)), None):
            await self._cancel(stored)

    async def _cancel_if_left(self, request: Request, stored: asyncio.Future[OwnedRun]) -> None:
        """Cancel a call whose response the client has closed: HTTP clients since 2026-07-28 cancel in this way."""
        if await request.is_disconnected():
            await self._cancel(stored)

    async def _cancel(self, stored: asyncio.Future[OwnedRun]) -> None:
        """Cancel the run of a call that the client has cancelled."""
        try:
            await self._service.cancel(await stored)
        except AgentsdError as error:  # also of a call that could not start its run
            log.info("cancelled call: %s", error.message)

    async def _notify(self) -> None:
        """Tell all clients that the list of tools may have changed."""
        await self._bus.publish(ToolsListChanged())
        for session in [*self._sessions.values()]:
            with anyio.move_on_after(_NOTIFY_SECONDS):
                await session.send_tool_list_changed()

    def _in_background(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _tool(agent: Agent) -> Tool:
    """Return an agent as a tool: its arguments are a message, the agent's inputs and a conversation."""
    schema = deepcopy(agent_tool(agent.spec).definition.parameters)
    schema["properties"].setdefault(_CONVERSATION, _CONVERSATION_SCHEMA)
    return Tool(
        name=agent.name,
        description=agent.spec.description,
        input_schema=schema,
        output_schema=agent.spec.output_schema,
    )


def _session_of(context: Context) -> str:
    """Return the id of the client's session; empty where there are no sessions: on stdio, and since 2026-07-28."""
    return "" if context.request is None else context.request.headers.get("mcp-session-id", "")
