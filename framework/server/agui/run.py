"""One AG-UI run: starts a run of an agent or continues it after an interrupt, and streams its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any

from ag_ui.core import BaseEvent, Interrupt, ResumeEntry, RunAgentInput, RunErrorEvent
from starlette.requests import Request

from framework.engine.runtime.request import RunOptions
from framework.server.agui.request import (
    ForwardedProps,
    InvalidResume,
    decision_of,
    decisions_of,
    instructions_of,
    interrupt_of,
    message_of,
    read_agui_request,
)
from framework.server.agui.translation import AguiTranslator
from framework.server.errors import client_message
from framework.server.event_stream import EventStreamResponse
from framework.server.identity import Identity, agent_for, agent_named, identity_of, require
from framework.server.protocol_texts import pages_of, run_url
from framework.server.request_handling import accepted_locale
from framework.server.run_service import OwnedRun, RunService
from framework.types.errors import AgentsdError, ConversationBusy, DecisionRefused, RequestError, RunNotFound
from framework.types.events import ConfirmationRequested, Event, StreamEnd, read_event
from framework.types.state import Confirmation, RunState

_FIELDS = {"message": "messages", "conversation": "threadId", "inputs": "forwardedProps.inputs"}
"""Fields of an AG-UI request by the options that they become."""


async def respond(request: Request, service: RunService, agent: str) -> EventStreamResponse:
    """Return the stream that answers an AG-UI request.

    Args:
        request: the request, which an access check has admitted.
        service: the operations on runs.
        agent: name of the agent, or `auto`.

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
        expired = _expired(state.pending, service.runtime.store.now())
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


def _expired(pending: Iterable[Confirmation], now: float) -> frozenset[str]:
    return frozenset(one.id for one in pending if one.has_expired(now))


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
