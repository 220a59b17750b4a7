"""Starts, follows, continues and cancels runs for an identity: the way to a run of every route and protocol."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast
from urllib.parse import quote

from framework.engine.runtime.request import RunOptions, UserMessage
from framework.engine.runtime.runtime import Runtime
from framework.server.errors import AccessDenied
from framework.server.identity import Identity, agent_for
from framework.server.key_limits import KeyLimits
from framework.server.open_streams import OpenStreams
from framework.server.owned import check_conversation_for, load_run_for
from framework.types.errors import RequestError
from framework.types.events import Event
from framework.types.report import Status
from framework.types.run_request import FIRST_COME, IdempotencyKey, QueuePlace
from framework.types.state import Decision, RunResult, RunState


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
    """The operations on runs that routes and protocols share."""

    runtime: Runtime
    limits: KeyLimits
    streams: OpenStreams

    async def submit(
        self,
        identity: Identity,
        message: UserMessage | None,
        options: RunOptions,
        *,
        place: QueuePlace = FIRST_COME,
        repetition: tuple[str, str] | None = None,
        fields: Mapping[str, str] = MappingProxyType({}),
    ) -> OwnedRun:
        """Save a request as a run, which begins in the background.

        Args:
            identity: the client.
            message: the user's message. Default: the last message of the history.
            options: options of `Runtime.submit`, as the client asks for them.
            place: where the request waits. A priority above 0 and a queue need the role `admin`.
            repetition: the client's idempotency key, and the digest of its request.
            fields: the client's names of options, for errors.

        Raises:
            RequestError: the request is invalid, or exceeds a limit of the key, of the conversation or of the queue.
            ConfigError: no agent is valid.
            StoreError: the request could not be saved.
        """
        _check_place(identity, place)
        user = _user_of(identity, options.get("user"))
        agent = agent_for(identity, options.get("agent"), self.runtime.catalog.current.names)
        if (conversation := options.get("conversation")) is not None:
            await check_conversation_for(self.runtime, identity, conversation, user)
        own: RunOptions = {"agent": agent, "user": user, "tenant": identity.tenant}
        idempotency = (
            IdempotencyKey(json.dumps([identity.tenant, identity.name, user]), *repetition) if repetition else None
        )
        async with self.limits.starting(identity) as started:
            try:
                submitted = await self.runtime.submit(
                    message,
                    queue=place.wait,
                    priority=place.priority,
                    queue_name=place.queue_name,
                    idempotency=idempotency,
                    **cast(RunOptions, {**options, **own}),
                )
            except RequestError as error:
                raise _with_client_field(error, fields) from None
            started(submitted.run_id)
        return OwnedRun(submitted.run_id, submitted.conversation_id, user, identity.tenant)

    async def load(self, identity: Identity, run_id: str) -> tuple[OwnedRun, RunState]:
        """Return a run that exists for an identity; raises RunNotFound."""
        state = await load_run_for(self.runtime, identity, run_id)
        return OwnedRun(state.run_id, state.conversation_id, state.user, state.tenant), state

    def follow(self, run: OwnedRun, after: int = 0, *, through_pauses: bool = False) -> AsyncGenerator[Event, None]:
        """Yield the events of a run after the one with this number; see `Runtime.follow`."""
        return self.runtime.follow(run.run_id, after, user=run.user, tenant=run.tenant, through_pauses=through_pauses)

    async def result(self, run: OwnedRun) -> RunResult:
        """Wait until a run ends or pauses, and return its result."""
        return await self.runtime.result(run.run_id, user=run.user, tenant=run.tenant)

    async def decide(self, identity: Identity, run: OwnedRun, decisions: Mapping[str, Decision]) -> None:
        """Save decisions, and continue the run in the background, which counts as one of the client's.

        Raises the errors of `Runtime.decide`, and those of `KeyLimits.starting`: then nothing is saved.
        """
        by = identity.user or identity.name
        async with self.limits.starting(identity) as started:
            await self.runtime.decide(run.run_id, decisions, user=run.user, tenant=run.tenant, by=by, execute=True)
            started(run.run_id)

    async def cancel(self, run: OwnedRun) -> Status:
        """Cancel a run, and return what happened; see `Runtime.cancel`."""
        return await self.runtime.cancel(run.run_id, user=run.user, tenant=run.tenant)


def _check_place(identity: Identity, place: QueuePlace) -> None:
    """Raise AccessDenied if a client asks for a place before others without the right to it."""
    if "admin" in identity.roles:
        return
    if place.priority > 0:
        raise AccessDenied(
            f"the key {identity.name!r} lacks the role 'admin', which a priority above 0 needs: send 0 or less",
            param="priority",
        )
    if place.queue_name is not None:  # its workers may be idle, or reserved for others
        raise AccessDenied(
            f"the key {identity.name!r} lacks the role 'admin', which the choice of a queue needs: "
            "leave queue_name out of the request",
            param="queue_name",
        )


def _user_of(identity: Identity, requested: str | None) -> str | None:
    """Return the user of a new run; raises AccessDenied if the request names another user than the key."""
    if identity.user is not None and requested not in (None, identity.user):
        raise AccessDenied(
            f"the key {identity.name!r} belongs to another user: leave user out of the request", param="user"
        )
    return identity.user_of(requested)


def _with_client_field(error: RequestError, fields: Mapping[str, str]) -> RequestError:
    """Return an error about an option with the client's name of the option."""
    option = error.param
    if option is None or option not in fields or type(error) is not RequestError:  # others have more arguments
        return error
    return RequestError(error.message.replace(f"{option}:", f"{fields[option]}:", 1), param=fields[option])
