"""`/mcp` and `agentsd mcp`: agents as tools of other programs."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import anyio
from mcp import MCPError
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.session import ServerSession
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    CancelledNotificationParams,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    ListToolsResult,
    NotificationParams,
    PaginatedRequestParams,
    TextContent,
    Tool,
)
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from framework.config.agents.compile import Agent, agent_tool
from framework.config.settings import Settings
from framework.engine.runtime.request import RunOptions
from framework.engine.runtime.runtime import Runtime
from framework.server.errors import client_message
from framework.server.event_stream import AppResponse, OpenStreams
from framework.server.identity import LOCAL, Identity, KeyLimits, identity_of
from framework.server.protocol_texts import (
    confirmation_text,
    confirmations_text,
    pages_of,
    progress_text,
    reason_text,
    where_to_decide,
)
from framework.server.request_handling import CHAT_BODY_BYTES, ServerState
from framework.server.run_service import OwnedRun, RunService
from framework.server.startup import MAX_LINE_BYTES, ended_by_signals, protocol_streams
from framework.telemetry.redact import safe_traceback
from framework.types.errors import AgentNotFound, AgentsdError, RunNotFound, RunSuspended
from framework.types.events import StreamEnd
from framework.types.report import incomplete_text
from framework.types.state import Approve, Confirmation, Decision, Edit, Reject, Respond, RunResult

log = logging.getLogger(__name__)
_MAX_EDITABLE_CHARS = 1000
"""Length of a text up to which a form has a field to edit it."""
_ARGUMENT = "argument."
"""Prefix of the fields for arguments, so that none has the name of another field."""
_TYPES: Mapping[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}
DECLINED = "declined by the user"


def form_of(asked: Confirmation, parameters: Mapping[str, Any] | None = None) -> ElicitRequestFormParams:
    """Return the form that asks a person for a decision.

    The JSON Schema of the tool's arguments, if it is known, describes the fields of arguments.
    """
    message = confirmation_text(asked)
    if asked.form is not None:
        return ElicitRequestFormParams(message=message, requested_schema=asked.form)
    if asked.traits.is_question:
        answer = {"type": "string", "title": "Answer", **({"enum": [*asked.choices]} if asked.choices else {})}
        return _form(message, {"answer": answer}, "answer")
    decision = {"type": "string", "title": "Decision", "enum": ["approve", "reject"]}
    reason = {"type": "string", "title": "Reason", "description": "Why it is rejected; the agent reads it."}
    fields = {"decision": decision, **_argument_fields(asked, parameters or {}), "reason": reason}
    return _form(message, fields, "decision")


def _form(message: str, fields: dict[str, Any], required: str) -> ElicitRequestFormParams:
    schema = {"type": "object", "properties": fields, "required": [required]}
    return ElicitRequestFormParams(message=message, requested_schema=schema)


def _argument_fields(asked: Confirmation, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields for the arguments that a form can contain: numbers, booleans and short texts."""
    schemas = parameters.get("properties", {})
    fields = {}
    for name, value in asked.arguments.items() if not asked.url else ():
        kind = _TYPES.get(type(value))
        if kind is None or (kind == "string" and len(value) > _MAX_EDITABLE_CHARS):
            continue
        schema = schemas.get(name, {})
        field = {"type": kind, "title": name, "default": value}
        if isinstance(description := schema.get("description"), str):
            field["description"] = description
        if (
            kind == "string"
            and value in (choices := schema.get("enum") or ())
            and all(isinstance(one, str) for one in choices)
        ):
            field["enum"] = [*choices]
        fields[_ARGUMENT + name] = field
    return fields


def decision_from(asked: Confirmation, result: ElicitResult) -> Decision | None:
    """Return the decision that a person made in a form; None if they made none, so that the run stays paused."""
    if result.action == "decline":
        return Reject(reason=DECLINED)
    if result.action == "cancel":
        return None
    if asked.form is not None:
        return Respond(values=dict(result.content or {}))
    match result.content or {}:
        case {"answer": str(text)} if asked.traits.is_question:
            return Respond(text=text)
        case {"decision": "reject", **rest}:
            return Reject(reason=str(rest.get("reason") or ""))
        case {"decision": "approve", **rest} if not asked.traits.is_question:
            return _approval(asked, rest)
    return None


def _approval(asked: Confirmation, entered: Mapping[str, Any]) -> Decision:
    given = ((name, value, entered.get(_ARGUMENT + name)) for name, value in asked.arguments.items())
    edited = {name: _like(value, new) for name, value, new in given if new is not None and new != value}
    return Edit(arguments={**asked.arguments, **edited}) if edited else Approve()


def _like(value: object, entered: Any) -> Any:
    """Return an entered number as an integer if the argument was one: clients may send 2 as 2.0."""
    return int(entered) if isinstance(value, int) and isinstance(entered, float) and entered.is_integer() else entered


_META = "agentsd/"
"""Prefix of our keys in the metadata of results."""


def tool_result(result: RunResult, how_to_decide: str) -> CallToolResult:
    """Return the result of a run as a tool result.

    A run that failed, was stopped or is paused is an error with its reason in words.
    """
    if result.pending:
        text = (
            f"{confirmations_text(result.pending)}\n\nThe run {result.run_id} waits for this decision. {how_to_decide}"
        )
    else:
        is_text = result.status == "completed" and result.data is None
        notes = (reason_text(result), incomplete_text(result.incomplete) if is_text else "")
        text = "\n\n".join(part for part in (result.output, *notes) if part)
    is_error = result.status != "completed"
    return CallToolResult(
        content=[TextContent(type="text", text=text)],
        structured_content=None if is_error else result.data,
        is_error=is_error,
        _meta=result_meta(result),
    )


def result_meta(result: RunResult) -> dict[str, Any]:
    """Return the metadata of a result: ids with which other interfaces find the run."""
    keys = ("run_id", "conversation_id", "status", "finish_reason", "agent", "digest", "trace_id")
    meta = {f"{_META}{key}": value for key in keys if (value := getattr(result, key)) is not None}
    if result.incomplete:
        meta[f"{_META}incomplete"] = [step.model_dump() for step in result.incomplete]
    return meta


def error_result(message: str) -> CallToolResult:
    """Return the result of a call that could not start a run."""
    return CallToolResult(content=[TextContent(type="text", text=message)], is_error=True)


_PROGRESS_SECONDS = 10.0
"""Interval of progress notifications during which nothing else is reported: clients end calls that are silent."""
Context = ServerRequestContext[Any, Any]


@dataclass(frozen=True, slots=True)
class McpCaller:
    """The client of an MCP server."""

    identity: Identity
    how_to_decide: str
    """What to do about a run that waits for a decision, with `{run_id}` for its id and `{where}` for the address."""
    pages: str = ""
    """Base address of the pages of runs, if a web server serves them."""

    @property
    def can_decide(self) -> bool:
        """Whether it may answer confirmations. Otherwise, a paused run is reported as an error."""
        return "decide" in self.identity.roles


class AgentCall:
    """A call in progress. Its run is stored: it survives the call, and can be decided elsewhere."""

    def __init__(self, service: RunService, caller: McpCaller, context: Context) -> None:
        self._service, self._caller, self._context = service, caller, context
        self._seen = 0
        self._reported = 0

    async def follow(self, run: OwnedRun) -> CallToolResult | InputRequiredResult:
        """Follow a run to its end; have the person at the client decide where it pauses.

        Raises:
            RequestError: a decision does not fit.
            RunSuspended: the runtime was closed.
        """
        while True:
            result = await self._read(run)
            if not result.pending or not self._can_ask:
                return self._result(result)
            if self._is_modern:
                requests = {asked.id: ElicitRequest(params=self._form(asked)) for asked in result.pending}
                return InputRequiredResult(input_requests=requests, request_state=run.run_id)
            decisions = await self._ask(result.pending)
            if not decisions:
                return self._result(result)
            await self._service.decide(self._caller.identity, run, decisions)

    async def resume(self, run: OwnedRun, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        """Continue the run of an earlier call with the answers to its questions, as clients since 2026-07-28 do."""
        state = (await self._service.load(self._caller.identity, run.run_id))[1]
        if state.agent != params.name:  # also if another agent answers, to which it was handed over
            raise RunNotFound(f"there is no run {run.run_id!r} of {params.name!r}")
        result = await self._service.result(run)
        if result.pending and self._caller.can_decide:
            answers = ((one, (params.input_responses or {}).get(one.id)) for one in result.pending)
            made = {one.id: decision_from(one, found) for one, found in answers if isinstance(found, ElicitResult)}
            decisions = {key: decision for key, decision in made.items() if decision is not None}
            if not decisions:
                return self._result(result)
            self._seen = state.seq
            await self._service.decide(self._caller.identity, run, decisions)
        return await self.follow(run)

    async def _read(self, run: OwnedRun) -> RunResult:
        """Report the progress of a run until it ends or pauses, and return its result."""
        ticking = asyncio.ensure_future(self._tick())
        finished = False
        try:
            async for event in self._service.follow(run, self._seen):
                self._seen = max(self._seen, event.seq)
                finished = isinstance(event, StreamEnd)
                if event.seq and not event.path and (text := progress_text(event)):
                    await self._report(text)
        finally:
            ticking.cancel()
        if not finished:
            raise RunSuspended(f"the server stopped; the run {run.run_id} continues elsewhere")
        return await self._service.result(run)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_SECONDS)
            await self._report("working")

    async def _report(self, text: str) -> None:
        """Send a progress notification, if the client asked for them."""
        self._reported += 1
        await self._context.session.report_progress(self._reported, message=text)

    # --- decisions

    @property
    def _is_modern(self) -> bool:
        """Whether the client sends its answers with another call instead of answering a request."""
        return self._context.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def _can_ask(self) -> bool:
        """Whether the client shows forms to a person who may decide."""
        capabilities = self._context.session.client_capabilities
        elicitation = capabilities.elicitation if capabilities else None
        if elicitation is None or not self._caller.can_decide:
            return False
        has_forms = elicitation.form is not None or elicitation.url is None  # clients of 2025-06-18 declare {}
        return has_forms and (self._is_modern or self._context.session.can_send_request)

    async def _ask(self, pending: Sequence[Confirmation]) -> dict[str, Decision]:
        """Ask for all decisions, one after the other; empty if the person closes a form without a decision."""
        ticking = asyncio.ensure_future(self._tick())
        decisions: dict[str, Decision] = {}
        try:
            for asked in pending:
                form = self._form(asked)
                with suppress(MCPError):  # the client has no person at hand, or is gone
                    answer = await self._context.session.elicit_form(
                        form.message, form.requested_schema, self._context.request_id
                    )
                    if decision := decision_from(asked, answer):
                        decisions[asked.id] = decision
                        continue
                return {}
        finally:
            ticking.cancel()
        return decisions

    def _form(self, asked: Confirmation) -> Any:
        agent = self._service.runtime.catalog.current.agents.get(asked.agent)
        tool = agent.toolset.tools.get(asked.tool) if agent else None
        return form_of(asked, tool.definition.parameters if tool else None)

    def _result(self, result: RunResult) -> CallToolResult:
        where = where_to_decide(self._caller.pages, result.run_id, result.pending)
        return tool_result(result, self._caller.how_to_decide.format(run_id=result.run_id, where=where))


MAX_MCP_SESSIONS = 500
"""Limit of concurrent sessions over HTTP. At the limit, new ones are refused."""
_NOTIFY_SECONDS = 5.0
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
_CallKey = tuple[str, str]
"""Id of a session, which the server has chosen and which belongs to one identity, and request id of a call in it."""


class _NotifyingServer(Server[Any]):
    """A server that declares that its list of tools can change."""

    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *rest: Any, **options: Any
    ) -> InitializationOptions:
        """Return what the server declares to clients that start with a handshake."""
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
            log.error("call of %s failed: %s", params.name, safe_traceback(error))
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
        name=agent.name, description=agent.spec.description, input_schema=schema, output_schema=agent.spec.output_schema
    )


def _session_of(context: Context) -> str:
    """Return the id of the client's session; empty where there are no sessions: on stdio, and since 2026-07-28."""
    return "" if context.request is None else context.request.headers.get("mcp-session-id", "")


_IDLE_SECONDS = 30 * 60.0
"""Time without requests after which a session ends."""
_DECIDE_BY_HTTP = (
    "A person must decide, but this client shows no forms, its key may not decide, or the form was closed. "
    "Ask the user to decide at {where}"
)


class McpEndpoint:
    """The MCP server of `/mcp`. It runs from the first request until the server's streams are closed."""

    def __init__(self, state: ServerState) -> None:
        self._service = state.service
        self._server = AgentServer(state.service, _caller)
        # Host and Origin are checked by the access rules of all routes.
        self._sessions = StreamableHTTPSessionManager(
            self._server.server,
            session_idle_timeout=_IDLE_SECONDS,
            max_request_body_size=CHAT_BODY_BYTES,
            max_sessions=MAX_MCP_SESSIONS,
        )
        self._started, self._closing = asyncio.Event(), asyncio.Event()
        self._running = asyncio.create_task(self._run(), name="MCP sessions")

    async def _run(self) -> None:
        try:
            with self._service.streams.add(self._closing.set):
                async with self._sessions.run():
                    self._started.set()
                    await self._closing.wait()
        finally:
            self._server.close()

    async def response(self, identity: Identity, body: bytes) -> Response:
        """Return the response to a request of an identity with this body; raises RequestError if too many are open."""
        with self._service.limits.admit_stream(identity) as admitted:
            await self._started.wait()
            # A session accepts only requests of the identity that started it.
            user = AuthenticatedUser(AccessToken(token="", client_id=json.dumps(identity.owner), scopes=[]))

            async def answer(scope: Scope, receive: Receive, send: Send) -> None:
                await self._sessions.handle_request({**scope, "user": user}, receive, send)

            return AppResponse(answer, self._service.streams, body, admitted.pop_all())


def _caller(context: Context) -> McpCaller:
    assert context.request is not None
    return McpCaller(identity_of(context.request), _DECIDE_BY_HTTP, pages_of(context.request))


_NO_FORM = "A person must decide, but this client shows no forms, or the form was closed. "
_DECIDE = _NO_FORM + "Ask the user to run this in the project's folder: agentsd runs decide {run_id}"
_DECIDE_NOWHERE = _NO_FORM + "Use a client that supports elicitation, or set store.url to decide in a terminal"


async def serve_stdio(
    root: Path, settings: Settings, agents: tuple[str, ...] | None, started: Callable[[Runtime], None]
) -> None:
    """Serve a project until the client closes standard input, or a signal. Only the protocol reaches standard output.

    `started` is called with the runtime once it is open.

    Raises:
        ConfigError: the files are invalid.
        StoreError: the store cannot be opened.
    """
    url = settings.store.url.get_secret_value()
    opened = Runtime.open(root, store=url, single_user=True)
    async with protocol_streams() as (reader, writer, end), opened as runtime:
        started(runtime)
        caller = McpCaller(replace(LOCAL, agents=agents), _DECIDE if runtime.store.durable else _DECIDE_NOWHERE)
        limits = KeyLimits(runtime.store, settings.server)
        server = AgentServer(RunService(runtime, limits, OpenStreams()), lambda _: caller)
        try:
            with ended_by_signals(end):
                # The SDK's parameters are typed as files of anyio, of which it uses three methods.
                async with stdio_server(cast(Any, _lines(reader)), cast(Any, _Output(writer))) as streams:
                    await server.server.run(streams[0], streams[1], server.server.create_initialization_options())
        finally:
            server.close()


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    try:
        async for line in reader:
            if line.strip():
                yield line.decode("utf-8", "replace")
    except ValueError:
        log.error("the client sent a message of more than %d bytes: the connection is closed", MAX_LINE_BYTES)


class _Output:
    """Writes text to a stream. A client that is gone is noticed by its input."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def write(self, text: str) -> None:
        self._writer.write(text.encode("utf-8", "replace"))

    async def flush(self) -> None:
        with suppress(ConnectionError):
            await self._writer.drain()
