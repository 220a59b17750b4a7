"""`/agui`: runs an agent for a user interface that speaks AG-UI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any

from ag_ui.core import (
    AudioPart,
    BaseEvent,
    ContentPart,
    DataSource,
    DeveloperMessage,
    DocumentPart,
    ImagePart,
    Interrupt,
    ResumeEntry,
    RunAgentInput,
    RunErrorEvent,
    SystemMessage,
    TextPart,
    UserMessage,
)
from pydantic import ConfigDict, TypeAdapter, ValidationError
from starlette.requests import Request

from framework.engine.runtime.request import RunOptions
from framework.server.agui_events import AguiTranslator, agui_id, call_id_of, subagent_id
from framework.server.errors import client_message, validation_error
from framework.server.event_stream import EventStreamResponse
from framework.server.identity import Identity, agent_for, agent_named, identity_of, require
from framework.server.protocol_texts import confirmation_text, file_of, pages_of, run_url
from framework.server.request_handling import accepted_locale
from framework.server.run_service import OwnedRun, RunService
from framework.types.errors import AgentsdError, ConversationBusy, DecisionRefused, RequestError, RunNotFound
from framework.types.events import ConfirmationRequested, Event, StreamEnd, read_event
from framework.types.file import File
from framework.types.frozen import Frozen
from framework.types.plan import FixedDraft, PlanDraft
from framework.types.state import Approve, Confirmation, Decision, Edit, Reject, Respond, RunState, traits_of

_ABANDONED = "the user closed the question without an answer"
_DECISION: TypeAdapter[Decision] = TypeAdapter(Decision)
_REASONS: Mapping[str, str] = {"approval": "confirmation", "an answer": "input_required", "a choice": "input_required"}
"""AG-UI's reasons by what a confirmation awaits. An approval of a tool call has a reason of its own."""
_PAYLOADS = {
    "approval": 'send {"approved": true}, optionally with "editedArgs", or {"approved": false, "reason": TEXT}',
    "answer": 'send {"answer": TEXT}',
    "form": 'send {"values": {NAME: VALUE, …}}, or {"approved": false, "reason": TEXT}',
}


class InvalidResume(RequestError):
    """The `resume` of an AG-UI request does not answer what the paused run waits for. The message says how to."""

    code = "invalid_resume"


def interrupt_of(
    run_id: str, asked: Confirmation, calls: Iterable[str], parameters: Mapping[str, Any] | None = None, url: str = ""
) -> Interrupt:
    """Return a confirmation as an interrupt.

    From the JSON Schema of the tool's arguments, if it is known, clients build a form for edits. At `url`, people
    decide if their client shows no form.
    """
    is_approval = not asked.traits.is_question
    return Interrupt(
        id=agui_id(run_id, asked.id),
        reason="tool_call" if asked.kind == "tool" else _REASONS[asked.traits.awaits],
        message=confirmation_text(asked),
        tool_call_id=call_id_of(run_id, asked, calls),
        response_schema=_approval_schema(asked, parameters) if is_approval else _answer_schema(asked),
        expires_at=asked.expires_at.isoformat() if asked.expires_at else None,
        subagent_run_id=subagent_id(run_id, tuple(asked.id.split("/")[:-1])),
        metadata={"agentsd": {**asked.model_dump(mode="json", exclude_none=True), **({"url": url} if url else {})}},
    )


def _approval_schema(asked: Confirmation, parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    plan = FixedDraft if asked.plan and asked.plan.source else PlanDraft
    edited = plan.model_json_schema() if asked.plan else dict(parameters or {"type": "object"})
    description = "The complete arguments to use instead." if not asked.plan else "The complete plan to use instead."
    return {
        "type": "object",
        "properties": {
            "approved": {"type": "boolean"},
            "editedArgs": {**edited, "description": description},
            "reason": {"type": "string", "description": "Why it is rejected; the model reads it."},
        },
        "required": ["approved"],
    }


def _answer_schema(asked: Confirmation) -> dict[str, Any]:
    if asked.form is not None:
        return {"type": "object", "properties": {"values": asked.form}, "required": ["values"]}
    answer: dict[str, Any] = {"type": "string", **({"enum": list(asked.choices)} if asked.choices else {})}
    return {"type": "object", "properties": {"answer": answer}, "required": ["answer"]}


def decisions_of(
    resume: Sequence[ResumeEntry], pending: Sequence[Confirmation], expired: frozenset[str] = frozenset()
) -> dict[str, Decision]:
    """Return the client's answers as decisions by confirmation id.

    A client may only abandon those that have expired; the run rejects them itself.

    Raises:
        InvalidResume: an answer is missing, doubled, or does not fit its confirmation.
    """
    by_id = {asked.id: asked for asked in pending}
    answers = {entry.interrupt_id.partition("/")[2]: entry for entry in resume}
    if len(answers) < len(resume):
        raise InvalidResume("resume: an interrupt is answered twice; answer each once")
    if unknown := [key for key in answers if key not in by_id]:
        raise InvalidResume(f"resume: the run does not wait for {unknown[0]!r}; it waits for: {', '.join(by_id)}")
    if missing := [key for key in by_id if key not in answers]:
        raise InvalidResume(f"resume: no answer for {missing[0]!r}; answer all interrupts of the run at once")
    abandoned = {key for key, entry in answers.items() if entry.status == "cancelled" and key in expired}
    return {key: decision_of(entry, by_id[key]) for key, entry in answers.items() if key not in abandoned}


def decision_of(entry: ResumeEntry, asked: Confirmation | ConfirmationRequested) -> Decision:
    """Return the decision that an answer makes; raises InvalidResume if its payload does not fit."""
    if entry.status == "cancelled":
        return Reject(reason=_ABANDONED)
    payload = entry.payload
    if isinstance(payload, dict) and "type" in payload:  # a decision as the routes of runs accept it
        try:
            return _DECISION.validate_python(payload)
        except ValidationError as error:
            what = error.errors(include_url=False, include_input=False)[0]
            raise InvalidResume(f"resume: payload of {entry.interrupt_id}: {what['msg']}") from None
    is_question = traits_of(asked.kind, asked.url).is_question
    decision = _answer(payload, is_form=asked.form is not None) if is_question else _approval(payload)
    if decision is None:
        expected = _PAYLOADS["form" if asked.form is not None else "answer" if is_question else "approval"]
        raise InvalidResume(f"resume: the payload of {entry.interrupt_id} is not an answer to it; {expected}")
    return decision


def _answer(payload: object, *, is_form: bool) -> Decision | None:
    match payload:
        case {"values": dict(values)} if is_form:
            return Respond(values=values)
        case str(text) | {"answer": str(text)} if not is_form:
            return Respond(text=text)
        case {"approved": False, **rest}:
            return Reject(reason=str(rest.get("reason") or ""))
    return None


def _approval(payload: object) -> Decision | None:
    match payload:
        case True | {"approved": True, "editedArgs": None}:
            return Approve()
        case {"approved": True, "editedArgs": dict(arguments)}:
            return Edit(arguments=arguments)
        case {"approved": True, **rest} if "editedArgs" not in rest:
            return Approve()
        case False:
            return Reject()
        case {"approved": False, **rest}:
            return Reject(reason=str(rest.get("reason") or ""))
    return None


class ForwardedProps(Frozen):
    """The keys of `forwardedProps` that agentsd reads; others are ignored."""

    model_config = ConfigDict(extra="ignore")

    inputs: dict[str, Any] | None = None
    """Values of the variables that the agent declares."""
    locale: str | None = None
    """Language of the prompt templates."""
    user: str | None = None
    """User of the thread, if the key does not fix one."""
    on_disconnect: str | None = None
    """`cancel`: the run is cancelled when the client leaves; otherwise it continues."""


def read_agui_request(data: object) -> tuple[RunAgentInput, ForwardedProps]:
    """Return the request of a client; raises RequestError if it is invalid."""
    try:
        request = RunAgentInput.model_validate(data)
        props = request.forwarded_props if isinstance(request.forwarded_props, dict) else {}
        forwarded = ForwardedProps.model_validate(props)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        raise validation_error([{**one, "loc": ("body", *one["loc"])} for one in found]) from None
    if request.tools:
        raise RequestError(
            "tools: tools that the client executes are not supported; give the agent tools in its file instead",
            param="tools",
        )
    if forwarded.on_disconnect not in (None, "cancel", "continue"):
        raise RequestError("forwardedProps.on_disconnect: expected 'cancel' or 'continue'", param="forwardedProps")
    return request, forwarded


def message_of(request: RunAgentInput) -> str | list[str | File]:
    """Return the message of a new run; raises RequestError if the last message is not the user's."""
    last = request.messages[-1] if request.messages else None
    if not isinstance(last, UserMessage):
        found = f"it is of the role {last.role!r}" if last else "there is none"
        raise RequestError(f"messages: the last message must be the user's, but {found}", param="messages")
    return last.content if isinstance(last.content, str) else [_content(part) for part in last.content]


def instructions_of(request: RunAgentInput) -> str:
    """Return what the client adds to the agent's instructions: system and developer messages, and the context."""
    own = [message.content for message in request.messages if isinstance(message, SystemMessage | DeveloperMessage)]
    return "\n\n".join([*own, *(f"{context.description}: {context.value}" for context in request.context or ())])


def _content(part: ContentPart) -> str | File:
    match part:
        case TextPart(text=text):
            return text
        case ImagePart(source=DataSource(value=data, mime_type=kind)):
            return file_of(data, kind, "messages")
        case AudioPart(source=DataSource(value=data, mime_type=kind)):
            return file_of(data, kind, "messages")
        case DocumentPart(source=DataSource(value=data, mime_type=kind)):
            return file_of(data, kind, "messages")
    raise RequestError(
        f"messages: a part of the type {part.type!r} with this source is not supported: send text, or an image, audio "
        "or a document with its bytes in base64 (source.type: data)",
        param="messages",
    )


_FIELDS = {"message": "messages", "conversation": "threadId", "inputs": "forwardedProps.inputs"}
"""Fields of an AG-UI request by the options that they become."""


async def respond(request: Request, service: RunService, agent: str) -> EventStreamResponse:
    """Return the stream that answers an AG-UI request.

    Raises:
        RequestError: the request is invalid, or exceeds a limit of its key. What is wrong with an answer to an
            interrupt is a RUN_ERROR event instead, as the protocol requires.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RequestError("invalid request: the body must be a JSON object (application/json)")
    identity, data = identity_of(request), await request.json()
    asked, forwarded = await asyncio.to_thread(read_agui_request, data)  # may contain megabytes
    known = service.runtime.catalog.current.names
    chosen = agent_for(identity, agent_named(agent, known), known)
    earlier: Sequence[Event] = ()
    with service.limits.admit_stream(identity) as admitted:
        try:
            if asked.resume:
                require(identity, "decide")
                run, earlier = await _continue(service, identity, asked, chosen)
            else:
                run = await _start(service, request, asked, forwarded, chosen)
        except (InvalidResume, DecisionRefused, ConversationBusy) as error:
            return EventStreamResponse(request, _error(error), streams=service.streams, during=admitted.pop_all())
        return EventStreamResponse(
            request,
            _stream(
                service,
                run,
                pages_of(request),
                AguiTranslator(asked, run.run_id, earlier),
                earlier[-1].seq if earlier else 0,
            ),
            headers=run.headers,
            encode_error=_encode_error,
            on_leave=(lambda: service.cancel(run)) if forwarded.on_disconnect == "cancel" else None,
            streams=service.streams,
            farewell=_suspended(run),
            during=admitted.pop_all(),
        )


async def _start(
    service: RunService, request: Request, asked: RunAgentInput, forwarded: ForwardedProps, agent: str | None
) -> OwnedRun:
    """Start a run with the last message, as the next turn of the thread's conversation."""
    identity = identity_of(request)
    options: RunOptions = {
        "agent": agent,
        "conversation": asked.thread_id,
        "instructions": instructions_of(asked) or None,
        "inputs": forwarded.inputs,
        "locale": forwarded.locale or accepted_locale(request.headers),
        "user": identity.user_of(forwarded.user),
    }
    return await service.submit(identity, message_of(asked), options, fields=_FIELDS)


async def _continue(
    service: RunService, identity: Identity, asked: RunAgentInput, agent: str | None
) -> tuple[OwnedRun, Sequence[Event]]:
    """Answer the interrupts of the thread's paused run; return it, and its events up to the interrupt.

    An answer that was given before, as by a client that repeats a request, only leads to the events that follow it.

    Raises:
        InvalidResume: the answers do not fit.
        DecisionRefused: an interrupt was answered differently, or has expired.
    """
    resume = asked.resume or []
    run, state = await _interrupted(service, identity, asked)
    if agent not in (None, state.agent):
        raise InvalidResume(f"resume: the run is one of the agent {state.agent!r}; send it to /agui/{state.agent}")
    stored = [read_event(row) for row in await service.runtime.store.events(run.run_id)]
    keys = {entry.interrupt_id.partition("/")[2] for entry in resume}
    if state.status == "paused" and keys.intersection(one.id for one in state.pending):
        now = service.runtime.store.now()
        expired = frozenset(one.id for one in state.pending if one.has_expired(now))
        await service.decide(identity, run, decisions_of(resume, state.pending, expired))
        return run, stored
    return run, _before_answer(resume, state, stored)


async def _interrupted(service: RunService, identity: Identity, asked: RunAgentInput) -> tuple[OwnedRun, RunState]:
    """Return the run that the answers of a request are for."""
    ids = {entry.interrupt_id.partition("/")[0] for entry in asked.resume or []}
    if len(ids) > 1:
        raise InvalidResume("resume: the interrupts belong to different runs; answer those of one run")
    try:
        run, state = await service.load(identity, ids.pop())
    except RunNotFound:
        raise InvalidResume("resume: there is no such interrupt") from None
    if state.conversation_id != asked.thread_id:
        raise InvalidResume("resume: the interrupts belong to another thread")
    return run, state


def _before_answer(resume: Sequence[ResumeEntry], state: RunState, stored: Sequence[Event]) -> Sequence[Event]:
    """Return the events up to the interrupt that these answers have ended; raises InvalidResume for others."""
    asked = {event.id: (place, event) for place, event in enumerate(stored) if isinstance(event, ConfirmationRequested)}
    answers = {entry.interrupt_id.partition("/")[2]: entry for entry in resume}
    for key, entry in answers.items():
        if key not in asked:
            raise InvalidResume("resume: there is no such interrupt")
        if state.decisions.get(key) != decision_of(entry, asked[key][1]):
            raise InvalidResume(f"resume: {key!r} was answered differently, or has expired")
    last = max(asked[key][0] for key in answers)
    end = next((place for place in range(last, len(stored)) if isinstance(stored[place], StreamEnd)), last)
    return stored[: end + 1]


async def _stream(
    service: RunService, run: OwnedRun, pages: str, translator: AguiTranslator, after: int
) -> AsyncGenerator[bytes]:
    """Encode the events of a run; those of one event together."""

    def as_interrupt(asked: Confirmation, calls: frozenset[str]) -> Interrupt:
        agent = service.runtime.catalog.current.agents.get(asked.agent)
        tool = agent.toolset.tools.get(asked.tool) if agent else None
        url = run_url(pages, run.run_id, [asked])
        return interrupt_of(run.run_id, asked, calls, tool.definition.parameters if tool else None, url)

    yield _encode(translator.start())
    is_finished = False
    followed = service.follow(run, after)
    try:
        async for event in followed:
            if chunk := _encode(translator.translate(event)):
                yield chunk
            is_finished = isinstance(event, StreamEnd)
    finally:
        await followed.aclose()
    if is_finished:
        yield _encode(translator.finish(await service.result(run), as_interrupt))
    else:
        yield _suspended(run)


def _suspended(run: OwnedRun) -> bytes:
    """Encode the last event of a stream that ends before its run."""
    message = f"the stream has ended, but the run continues: its events are at GET /agent/runs/{run.run_id}/events"
    return _encode([RunErrorEvent(message=message, code="run_suspended")])


async def _error(error: AgentsdError) -> AsyncGenerator[bytes]:
    yield _encode([RunErrorEvent(message=client_message(error), code=error.code)])


def _encode_error(body: Mapping[str, Any]) -> bytes:
    """Encode the body of an error response as the last event of a stream."""
    return _encode([RunErrorEvent(message=body["error"]["message"], code=body["error"]["code"])])


def _encode(translated: Iterable[BaseEvent]) -> bytes:
    return "".join(f"data: {event.model_dump_json(by_alias=True)}\n\n" for event in translated).encode()
