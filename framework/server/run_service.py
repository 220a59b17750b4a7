"""Starts, follows, continues and cancels runs for the identity of a request."""

from __future__ import annotations

import json
from dataclasses import dataclass
from urllib.parse import quote

from fastapi import Request

from framework.engine.runtime.runtime import Runtime
from framework.server.errors import AccessDenied
from framework.server.event_stream import EventStreamResponse, OpenStreams
from framework.server.identity import Identity, agent_for, identity_of
from framework.server.key_limits import KeyLimits
from framework.server.owned import check_conversation_for, load_run_for
from framework.server.run_requests import RunBody
from framework.server.run_schemas import RunReference
from framework.server.run_stream import encode_run
from framework.types.errors import ConversationNotFound, RequestError
from framework.types.run_request import IdempotencyKey
from framework.types.state import Decision, RunResult, RunState

_FIELDS = {"history": "messages", "conversation": "conversation_id"}
"""Fields of request bodies, by the option of `Runtime.submit` that has another name."""


@dataclass(frozen=True, slots=True)
class OwnedRun:
    """A run with its owner, as the runtime needs both."""

    run_id: str
    conversation_id: str | None
    user: str | None
    tenant: str | None

    @property
    def headers(self) -> dict[str, str]:
        """Headers of responses about the run."""
        headers = {"x-agentsd-run-id": self.run_id}
        if self.conversation_id is not None:
            headers["x-agentsd-conversation-id"] = quote(self.conversation_id)
        return headers


@dataclass(frozen=True, slots=True)
class RunService:
    """The operations on runs that routes share."""

    runtime: Runtime
    limits: KeyLimits
    streams: OpenStreams

    async def submit(self, identity: Identity, body: RunBody, idempotency_key: str | None) -> OwnedRun:
        """Save a request as a run, which begins in the background.

        Raises:
            RequestError: the request is invalid, or exceeds a limit of the key or of the conversation.
            StoreError: the request could not be saved.
        """
        body.check()
        user = self._user(identity, body.user)
        agent = agent_for(identity, body.agent, self.runtime.catalog.current.agents)
        if body.conversation_id is not None:
            await check_conversation_for(self.runtime, identity, body.conversation_id)
        scope = json.dumps([identity.tenant, identity.name, user])
        async with self.limits.starting(identity) as started:
            try:
                submitted = await self.runtime.submit(
                    body.message,
                    queue=body.queue,
                    idempotency=IdempotencyKey(scope, idempotency_key, body.digest) if idempotency_key else None,
                    agent=agent,
                    conversation=body.conversation_id,
                    history=body.messages,
                    inputs=body.inputs,
                    lower_limits=body.lower_limits,
                    locale=body.locale,
                    user=user,
                    tenant=identity.tenant,
                )
            except RequestError as error:
                if error.param in _FIELDS:  # neither class has more than a message
                    kind = ConversationNotFound if isinstance(error, ConversationNotFound) else RequestError
                    raise kind(_renamed(error), param=_FIELDS[error.param]) from None
                raise
            started(submitted.run_id)
        return OwnedRun(submitted.run_id, submitted.conversation_id, user, identity.tenant)

    async def result(self, run: OwnedRun) -> RunResult:
        """Wait until a run ends or pauses, and return its result."""
        return await self.runtime.result(run.run_id, user=run.user, tenant=run.tenant)

    async def cancel(self, run: OwnedRun) -> None:
        """Cancel a run; nothing happens if it has ended."""
        await self.runtime.cancel(run.run_id, user=run.user, tenant=run.tenant)

    async def decide(self, identity: Identity, run: OwnedRun, decisions: dict[str, Decision]) -> None:
        """Save decisions, and continue the run in the background; raises the errors of `Runtime.decide`."""
        self.limits.check_rate(identity)
        await self.runtime.decide(run.run_id, decisions, user=run.user, tenant=run.tenant)

    async def load(self, identity: Identity, run_id: str) -> tuple[OwnedRun, RunState]:
        """Return a run that exists for an identity; raises RunNotFound."""
        state = await load_run_for(self.runtime, identity, run_id)
        return OwnedRun(state.run_id, state.conversation_id, state.user, state.tenant), state

    async def reference(self, run: OwnedRun) -> RunReference:
        """Return a run with its current status; raises RunNotFound."""
        state = await self.runtime.store.load_run(run.run_id)
        return RunReference(run_id=run.run_id, conversation_id=run.conversation_id, status=state.status)

    def stream(
        self, request: Request, run: OwnedRun, after: int = 0, *, wait: bool = False, cancel_on_leave: bool = False
    ) -> EventStreamResponse:
        """Return a response with the events of a run.

        Args:
            request: the request.
            run: the run.
            after: number of the last event that the client has.
            wait: continue after a pause, until the run ends.
            cancel_on_leave: cancel the run if the client leaves before the end.

        Raises:
            RequestError: too many streams are open.
        """
        identity = identity_of(request)
        self.limits.check_streams(identity)
        events = self.runtime.follow(run.run_id, after, user=run.user, tenant=run.tenant, through_pauses=wait)
        return EventStreamResponse(
            request,
            encode_run(events),
            headers=run.headers,
            on_leave=(lambda: self.cancel(run)) if cancel_on_leave else None,
            streams=self.streams,
            during=self.limits.streaming(identity),
        )

    @staticmethod
    def _user(identity: Identity, requested: str | None) -> str | None:
        if identity.user is not None and requested not in (None, identity.user):
            raise AccessDenied(
                f"the key {identity.name!r} belongs to another user: leave user out of the request", param="user"
            )
        return identity.user_of(requested)


def _renamed(error: RequestError) -> str:
    """Return the message of an error with the name of the field that the client sent."""
    option = error.param or ""
    return error.message.replace(f"{option}:", f"{_FIELDS[option]}:", 1)
