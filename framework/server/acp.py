"""`agentsd acp`: agents in editors that speak the Agent Client Protocol (https://agentclientprotocol.com), version 1.

A session is a stored conversation, a mode is an agent, and a permission is a decision on a confirmation: a run that
waits for one survives the editor, and can be decided anywhere else meanwhile. What an editor sends with a session (its
folder, further folders, tool servers) gives an agent nothing: only the project's files do.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import acp
from acp import schema

from framework.config.settings import Settings
from framework.engine.runtime.request import Caller, RunOptions
from framework.engine.runtime.runtime import Runtime
from framework.engine.runtime.start import load_conversation
from framework.server.protocol_texts import confirmation_text, confirmations_text, file_of, missing_text, reason_text
from framework.server.startup import MAX_LINE_BYTES, ended_by_signals, protocol_streams
from framework.store.types import Conversation, ConversationQuery
from framework.telemetry.redact import safe_traceback
from framework.types import events
from framework.types.errors import AgentsdError, DecisionRefused, RequestError
from framework.types.file import File
from framework.types.grant import GrantUsage, Remember, Width, covers_text
from framework.types.plan import StepStatus, TodoItem
from framework.types.report import incomplete_text
from framework.types.spec import RISKS, Risk
from framework.types.state import Approve, Confirmation, Decision, Reject, Respond
from framework.types.text import visible

log = logging.getLogger(__name__)
_ROUTER = "auto"
_REMEMBER = "remember-"
"""Beginning of the ids of options that remember an approval; the width follows."""
_PAGE = 50
_LOCAL = Caller(single_user=True)
"""An editor is a program of the person who started it."""
_INVALID, _FAILED = -32602, -32603
"""JSON-RPC's codes of invalid parameters and of internal errors."""
_KINDS: Mapping[str, schema.ToolKind] = {
    "read_file": "read", "list_files": "read", "skill.load": "read", "skill.read": "read", "result.read": "read",
    "write_file": "edit", "edit_file": "edit", "search_files": "search", "tool_search": "search", "result.search":
    "search", "shell": "execute", "skill.run": "execute", "code_execute": "execute", "web_search": "fetch",
    "web_fetch": "fetch",
}  # fmt: skip
"""What known tools do: editors show it as an icon."""
_CALL_STATUS: Mapping[str, schema.ToolCallStatus] = {"success": "completed"}
_STEP_STATUS: Mapping[StepStatus, schema.PlanEntryStatus] = {"open": "pending", "running": "in_progress"}


async def serve_acp(
    root: Path, settings: Settings, agent: str | None, decides: Risk | None, started: Callable[[Runtime], None]
) -> None:
    """Serve a project to one editor until it closes standard input, or a signal.

    `decides` is the highest risk of what the editor may approve; None: it approves nothing. `started` is called with
    the runtime once it is open.

    Raises:
        ConfigError: the files are invalid.
        StoreError: the store cannot be opened.
    """
    opened = Runtime.open(root, store=settings.store.url.get_secret_value(), single_user=True)
    async with protocol_streams() as (reader, writer, end), opened as runtime:
        started(runtime)
        server = AcpServer(runtime, root, agent, decides)
        with ended_by_signals(end):
            # A cast, because the methods of what it does not declare are missing.
            await acp.run_agent(cast(acp.Agent, server), _Lines(reader, writer), use_unstable_protocol=True)


@dataclass(frozen=True, slots=True)
class _Lines:
    """Messages as lines of JSON. Those of the SDK end the process at a line that is JSON, but no object."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, message: dict[str, Any]) -> None:
        self.writer.write(f"{json.dumps(message, separators=(',', ':'))}\n".encode())
        await self.writer.drain()

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message; None at the end, or after a line that is too long."""
        try:
            while line := await self.reader.readline():
                with suppress(ValueError, RecursionError):
                    if isinstance(message := json.loads(line), dict):
                        return message
                if line.strip():
                    log.warning("the editor sent a line that is no JSON object: it is ignored")
        except ValueError:
            log.error("the editor sent a message of more than %d bytes: the connection is closed", MAX_LINE_BYTES)
        return None

    async def close(self) -> None:
        """Do nothing: the streams are closed by their owner."""


@dataclass(slots=True)
class _Session:
    """What an editor has chosen in a session, and its run in progress."""

    agent: str | None
    """Agent that was chosen; None: the router chooses."""
    handed_to: str | None = None
    """Agent that the chosen one has handed the conversation over to."""
    reroutes: bool = False
    """Whether the router chooses the agent of the next message, also if the conversation was handed over."""
    is_busy: bool = False
    run: str | None = None
    is_cancelled: bool = False


class AcpServer:
    """The agents of a project for one editor. The public methods are those of `acp.Agent`."""

    def __init__(self, runtime: Runtime, root: Path, agent: str | None, decides: Risk | None) -> None:
        self._runtime, self._root, self._only, self._decides = runtime, root.resolve(), agent, decides
        self._sessions: dict[str, _Session] = {}
        self._client: acp.Client | None = None

    def on_connect(self, conn: acp.Client) -> None:
        self._client = conn

    async def initialize(self, protocol_version: int, **_: Any) -> schema.InitializeResponse:
        return schema.InitializeResponse(
            protocol_version=min(protocol_version, acp.PROTOCOL_VERSION) or acp.PROTOCOL_VERSION,
            agent_info=schema.Implementation(name="agentsd", title="agentsd", version=version("agentsd")),
            agent_capabilities=schema.AgentCapabilities(
                load_session=True,
                prompt_capabilities=schema.PromptCapabilities(image=True, audio=True, embedded_context=True),
                session_capabilities=schema.SessionCapabilities(
                    list=schema.SessionListCapabilities(),
                    resume=schema.SessionResumeCapabilities(),
                    fork=schema.SessionForkCapabilities(),
                    close=schema.SessionCloseCapabilities(),
                ),
            ),
        )

    # --- sessions

    async def new_session(self, **_: Any) -> schema.NewSessionResponse:
        session_id = uuid4().hex[:12]
        with _as_protocol_errors():
            self._sessions[session_id] = session = _Session(self._first_agent())
            return schema.NewSessionResponse(session_id=session_id, modes=self._modes(session))

    async def load_session(self, session_id: str, **_: Any) -> schema.LoadSessionResponse:
        with _as_protocol_errors():
            found = await self._stored(session_id)
            session = self._open(found)
            for update in _earlier(found):
                await self._send(session_id, update)
            await self._send_pending(found)
            return schema.LoadSessionResponse(modes=self._modes(session))

    async def resume_session(self, session_id: str, **_: Any) -> schema.ResumeSessionResponse:
        with _as_protocol_errors():
            found = await self._stored(session_id)
            session = self._open(found)
            await self._send_pending(found)
            return schema.ResumeSessionResponse(modes=self._modes(session))

    async def fork_session(self, session_id: str, **_: Any) -> schema.ForkSessionResponse:
        with _as_protocol_errors():
            found = await self._stored(session_id)
            copy = await self._runtime.fork(
                found.id, messages=len(found.messages), user=found.user, tenant=found.tenant
            )
            return schema.ForkSessionResponse(session_id=copy.id, modes=self._modes(self._open(copy)))

    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **_: Any
    ) -> schema.ListSessionsResponse:
        with _as_protocol_errors():
            query = ConversationQuery(cursor=cursor, limit=_PAGE + 1)
            found = await self._runtime.store.conversations(query)
        folder = cwd or str(self._root)  # conversations belong to the project, in whatever folder an editor works
        listed = [
            schema.SessionInfo(
                session_id=info.id,
                cwd=folder,
                title=info.title or None,
                updated_at=datetime.fromtimestamp(info.updated_at, UTC).isoformat(timespec="seconds"),
            )
            for info in found[:_PAGE]
            if self._is_offered(info.agent)
        ]
        return schema.ListSessionsResponse(
            sessions=listed, next_cursor=found[_PAGE - 1].cursor if len(found) > _PAGE else None
        )

    async def close_session(self, session_id: str, **_: Any) -> schema.CloseSessionResponse:
        await self.cancel(session_id)
        self._sessions.pop(session_id, None)
        return schema.CloseSessionResponse()

    async def set_session_mode(self, session_id: str, mode_id: str, **_: Any) -> schema.SetSessionModeResponse:
        with _as_protocol_errors():
            session = self._session(session_id)
            if mode_id not in {mode.id for mode in self._modes(session).available_modes}:
                raise RequestError(f"there is no mode {mode_id!r}")
            chosen = None if mode_id == _ROUTER else mode_id
            session.reroutes = chosen is not None or session.agent is not None
            session.agent, session.handed_to = chosen, None
            return schema.SetSessionModeResponse()

    def _session(self, session_id: str) -> _Session:
        if (session := self._sessions.get(session_id)) is None:
            raise RequestError(f"there is no session {session_id!r} here: load it first")
        return session

    async def _stored(self, session_id: str) -> Conversation:
        """Return the conversation of a session; raises RequestError."""
        found = await load_conversation(self._runtime.store, session_id, _LOCAL)
        if not found.is_stored or not self._is_offered(found.agent):
            raise RequestError(f"there is no session {session_id!r}")
        return found

    def _is_offered(self, agent: str | None) -> bool:
        """Return whether a conversation may be shown: one that no agent has answered yet may wait for a decision."""
        return self._only is None or agent in (None, self._only)

    def _open(self, found: Conversation) -> _Session:
        """Return the session of a stored conversation; its last agent answers, as in `agentsd chat`."""
        known = self._runtime.catalog.current.agents
        agent = self._only or (found.agent if found.agent in known else None)
        chosen = agent or self._first_agent()
        return self._sessions.setdefault(found.id, _Session(chosen, found.handed_to if chosen == found.agent else None))

    def _first_agent(self) -> str | None:
        """Return the agent that a new session starts with, if it is no choice of the router; raises AgentNotFound."""
        current = self._runtime.catalog.current
        if self._only is not None:
            return current.agent(self._only).name
        return next(iter(current.agents)) if len(current.agents) == 1 else None

    def _modes(self, session: _Session) -> schema.SessionModeState:
        agents = self._runtime.catalog.current.agents
        offered = [agents[name] for name in sorted(agents) if self._only in (None, name)]
        modes = [schema.SessionMode(id=one.name, name=one.name, description=one.spec.description) for one in offered]
        if self._only is None and len(agents) != 1:
            router = schema.SessionMode(id=_ROUTER, name=_ROUTER, description="The router chooses the agent.")
            modes = [router, *(mode for mode in modes if mode.id != _ROUTER)]
        answering = session.handed_to if self._only is None and session.handed_to in agents else session.agent
        return schema.SessionModeState(current_mode_id=answering or _ROUTER, available_modes=modes)

    async def _send_pending(self, found: Conversation) -> None:
        """Send what the last run of a session waits for: the next message asks for the decision again."""
        if found.open_run is not None and (pending := (await self._runtime.store.load_run(found.open_run)).pending):
            asked = confirmations_text(pending)
            text = f"{asked}\n\nThe run {found.open_run} waits for this. Send any message to decide it here."
            await self._send(found.id, acp.update_agent_message_text(text))

    # --- prompts

    async def prompt(self, session_id: str, prompt: Sequence[Any], **_: Any) -> schema.PromptResponse:
        with _as_protocol_errors():
            session = self._session(session_id)
            if session.is_busy:
                raise RequestError("the session is busy: wait for the answer, or cancel it")
            message = [_content(block) for block in prompt]
            session.is_busy, session.is_cancelled = True, False
            try:
                return await self._answer(session_id, session, message)
            finally:
                session.is_busy, session.run = False, None

    async def cancel(self, session_id: str, **_: Any) -> None:
        session = self._sessions.get(session_id)
        if session is not None and session.is_busy:
            session.is_cancelled = True
            if session.run is not None:
                with _as_protocol_errors():
                    await self._runtime.cancel(session.run)

    async def _answer(self, session_id: str, session: _Session, message: list[str | File]) -> schema.PromptResponse:
        """Finish the run that the conversation waits for, if there is one, then answer the message."""
        found = await load_conversation(self._runtime.store, session_id, _LOCAL)
        state = await self._runtime.store.load_run(found.open_run) if found.open_run is not None else None
        if state is not None and state.pending:
            session.run = state.run_id
            questions = [one for one in state.pending if _is_open_question(one)]
            if questions:
                text = "\n\n".join(part for part in message if isinstance(part, str))
                await self._decide(state.run_id, {questions[0].id: Respond(text=text)})
            ended = await self._show(session_id, state.run_id, state.seq, () if questions else state.pending)
            if questions or ended is None or session.is_cancelled:
                return _response(ended, session)
        options = RunOptions(agent=session.agent, conversation=session_id, reroute=session.reroutes)
        submitted = await self._runtime.submit(message, **options)
        session.run, session.reroutes = submitted.run_id, False
        if session.is_cancelled:  # meanwhile
            await self._runtime.cancel(submitted.run_id)
        return _response(await self._show(session_id, submitted.run_id), session)

    async def _show(
        self, session_id: str, run_id: str, after: int = 0, pending: Sequence[Confirmation] = ()
    ) -> events.StreamEnd | None:
        """Send the events of a run until it ends, and have the decisions made that it waits for.

        Returns:
            The last event; None if the run stays paused: the person closed the question, or writes the answer.
        """
        updates = _Updates(run_id)
        while True:
            if pending and not await self._decided(session_id, run_id, after, pending, updates):
                return None
            event: events.Event | None = None
            async with aclosing(self._runtime.follow(run_id, after)) as followed:
                async for event in followed:
                    after = max(after, event.seq)
                    for update in updates.of(event):
                        await self._send(session_id, update)
                    await self._show_mode(session_id, event)
            if not isinstance(event, events.RunPaused):
                await self._send_end(session_id, run_id, event)
                return event if isinstance(event, events.StreamEnd) else None
            pending = await self._runtime.pending(run_id)

    async def _show_mode(self, session_id: str, event: events.Event) -> None:
        """Show which agent answers, if it is another one than before and its user has not left that to the router."""
        session = self._session(session_id)
        if isinstance(event, events.Routed | events.HandedOff) and not event.path and session.agent is not None:
            before = self._modes(session).current_mode_id
            session.handed_to = None if event.agent == session.agent else event.agent
            if (mode := self._modes(session).current_mode_id) != before:
                update = schema.CurrentModeUpdate(session_update="current_mode_update", current_mode_id=mode)
                await self._send(session_id, update)

    async def _send_end(self, session_id: str, run_id: str, event: events.Event | None) -> None:
        """Send why a run has no answer, or only a part of one."""
        if not isinstance(event, events.StreamEnd):
            raise RequestError(f"agentsd stops; the run {run_id} continues when it starts again")
        result = await self._runtime.result(run_id)
        if result.status == "failed":
            raise acp.RequestError(_FAILED, reason_text(result), {"code": result.finish_reason, "run_id": run_id})
        if result.status != "cancelled" and (text := reason_text(result) or incomplete_text(result.incomplete)):
            await self._send(session_id, acp.update_agent_message_text(f"\n\n({visible(text)})"))

    # --- decisions

    async def _decided(
        self, session_id: str, run_id: str, after: int, pending: Sequence[Confirmation], updates: _Updates
    ) -> bool:
        """Ask the editor, unless others decide before; return whether the run continues."""
        asking = asyncio.ensure_future(self._ask(session_id, run_id, pending, updates))
        async with aclosing(self._runtime.follow(run_id, after, through_pauses=True)) as followed:
            continuing = asyncio.ensure_future(anext(followed, None))
            try:
                await asyncio.wait({asking, continuing}, return_when=asyncio.FIRST_COMPLETED)
                if asking.done() and (answer := asking.result()) is not None:
                    return answer
                await continuing  # decided in another process
                return True
            finally:
                for task in (asking, continuing):
                    task.cancel()
                await asyncio.wait({asking, continuing})

    async def _ask(
        self, session_id: str, run_id: str, pending: Sequence[Confirmation], updates: _Updates
    ) -> bool | None:
        """Ask for the decisions that the editor may make, and save them.

        Returns:
            Whether the run continues; None if only others may decide: the prompt waits for them.
        """
        decisions: dict[str, Decision] = {}
        for asked in pending:
            if _is_open_question(asked):
                await self._send(session_id, acp.update_agent_message_text(confirmation_text(asked)))
                return False
            if not self._may_decide(asked):
                what = "This may not be approved" if asked.form is None else "A form cannot be filled in"
                text = (
                    f"{confirmation_text(asked)}\n\n{what} in the editor. Decide it in a terminal, "
                    f"in the folder {self._root}: agentsd runs decide {run_id}"
                )
                await self._send(session_id, acp.update_agent_message_text(text))
                continue
            if (decision := await self._permission(session_id, run_id, asked, updates)) is None:
                return False
            decisions[asked.id] = decision
        if not decisions:
            return None
        await self._decide(run_id, decisions)
        return True

    def _may_decide(self, asked: Confirmation) -> bool:
        if asked.form is not None:
            return False
        return self._decides is not None and RISKS.index(asked.risk) <= RISKS.index(self._decides)

    async def _permission(
        self, session_id: str, run_id: str, asked: Confirmation, updates: _Updates
    ) -> Decision | None:
        """Return the decision of the person at the editor; None if they closed the question."""
        if asked.traits.is_question:
            options = [
                schema.PermissionOption(option_id=name, name=name, kind="reject_once" if place else "allow_once")
                for place, name in enumerate(asked.choices)
            ]
        else:
            options = [
                schema.PermissionOption(option_id="approve", name="Allow once", kind="allow_once"),
                *_remembering(asked, await self._runtime.preview_widths(run_id, asked.id) if asked.remember else {}),
                schema.PermissionOption(option_id="reject", name="Reject", kind="reject_once"),
            ]
        call = schema.ToolCallUpdate(
            tool_call_id=updates.call_of(asked),
            title=asked.tool or asked.kind,
            kind=_kind(asked.tool),
            status="pending",
            raw_input=asked.arguments,
            content=[acp.tool_content(acp.text_block(confirmation_text(asked)))],
        )
        assert self._client is not None  # the connection has called `on_connect`
        answer = await self._client.request_permission(session_id, call, options)
        if not isinstance(answer.outcome, schema.AllowedOutcome):
            return None
        chosen = answer.outcome.option_id
        if asked.traits.is_question:
            return Respond(text=chosen) if chosen in asked.choices else None
        if chosen.startswith(_REMEMBER) and asked.remember is not None:
            scopes = asked.remember.scopes
            scope = "conversation" if "conversation" in scopes else scopes[0]
            return Approve(remember=Remember.model_validate({"width": chosen.removeprefix(_REMEMBER), "for": scope}))
        return Approve() if chosen == "approve" else Reject(reason="rejected in the editor")

    async def _decide(self, run_id: str, decisions: Mapping[str, Decision]) -> None:
        try:
            await self._runtime.decide(run_id, decisions, by="editor", execute=True)
        except DecisionRefused as error:  # another was first, or it has expired: the run continues without this
            log.info("%s", error.message)

    async def _send(self, session_id: str, update: Any) -> None:
        assert self._client is not None  # the connection has called `on_connect`
        await self._client.session_update(session_id, update)


def _remembering(asked: Confirmation, usage: Mapping[Width, GrantUsage]) -> list[schema.PermissionOption]:
    """Return an option for each width in which the approval can be remembered for the session."""
    options = []
    for one in asked.remember.widths if asked.remember else ():
        matched = f" ({usage[one.width].text()})" if one.width in usage else ""
        name = f"Allow in this session: {visible(covers_text(asked.tool, one.width, one.when))}{matched}"
        options.append(schema.PermissionOption(option_id=f"{_REMEMBER}{one.width}", name=name, kind="allow_always"))
    return options


def _is_open_question(asked: Confirmation) -> bool:
    """Return whether any text is an answer, which the person writes as the next message."""
    return asked.traits.asked_by_tool and asked.form is None and not asked.url


def _response(ended: events.StreamEnd | None, session: _Session) -> schema.PromptResponse:
    if ended is None:
        return schema.PromptResponse(stop_reason="cancelled" if session.is_cancelled else "end_turn")
    reason: schema.StopReason = "end_turn"
    if ended.status == "cancelled":
        reason = "cancelled"
    elif ended.finish_reason == "refused":
        reason = "refusal"
    elif ended.truncated:
        reason = "max_tokens"
    elif ended.status == "stopped":
        reason = "max_turn_requests"
    usage = schema.Usage(
        total_tokens=ended.usage.total_tokens,
        input_tokens=ended.usage.prompt_tokens,
        output_tokens=ended.usage.completion_tokens,
    )
    return schema.PromptResponse(stop_reason=reason, usage=usage)


@dataclass(slots=True)
class _Updates:
    """Translates the events of a run to updates of a session."""

    run_id: str
    _calls: set[str] = field(default_factory=set)
    _sent: dict[tuple[str | None, bool], str] = field(default_factory=dict)
    """What was sent of the text (False) and of the reasoning (True) of each message."""
    _steps: dict[str, schema.PlanEntry] = field(default_factory=dict)

    def of(self, event: events.Event) -> Iterator[Any]:
        """Yield the updates for an event. Of sub-agents, only the calls of tools are shown."""
        match event:
            case events.ToolRequested():
                yield from self._call(event)
            case events.ToolFinished():
                yield from self._result(event)
            case events.RunEvent(path=(_, *_)):
                return
            case events.ContentReceived():
                yield from self._text(event.message_id, event.text, event.seq, is_thought=False)
            case events.Thought(reasoning_chars=None):
                yield from self._text(event.message_id, event.text, event.seq, is_thought=True)
            case events.Thought(text=text, reasoning_chars=int(end)):
                yield from self._text(event.message_id, text[:end], event.seq, is_thought=True)
                yield from self._text(event.message_id, text[end:], event.seq, is_thought=False)
            case events.Warned(message_id=str(message_id)) if self._sent.get((message_id, False)):
                yield acp.update_agent_message_text("\n\n(this answer was cut off; it begins again)\n\n")
            case events.Warned() | events.GrantUsed():
                yield acp.update_agent_thought_text(f"{visible(_note(event))}\n")
            case events.PlanProposed() | events.PlanStepChanged() | events.TodoChanged():
                yield from self._plan(event)

    def _plan(self, event: events.PlanProposed | events.PlanStepChanged | events.TodoChanged) -> Iterator[Any]:
        """Yield the plan or, in a run without one, the to-do list."""
        match event:
            case events.PlanProposed(steps=steps):
                self._steps = {step.id: _entry(step.description, step.status) for step in steps}
            case events.PlanStepChanged(id=changed, description=text, status=status):
                self._steps |= {changed: _entry(text, status)}
            case events.TodoChanged(items=items) if not self._steps:
                yield acp.update_plan([_todo(one) for one in items])
        if self._steps:
            yield acp.update_plan(self._steps.values())

    def call_of(self, asked: Confirmation) -> str:
        """Return the id of the call that a confirmation is about: the longest one that its id starts with."""
        whole = f"{self.run_id}/{asked.id}"
        return max((call for call in self._calls if whole.startswith(call)), key=len, default=whole)

    def _text(self, message_id: str | None, text: str, seq: int, *, is_thought: bool) -> Iterator[Any]:
        """Yield a piece, or what was not sent of a whole text."""
        key = (message_id, is_thought)
        sent = self._sent.get(key, "")
        if piece := missing_text(text, sent, is_whole=bool(seq)):
            self._sent[key] = sent + piece
            yield (acp.update_agent_thought_text if is_thought else acp.update_agent_message_text)(piece)

    def _call(self, event: events.ToolRequested) -> Iterator[Any]:
        key = "/".join((self.run_id, *event.path, event.id))
        status: schema.ToolCallStatus = "in_progress" if event.status == "running" else "pending"
        if key not in self._calls:
            self._calls.add(key)
            yield acp.start_tool_call(key, event.tool, kind=_kind(event.tool), status=status, raw_input=event.arguments)
        elif event.message:
            shown = [acp.tool_content(acp.text_block(visible(event.message)))]
            yield acp.update_tool_call(key, status=status, content=shown)
        else:
            yield acp.update_tool_call(key, status=status)

    def _result(self, event: events.ToolFinished) -> Iterator[Any]:
        key = "/".join((self.run_id, *event.path, event.id))
        if key not in self._calls:  # it was never about to be called
            self._calls.add(key)
            yield acp.start_tool_call(key, event.tool, kind=_kind(event.tool))
        yield acp.update_tool_call(
            key,
            status=_CALL_STATUS.get(event.status, "failed"),
            content=[acp.tool_content(acp.text_block(event.result))],
        )


def _kind(tool: str) -> schema.ToolKind:
    if tool.startswith("agent."):
        return "think"
    return _KINDS.get(tool) or _KINDS.get(tool.rpartition(".")[2], "other")


def _note(event: events.Warned | events.GrantUsed) -> str:
    if isinstance(event, events.Warned):
        return event.message
    return f"{event.tool} needs no approval: {event.covers} ({event.origin})"


def _entry(text: str, status: StepStatus) -> schema.PlanEntry:
    marks = {"failed": "failed: ", "skipped": "skipped: "}
    return acp.plan_entry(visible(marks.get(status, "") + text), status=_STEP_STATUS.get(status, "completed"))


def _todo(item: TodoItem) -> schema.PlanEntry:
    status: schema.PlanEntryStatus = "in_progress" if item.status == "doing" else "pending"
    return acp.plan_entry(visible(item.task), status="completed" if item.status == "done" else status)


def _earlier(found: Conversation) -> Iterator[Any]:
    """Yield the messages of a conversation as updates."""
    results = {message.tool_call_id: message.content for message in found.messages if message.role == "tool"}
    for message in found.messages:
        if message.role == "user":
            yield acp.update_user_message_text(message.description)
        elif message.role == "assistant":
            if message.content:
                yield acp.update_agent_message_text(message.content)
            for call in message.tool_calls:
                yield acp.start_tool_call(
                    call.id,
                    call.tool,
                    kind=_kind(call.tool),
                    status="completed",
                    content=[acp.tool_content(acp.text_block(results.get(call.id, "")))],
                    raw_input=call.arguments,
                )


def _content(block: Any) -> str | File:
    """Return a part of a prompt. Links are passed as text: nothing that they name is read."""
    match block:
        case schema.TextContentBlock(text=text):
            return text
        case schema.ImageContentBlock(data=data, mime_type=kind) | schema.AudioContentBlock(data=data, mime_type=kind):
            return file_of(data, kind, "prompt")
        case schema.ResourceContentBlock(name=name, uri=uri):
            return f"[{name}]({uri})"
        case schema.EmbeddedResourceContentBlock(resource=schema.TextResourceContents(text=text, uri=uri)):
            return f"{uri}:\n\n{text}"
        case schema.EmbeddedResourceContentBlock(resource=schema.BlobResourceContents(blob=data, mime_type=kind)):
            return file_of(data, kind, "prompt")
    raise RequestError(f"a part of the type {getattr(block, 'type', '?')!r} is not supported")


@contextmanager
def _as_protocol_errors() -> Iterator[None]:
    """Raise our errors as those of the protocol; others without their text, which may contain data."""
    try:
        yield
    except AgentsdError as error:
        code = _INVALID if isinstance(error, RequestError) else _FAILED
        raise acp.RequestError(code, error.message, {"code": error.code}) from None
    except (acp.RequestError, ConnectionError):
        raise
    except Exception as error:  # noqa: BLE001 - the SDK would send its text
        log.error("request of the editor failed: %s", safe_traceback(error))
        raise acp.RequestError(_FAILED, "internal error; see standard error of agentsd") from None
