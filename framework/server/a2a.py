"""Runs as A2A tasks: the state of a task is the stored run's, so any process of a fleet answers for it.

A pause for an approval is `AUTH_REQUIRED`: streams stay open and continue after the decision, wherever it is made. A
question is `INPUT_REQUIRED`, and the next message of the task answers it. The states are those of the A2A
specification 1.0, sections 4.1.3 and 7.6. Clients of version 0.3 are served through the translation of the SDK.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from typing import Any, TypeVar

from a2a import types
from a2a.compat.v0_3 import conversions
from a2a.helpers import get_data_parts, get_text_parts, new_data_part, new_text_part
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers import RequestHandler
from a2a.server.request_handlers.request_handler import validate_request_params
from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.server.routes import ServerCallContextBuilder, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks.push_notification_config_store import normalize_push_notification_config
from a2a.utils import errors
from a2a.utils.constants import PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0, VERSION_HEADER
from a2a.utils.proto_utils import to_stream_response
from google.protobuf.json_format import MessageToJson, Parse
from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from framework.engine.run_report import build_result
from framework.engine.runtime.request import RunOptions
from framework.engine.runtime.runtime import Runtime
from framework.server.errors import AccessDenied, client_message
from framework.server.event_stream import AppResponse
from framework.server.identity import ROUTER_NAME, Identity, agent_for, agent_named, identity_of, require
from framework.server.protocol_texts import (
    confirmations_text,
    missing_text,
    pages_of,
    progress_text,
    reason_text,
    run_url,
)
from framework.server.request_handling import ServerState
from framework.server.run_service import OwnedRun, RunService, count_runs_for, list_runs_for, load_run_info_for
from framework.store.run_links import DuePush
from framework.store.types import RunQuery
from framework.telemetry.redact import safe_traceback
from framework.tools.http import CheckedNetwork, HttpClient, parse_canonical_url, resolve_host, validate_headers
from framework.types import events
from framework.types.errors import AgentsdError, RequestError, RunNotFound, StoreError, ToolError
from framework.types.file import File
from framework.types.http import HttpLimits
from framework.types.report import Status, incomplete_text
from framework.types.state import Confirmation, Decision, Respond, RunResult, RunState

log = logging.getLogger(__name__)
T = TypeVar("T")
_PAGES = "agentsd.pages"
"""Key of the address of the pages of runs in the scope of a request."""
_MAX_PAGE, _PAGE = 100, 50
_INTERFACES = (
    ("JSONRPC", PROTOCOL_VERSION_1_0),
    ("HTTP+JSON", PROTOCOL_VERSION_1_0),
    ("JSONRPC", PROTOCOL_VERSION_0_3),  # with HTTP+JSON, the SDK breaks off streams at an error
)
_MAX_ID = 200
_PUSH_SECONDS, _PUSHES = 15.0, 20
"""Time limit of a push notification, and number of those that are sent at once."""
_PUSH_WAITS = (4.0, 16.0, 64.0, 256.0)
"""Seconds before each further attempt to send a push notification; then it is given up."""
_ANSWER = "answer"
"""Id of the artifact that contains the answer."""
_DECISIONS: TypeAdapter[dict[str, Decision]] = TypeAdapter(dict[str, Decision])
_STATES: Mapping[Status, types.TaskState] = {
    "queued": types.TaskState.TASK_STATE_SUBMITTED,
    "running": types.TaskState.TASK_STATE_WORKING,
    "completed": types.TaskState.TASK_STATE_COMPLETED,
    "stopped": types.TaskState.TASK_STATE_FAILED,
    "failed": types.TaskState.TASK_STATE_FAILED,
    "cancelled": types.TaskState.TASK_STATE_CANCELED,
}
_PAUSED = (types.TaskState.TASK_STATE_AUTH_REQUIRED, types.TaskState.TASK_STATE_INPUT_REQUIRED)
_HOW = (
    "the task waits for what words do not give, an approval or a form: decide it at {where}, or send a data part "
    '{{"decisions": {{ID: {{"type": "approve"}}}}}} with a key that has the role \'decide\''
)


class A2aApp:
    """Answers the requests of A2A clients."""

    def __init__(self, state: ServerState) -> None:
        self._service = service = state.service
        # The SDK logs what clients send, and each mistake with its traceback. Failures of ours are logged below.
        logging.getLogger("a2a").setLevel(logging.CRITICAL)
        handler, contexts = TaskHandler(service), _Contexts()
        rest = create_rest_routes(handler, contexts, path_prefix="/{agent}")
        own = [
            route for route in rest if isinstance(route, Route)
        ]  # without those below a tenant of the client's choice
        rpc = create_jsonrpc_routes(handler, "/{agent}", contexts, enable_v0_3_compat=True)
        self._router = Router([*rpc, *own])

    def response(self, request: Request, body: bytes, admitted: ExitStack) -> AppResponse:
        """Return the response to a request with this body, which closes `admitted` at its end."""
        path = f"/{request.path_params['agent']}{request.path_params['rest']}"
        pages = pages_of(request)

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await self._router({**scope, "path": path, "root_path": "", _PAGES: pages}, receive, send)

        return AppResponse(answer, self._service.streams, body, admitted)

    def card(self, request: Request, name: str | None) -> dict[str, Any]:
        """Return the card of an agent, or of the server; raises AgentNotFound.

        Without a name, it is that of the only agent that the client may use, or of `auto`.
        """
        identity, current = identity_of(request), self._service.runtime.catalog.current
        visible = {key: agent for key, agent in sorted(current.agents.items()) if identity.may_use(key)}
        if name is None:
            name = next(iter(visible)) if len(visible) == 1 else ROUTER_NAME
        chosen = agent_for(identity, agent_named(name, current.names), current.names)
        agents = [current.agent(chosen)] if chosen is not None else [*visible.values()]
        offered = [(agent.name, agent.spec.description) for agent in agents]
        about = agents[0].spec.description if chosen is not None else "Chooses one of its agents for each message."
        base = str(request.url.replace(query="")).partition("/.well-known/")[0].removesuffix(f"/a2a/{name}")
        url = f"{base}/a2a/{name}"
        card = types.AgentCard(
            name=chosen or "agentsd",
            description=about,
            version=current.digest[:12],
            supported_interfaces=[
                types.AgentInterface(url=url, protocol_binding=binding, protocol_version=version)
                for binding, version in _INTERFACES
            ],
            capabilities=types.AgentCapabilities(streaming=True, push_notifications=_pushes_to(self._service.runtime)),
            default_input_modes=["text/plain", "application/json", "image/png", "image/jpeg", "application/pdf"],
            default_output_modes=["text/plain", "application/json"],
            skills=[types.AgentSkill(id=name, name=name, description=text, tags=[name]) for name, text in offered],
        )
        if self._service.runtime.settings.server.api_keys:
            bearer = types.SecurityScheme(http_auth_security_scheme=types.HTTPAuthSecurityScheme(scheme="Bearer"))
            card.security_schemes["key"].CopyFrom(bearer)
            card.security_requirements.append(types.SecurityRequirement(schemes={"key": types.StringList()}))
        return agent_card_to_dict(card)


class _Contexts(ServerCallContextBuilder):
    """Passes the request on to the handler. Clients may send the version in the query, too (specification 3.6.1)."""

    def build(self, request: Request) -> ServerCallContext:
        headers = dict(request.headers)
        if not headers.get(VERSION_HEADER.lower()) and (version := request.query_params.get(VERSION_HEADER)):
            headers[VERSION_HEADER.lower()] = version
        return ServerCallContext(state={"headers": headers, "request": request})


@dataclass(frozen=True, slots=True)
class _Call:
    """Who asks what."""

    identity: Identity
    agent: str | None
    """The agent of the address; None: any."""
    pages: str
    version: str


def _operation(method: Callable[[TaskHandler, Any, _Call], Awaitable[T]]) -> Callable[..., Coroutine[Any, Any, T]]:
    """Check the parameters of an operation, and raise every error as one of the protocol."""

    @validate_request_params
    @wraps(method)
    async def handle(self: TaskHandler, params: Any, context: ServerCallContext) -> T:
        try:
            return await method(self, params, self._call(context))
        except Exception as error:  # noqa: BLE001 - the SDK would send its text
            raise _protocol_error(error) from None

    return handle


class TaskHandler(RequestHandler):
    """The operations of the protocol, each for the identity of its request."""

    def __init__(self, service: RunService) -> None:
        self._service = service

    # --- messages

    @_operation
    async def on_message_send(self, params: types.SendMessageRequest, call: _Call) -> types.Task:
        run, _, _ = await self._accept(call, params)
        if not params.configuration.return_immediately:
            await self._service.result(run)
        return await self._task(call, run.run_id, _length(params.configuration))

    @validate_request_params
    async def on_message_send_stream(
        self, params: types.SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Any]:
        try:
            call = self._call(context)
            async for update in self._updates(call, *await self._accept(call, params)):
                yield update
        except Exception as error:  # noqa: BLE001 - the SDK would send its text
            raise _protocol_error(error) from None

    @validate_request_params
    async def on_subscribe_to_task(
        self, params: types.SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Any]:
        try:
            call = self._call(context)
            run, state = await self._load(call, params.id)
            if state.status not in ("queued", "running", "paused"):
                raise errors.UnsupportedOperationError(f"the task has ended: it is {state.status}")
            async for update in self._updates(call, run, _task_of(call.pages, state), state.seq):
                yield update
        except Exception as error:  # noqa: BLE001 - the SDK would send its text
            raise _protocol_error(error) from None

    async def _accept(self, call: _Call, params: types.SendMessageRequest) -> tuple[OwnedRun, types.Task, int]:
        """Start a run with a message, or decide what the message's task waits for.

        Returns:
            The run, its task at this moment, and the number of the last event until then.
        """
        push = params.configuration.task_push_notification_config
        has_push = params.configuration.HasField("task_push_notification_config")
        if has_push:
            await self._check_push(push)
        message = params.message
        if message.role != types.Role.ROLE_USER:
            raise errors.InvalidParamsError("message.role must be ROLE_USER")
        if not message.task_id:
            run = await self._start(call, message)
            if has_push:
                await self._save_push(call, run.run_id, push)
            status = types.TaskStatus(state=types.TaskState.TASK_STATE_SUBMITTED)
            return run, types.Task(id=run.run_id, context_id=run.conversation_id, status=status, history=[message]), 0
        run, state = await self._load(call, message.task_id)
        if message.context_id and message.context_id != state.conversation_id:
            raise errors.InvalidParamsError("message.contextId is not that of the task")
        if not state.pending:
            raise errors.UnsupportedOperationError(
                f"the task is {state.status} and takes no message: send it without taskId, with the task's contextId"
            )
        decisions = _decisions(message, state.pending, run_url(call.pages, run.run_id, state.pending))
        require(call.identity, "decide")
        await self._service.decide(call.identity, run, decisions)
        if has_push:
            await self._save_push(call, run.run_id, push)
        task = _task_of(call.pages, state, _length(params.configuration))
        task.status.CopyFrom(types.TaskStatus(state=types.TaskState.TASK_STATE_WORKING))
        return run, task, state.seq

    async def _start(self, call: _Call, message: types.Message) -> OwnedRun:
        content = [_content(part) for part in message.parts]
        options: RunOptions = {"agent": call.agent, "conversation": message.context_id or None}
        digest = hashlib.sha256(message.SerializeToString(deterministic=True)).hexdigest()
        fields = {"conversation": "message.contextId", "message": "message.parts"}
        repetition = (f"{call.agent} {message.message_id}", digest)  # each agent is a server of its own in A2A
        return await self._service.submit(call.identity, content, options, repetition=repetition, fields=fields)

    # --- tasks

    @_operation
    async def on_get_task(self, params: types.GetTaskRequest, call: _Call) -> types.Task:
        await self._load(call, params.id)
        return await self._task(call, params.id, _length(params))

    @_operation
    async def on_list_tasks(self, params: types.ListTasksRequest, call: _Call) -> types.ListTasksResponse:
        size = params.page_size if params.HasField("page_size") else _PAGE
        if not 1 <= size <= _MAX_PAGE:
            raise errors.InvalidParamsError(f"pageSize must be 1 to {_MAX_PAGE}")
        query = RunQuery(
            agent=call.agent,
            conversation_id=params.context_id or None,
            statuses=_statuses(params.status),
            before=params.page_token or None,
            limit=size,
        )
        after = params.status_timestamp_after.ToSeconds() if params.HasField("status_timestamp_after") else 0
        infos, cursor = await list_runs_for(self._service.runtime, call.identity, query)
        tasks = [
            await self._task(call, info.run_id, _length(params) or 0) for info in infos if info.updated_at >= after
        ]
        wanted = [task for task in tasks if params.status in (0, task.status.state)]
        total = await count_runs_for(self._service.runtime, call.identity, query)
        return types.ListTasksResponse(tasks=wanted, next_page_token=cursor or "", page_size=size, total_size=total)

    @_operation
    async def on_cancel_task(self, params: types.CancelTaskRequest, call: _Call) -> types.Task:
        run, state = await self._load(call, params.id)
        if state.status in ("completed", "stopped", "failed"):
            raise errors.TaskNotCancelableError(f"the task has ended: it is {state.status}")
        if state.status != "cancelled":
            await self._service.cancel(run)
            await self._service.result(run)
        return await self._task(call, run.run_id, None)

    # --- push notifications

    @_operation
    async def on_create_task_push_notification_config(
        self, params: types.TaskPushNotificationConfig, call: _Call
    ) -> types.TaskPushNotificationConfig:
        await self._push_call(call, params.task_id)
        await self._check_push(params)
        return await self._save_push(call, params.task_id, params)

    @_operation
    async def on_get_task_push_notification_config(
        self, params: types.GetTaskPushNotificationConfigRequest, call: _Call
    ) -> types.TaskPushNotificationConfig:
        await self._push_call(call, params.task_id)
        saved = await self._service.runtime.store.pushes.list(params.task_id)
        if (body := saved.get(params.id or params.task_id)) is None:
            raise errors.TaskNotFoundError("the task has no push notification config with this id")
        return _without_secrets(body)

    @_operation
    async def on_list_task_push_notification_configs(
        self, params: types.ListTaskPushNotificationConfigsRequest, call: _Call
    ) -> types.ListTaskPushNotificationConfigsResponse:
        await self._push_call(call, params.task_id)
        saved = await self._service.runtime.store.pushes.list(params.task_id)
        return types.ListTaskPushNotificationConfigsResponse(configs=map(_without_secrets, saved.values()))

    @_operation
    async def on_delete_task_push_notification_config(
        self, params: types.DeleteTaskPushNotificationConfigRequest, call: _Call
    ) -> None:
        await self._push_call(call, params.task_id)
        await self._service.runtime.store.pushes.delete(params.task_id, params.id)

    async def _push_call(self, call: _Call, task_id: str) -> None:
        """Check a call about the push notifications of a task; raises RunNotFound."""
        if not _pushes_to(self._service.runtime):
            raise errors.PushNotificationNotSupportedError
        await self._load(call, task_id)

    async def _check_push(self, config: types.TaskPushNotificationConfig) -> None:
        """Raise InvalidParamsError for a receiver that would not be called."""
        if not _pushes_to(self._service.runtime):
            raise errors.PushNotificationNotSupportedError
        if len(config.id) > _MAX_ID or not config.id.isprintable():
            raise errors.InvalidParamsError(f"id: more than {_MAX_ID} characters, or one that cannot be printed")
        limits = _push_limits(self._service.runtime)
        try:
            validate_headers(_push_headers(config))
            url = parse_canonical_url(config.url)
        except ToolError as error:
            raise errors.InvalidParamsError(error.message) from None
        try:
            HttpClient(limits).check("POST", url)
            await CheckedNetwork(limits, resolve_host).addresses(url.host, url.port)
        except ToolError:  # its text is about tools, and says which hosts exist
            raise errors.InvalidParamsError(
                f"url: this server sends no push notifications to {url.url_host}:{url.port}: its operator allows public"
                " hosts with server.a2a_push_hosts"
            ) from None

    async def _save_push(
        self, call: _Call, run_id: str, config: types.TaskPushNotificationConfig
    ) -> types.TaskPushNotificationConfig:
        saved = normalize_push_notification_config(run_id, config)
        body = json.dumps({"config": MessageToJson(saved), "pages": call.pages, "version": call.version})
        await self._service.runtime.store.pushes.save(run_id, saved.id, body)
        return _without_secrets(body)

    # --- what is not offered

    async def on_get_extended_agent_card(self, *_: Any, **__: Any) -> types.AgentCard:
        raise errors.ExtendedAgentCardNotConfiguredError

    # --- parts

    def _call(self, context: ServerCallContext) -> _Call:
        request: Request = context.state["request"]
        identity, known = identity_of(request), self._service.runtime.catalog.current.names
        agent = agent_for(identity, agent_named(request.path_params["agent"], known), known)
        if agent is not None:
            self._service.runtime.catalog.current.agent(agent)
        version = context.state["headers"].get(VERSION_HEADER.lower()) or PROTOCOL_VERSION_0_3
        return _Call(identity, agent, request.scope[_PAGES], version)

    async def _load(self, call: _Call, task_id: str) -> tuple[OwnedRun, RunState]:
        run, state = await self._service.load(call.identity, task_id)
        if call.agent not in (None, state.agent):
            raise RunNotFound(f"there is no run {task_id!r} of {call.agent!r}")
        return run, state

    async def _task(self, call: _Call, run_id: str, history: int | None) -> types.Task:
        """Return a run as a task with the last messages; None: all of them."""
        _, state = await self._service.load(call.identity, run_id)
        info = await load_run_info_for(self._service.runtime, call.identity, run_id)
        return _task_of(call.pages, state, history, info.updated_at)

    async def _updates(
        self, call: _Call, run: OwnedRun, task: types.Task, after: int
    ) -> AsyncGenerator[types.Task | types.TaskStatusUpdateEvent | types.TaskArtifactUpdateEvent]:
        """Yield the task, and what changes after the event with this number, until it ends or asks a question."""
        yield task
        sent = _Sent(task.id, task.context_id)
        followed = self._service.follow(run, after, through_pauses=True)
        try:
            async for event in followed:
                if not isinstance(event, events.StreamEnd):
                    for update in sent.of(event):
                        yield update
                    continue
                now = await self._task(call, run.run_id, 0)
                for update in sent.end(now):
                    yield update
                if now.status.state != types.TaskState.TASK_STATE_AUTH_REQUIRED:
                    return
        finally:
            await followed.aclose()


@dataclass(slots=True)
class _Sent:
    """What a stream has sent of a task."""

    task_id: str
    context_id: str
    _message: str | None = None
    """Id of the message whose text the artifact contains."""
    _text: str = ""

    def of(self, event: events.Event) -> Iterator[types.TaskStatusUpdateEvent | types.TaskArtifactUpdateEvent]:
        """Yield the update for an event of the run itself, not of a sub-agent's."""
        if event.path:
            return
        if isinstance(event, events.ContentReceived):
            yield from self._content(event)
        elif event.seq and (text := progress_text(event)):
            working = types.TaskState.TASK_STATE_WORKING
            yield self._status(types.TaskStatus(state=working, message=self._said(f"{event.seq}", text)))

    def end(self, task: types.Task) -> Iterator[types.TaskStatusUpdateEvent | types.TaskArtifactUpdateEvent]:
        """Yield the answer, unless it was sent, and the state of a task that has ended or pauses."""
        for artifact in task.artifacts:
            if len(artifact.parts) != 1 or artifact.parts[0].text != self._text:
                yield self._artifact(artifact, append=False, last=True)
        yield self._status(task.status)

    def _content(self, event: events.ContentReceived) -> Iterator[types.TaskArtifactUpdateEvent]:
        is_new = event.message_id != self._message
        before = "" if is_new else self._text
        piece = missing_text(event.text, before, is_whole=bool(event.seq))
        if not piece:
            return
        self._message, self._text = event.message_id, before + piece
        yield self._artifact(types.Artifact(artifact_id=_ANSWER, parts=[new_text_part(piece)]), append=not is_new)

    def _said(self, key: str, text: str) -> types.Message:
        return _agent_message(self.task_id, self.context_id, key, [new_text_part(text)])

    def _status(self, status: types.TaskStatus) -> types.TaskStatusUpdateEvent:
        return types.TaskStatusUpdateEvent(task_id=self.task_id, context_id=self.context_id, status=status)

    def _artifact(self, artifact: types.Artifact, *, append: bool, last: bool = False) -> types.TaskArtifactUpdateEvent:
        return types.TaskArtifactUpdateEvent(
            task_id=self.task_id, context_id=self.context_id, artifact=artifact, append=append, last_chunk=last
        )


def _task_of(pages: str, state: RunState, history: int | None = None, updated_at: float | None = None) -> types.Task:
    """Return a run as a task with the last messages, of which None are all."""
    result, context_id = build_result(state), state.conversation_id or ""
    said = [message for message in state.messages if message.role in ("user", "assistant") and message.content]
    kept = said if history is None else said[len(said) - history :] if history else []
    task = types.Task(
        id=state.run_id,
        context_id=context_id,
        status=types.TaskStatus(state=_state_of(state.status, state.pending)),
        history=[
            types.Message(
                message_id=f"{state.run_id}/{place}",
                task_id=state.run_id,
                context_id=context_id,
                role=types.Role.ROLE_USER if message.role == "user" else types.Role.ROLE_AGENT,
                parts=[new_text_part(message.content)],
            )
            for place, message in enumerate(kept, len(said) - len(kept))
        ],
        artifacts=_artifacts(result),
        metadata={
            "agent": state.agent,
            "answered_by": state.answering,
            "generation": state.generation,
            "digest": state.digest,
        },
    )
    if updated_at is not None:
        task.status.timestamp.FromDatetime(datetime.fromtimestamp(updated_at, UTC))
    if parts := _why(pages, result):
        task.status.message.CopyFrom(_agent_message(state.run_id, context_id, "status", parts))
    return task


def _agent_message(task_id: str, context_id: str, key: str, parts: Sequence[types.Part]) -> types.Message:
    return types.Message(
        message_id=f"{task_id}/{key}", task_id=task_id, context_id=context_id, role=types.Role.ROLE_AGENT, parts=parts
    )


def _why(pages: str, result: RunResult) -> list[types.Part]:
    """Return what a task waits for, or why it has no answer, or only a part of one."""
    if result.pending:
        where = run_url(pages, result.run_id, result.pending)
        asked = [one.model_dump(mode="json", exclude_none=True) for one in result.pending]
        text = f"{confirmations_text(result.pending)}\n\nDecide it at {where}"
        return [new_text_part(text), new_data_part({"confirmations": asked, "url": where})]
    text = reason_text(result) if result.status in ("stopped", "failed") else incomplete_text(result.incomplete)
    return [new_text_part(text)] if text else []


def _artifacts(result: RunResult) -> list[types.Artifact]:
    """Return the answer, as data too if the agent has an output schema."""
    if not result.output or result.status not in ("completed", "stopped"):
        return []
    parts = [new_text_part(result.output)]
    if result.data is not None:
        parts.append(new_data_part(result.data))
    return [types.Artifact(artifact_id=_ANSWER, parts=parts)]


def _state_of(status: Status, pending: Sequence[Confirmation]) -> types.TaskState:
    if status != "paused":
        return _STATES[status]
    asks = all(one.traits.is_question for one in pending)
    return types.TaskState.TASK_STATE_INPUT_REQUIRED if asks else types.TaskState.TASK_STATE_AUTH_REQUIRED


def _statuses(state: types.TaskState) -> tuple[Status, ...]:
    """Return the statuses of runs that a state of tasks may have; none for any."""
    return ("paused",) if state in _PAUSED else tuple(status for status, one in _STATES.items() if one == state)


def _length(params: Any) -> int | None:
    """Return the number of messages that a client wants; None: all. Raises InvalidParamsError."""
    if not params.HasField("history_length"):
        return None
    if params.history_length < 0:
        raise errors.InvalidParamsError("historyLength must not be negative")
    return int(params.history_length)


def _decisions(message: types.Message, pending: Sequence[Confirmation], where: str) -> Mapping[str, Decision]:
    """Return the decisions of a message: those in a data part, or its text as the answer to a question."""
    for data in get_data_parts(message.parts):
        if isinstance(data, dict) and "decisions" in data:
            try:
                return _DECISIONS.validate_python(data["decisions"])
            except ValidationError as error:
                detail = error.errors(include_url=False, include_input=False)[0]
                raise errors.InvalidParamsError(
                    f"decisions: {'.'.join(map(str, detail['loc']))}: {detail['msg']}"
                ) from None
    if not all(one.traits.is_question and one.form is None for one in pending):
        raise errors.UnsupportedOperationError(_HOW.format(where=where))
    return {pending[0].id: Respond(text="\n".join(get_text_parts(message.parts)))}


def _content(part: types.Part) -> str | File:
    kind = part.WhichOneof("content")
    if kind == "text":
        return part.text
    if kind == "raw":
        return File.from_bytes(part.raw, name=part.filename or None, media_type=part.media_type or None)
    if kind == "data":
        return json.dumps(get_data_parts([part])[0], ensure_ascii=False)
    raise errors.ContentTypeNotSupportedError(f"a part with {kind or 'nothing'}: send text, data or raw bytes")


def _protocol_error(error: Exception) -> errors.A2AError:
    """Return our errors as those of the protocol; others without their text, which may contain data."""
    match error:
        case errors.A2AError():
            return error
        case RunNotFound():
            return errors.TaskNotFoundError(client_message(error))
        case AccessDenied():
            return errors.UnsupportedOperationError(client_message(error))
        case RequestError():
            return errors.InvalidParamsError(client_message(error))
        case AgentsdError():
            return errors.InternalError(client_message(error))
    log.error("A2A request failed: %s", safe_traceback(error))
    return errors.InternalError("internal error; see the log of the server")


def _pushes_to(runtime: Runtime) -> bool:
    """Return whether push notifications are offered."""
    return bool(runtime.settings.server.a2a_push_hosts)


def _push_limits(runtime: Runtime) -> HttpLimits:
    """Return the limits of push notifications: only to the operator's hosts, and no private address by a name."""
    return HttpLimits(
        domains=runtime.settings.server.a2a_push_hosts,
        methods=("POST",),
        private_networks=runtime.settings.tools.http.private_networks,
        max_bytes=1000,
        timeout=_PUSH_SECONDS,
    )


def _push_headers(config: types.TaskPushNotificationConfig) -> dict[str, str]:
    """Return the headers with which a receiver recognizes the sender, as the SDK's own server sends them."""
    headers = {"x-a2a-notification-token": config.token} if config.token else {}
    if config.authentication.credentials:
        headers["authorization"] = f"{config.authentication.scheme} {config.authentication.credentials}"
    return headers


def _saved_push(body: str) -> types.TaskPushNotificationConfig:
    config = types.TaskPushNotificationConfig()
    Parse(json.loads(body)["config"], config)
    return config


def _without_secrets(body: str) -> types.TaskPushNotificationConfig:
    """Return a saved receiver, without what only its owner may know: other keys of the tenant see it, too."""
    config = _saved_push(body)
    config.ClearField("token")
    config.authentication.ClearField("credentials")
    return config


async def send_pushes(runtime: Runtime) -> None:
    """Send the push notifications that are due: one for each pause, and one for the end. Call it every second.

    Raises StoreError if the due ones cannot be read.
    """
    due = await runtime.store.pushes.claim(_PUSHES)
    async with asyncio.TaskGroup() as group:
        for push in due:
            group.create_task(_send_push(runtime, push))


async def _send_push(runtime: Runtime, push: DuePush) -> None:
    try:
        failure = await _try_push(runtime, push)
    except AgentsdError as error:
        failure = error.message
    except Exception as error:  # noqa: BLE001 - it would end the notifications that are sent at the same time
        log.error("a push notification of run %s failed: %s", push.run_id, safe_traceback(error))
        failure = "internal error"
    wait = _PUSH_WAITS[push.attempts - 1] if failure and push.attempts <= len(_PUSH_WAITS) else None
    if failure and wait is None:
        log.warning("a push notification of run %s was given up: %s", push.run_id, failure)
    with suppress(StoreError):  # then it is sent again
        await runtime.store.pushes.settle(push, wait)


async def _try_push(runtime: Runtime, push: DuePush) -> str:
    """Send a push notification; return why it failed, or nothing."""
    saved, config = json.loads(push.body), _saved_push(push.body)
    task = _task_of(saved["pages"], await runtime.store.load_run(push.run_id), 0, push.updated_at)
    body = MessageToJson(to_stream_response(task), indent=None)
    if saved["version"].startswith("0."):
        body = conversions.to_compat_task(task).model_dump_json(by_alias=True, exclude_none=True)
    headers = {**_push_headers(config), "content-type": "application/a2a+json"}
    client = HttpClient(_push_limits(runtime))
    reply = await client.request("POST", config.url, headers=headers, body=body.encode(), follow=False)
    return "" if 200 <= reply.status < 300 else f"HTTP {reply.status}"
