"""Starts, follows, continues and cancels runs for an identity: the way to a run of every route and protocol."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import cast
from urllib.parse import quote

from framework.engine.runtime.request import RunOptions, UserMessage
from framework.engine.runtime.runtime import Runtime
from framework.engine.runtime.start import several_owners
from framework.engine.runtime.suggestions import MAX_DECIDED_RUNS
from framework.server.errors import AccessDenied
from framework.server.event_stream import OpenStreams
from framework.server.identity import LOCAL, Identity, KeyLimits, agent_for, scope_of
from framework.server.schemas import MAX_URL_ID_CHARS
from framework.store.types import Conversation, ConversationInfo, ConversationQuery, DecidedCalls, RunInfo, RunQuery
from framework.types.errors import ConversationNotFound, RequestError, RunNotFound
from framework.types.events import Event
from framework.types.report import Status
from framework.types.state import FIRST_COME, Decision, IdempotencyKey, QueuePlace, RunResult, RunState

_PAGE = 100
"""Number of entries of a page without a limit."""
_OWNERS = 20
"""Number of conversations with one id among which the only one that exists for an identity is looked up."""


async def load_run_for(runtime: Runtime, identity: Identity, run_id: str) -> RunState:
    """Return the state of a run that exists for an identity; raises RunNotFound."""
    try:
        state = await runtime.store.load_run(run_id) if _is_id(run_id) else None
    except RunNotFound:
        state = None
    if state is None or not identity.can_access(tenant=state.tenant, user=state.user, agent=state.agent):
        raise RunNotFound(f"there is no run {run_id[:MAX_URL_ID_CHARS]!r}", param="run_id")
    return state


async def load_run_info_for(runtime: Runtime, identity: Identity, run_id: str) -> RunInfo:
    """Return the entry in lists of a run that exists for an identity; raises RunNotFound."""
    found, _ = await list_runs_for(runtime, identity, RunQuery(run_id=run_id, limit=1))
    if not found:
        raise RunNotFound(f"there is no run {run_id[:MAX_URL_ID_CHARS]!r}", param="run_id")
    return found[0]


async def load_conversation_for(
    runtime: Runtime, identity: Identity, conversation_id: str, tenant: str | None = None, user: str | None = None
) -> Conversation:
    """Return a conversation that exists for an identity.

    If the identity can access conversations with this id of several owners, the one that has exactly the named tenant
    and user is returned, or else the only one.

    Raises:
        ConversationNotFound: no such conversation exists for the identity.
        RequestError: several do, and the request does not name its tenant or user.
    """
    of_others = not identity.single_user and tenant not in (None, identity.tenant)
    of_others = of_others or (identity.user is not None and user not in (None, identity.user))
    if of_others or not _is_id(conversation_id):
        raise _not_found(conversation_id)
    owner = tenant if identity.single_user else identity.tenant, identity.user_of(user)
    exact = await runtime.store.conversation(conversation_id, *owner)
    if exact.is_stored and await _can_access(runtime, identity, exact):
        return exact
    query = ConversationQuery(id=conversation_id, tenant=owner[0], user=owner[1], limit=_OWNERS)
    query = replace(query, without_tenant=owner[0] is None and not identity.single_user)
    infos = await runtime.store.conversations(query)
    owners = [(info.tenant, info.user) for info in infos if await _can_access(runtime, identity, info)]
    if len(owners) > 1:
        raise several_owners(conversation_id, owners)
    found = await runtime.store.conversation(conversation_id, *owners[0]) if owners else exact
    if not owners or not found.is_stored:
        raise _not_found(conversation_id)
    return found


async def check_conversation_for(runtime: Runtime, identity: Identity, conversation_id: str, user: str | None) -> None:
    """Raise ConversationNotFound if a user's message would join a conversation with an agent that the identity lacks.

    An unknown id is accepted: it starts a new conversation. So is one of another user or tenant: the message starts
    a conversation of its own user.
    """
    if identity.agents is None or not _is_id(conversation_id):  # the runtime rejects what is no id
        return
    found = await runtime.store.conversation(conversation_id, identity.tenant, user)
    if found.is_stored and not await _can_access(runtime, identity, found):
        raise _not_found(conversation_id)


async def list_runs_for(runtime: Runtime, identity: Identity, query: RunQuery) -> tuple[Sequence[RunInfo], str | None]:
    """Return the runs that exist for an identity, newest first, and the cursor of the next page, if there is one.

    The owner in the query is replaced by that of the identity.

    Raises:
        RequestError: `before` is no run that exists for the identity.
    """
    limit = query.limit or _PAGE
    found = await runtime.store.runs(
        replace(query, newest_first=True, limit=limit + 1, **scope_of(identity, query.user))
    )
    return found[:limit], found[limit - 1].run_id if len(found) > limit else None


async def count_runs_for(runtime: Runtime, identity: Identity, query: RunQuery) -> int:
    """Return the number of runs that exist for an identity and match a query."""
    return await runtime.store.count_runs(replace(query, **scope_of(identity, query.user)))


async def decided_calls_for(runtime: Runtime, identity: Identity, seconds: float) -> tuple[DecidedCalls, DecidedCalls]:
    """Return the decided calls of recent runs that exist for an identity, and those of all runs."""
    query = RunQuery(since=runtime.store.now() - seconds, limit=MAX_DECIDED_RUNS)
    everyone = await runtime.store.decided_calls(query)
    scope = scope_of(identity)
    own = await runtime.store.decided_calls(replace(query, **scope)) if any(scope.values()) else everyone
    return own, everyone


async def list_conversations_for(
    runtime: Runtime, identity: Identity, query: ConversationQuery
) -> tuple[Sequence[ConversationInfo], str | None]:
    """Return the conversations that exist for an identity, latest turn first, and the cursor of the next page.

    A conversation in which no agent has answered yet is missing for an identity that is limited to some agents.
    """
    limit = query.limit or _PAGE
    found = await runtime.store.conversations(replace(query, limit=limit + 1, **scope_of(identity, query.user)))
    return found[:limit], found[limit - 1].cursor if len(found) > limit else None


async def _can_access(runtime: Runtime, identity: Identity, found: Conversation | ConversationInfo) -> bool:
    """Return whether a conversation exists for an identity. It belongs to the agent that answered last, or will."""
    if not identity.can_access(tenant=found.tenant, user=found.user, agent=found.agent):
        return False
    if identity.agents is None or found.agent is not None:
        return True
    runs = replace(RunQuery.of_conversation(found), agents=identity.agents, limit=1)
    return bool(await runtime.store.runs(runs))


def _not_found(conversation_id: str) -> ConversationNotFound:
    shown = conversation_id[:MAX_URL_ID_CHARS]
    return ConversationNotFound(f"there is no conversation {shown!r}", param="conversation_id")


def _is_id(text: object) -> bool:
    """Return whether a text can be an id. Others, such as those with control characters, are not looked up."""
    return isinstance(text, str) and 0 < len(text) <= MAX_URL_ID_CHARS and text.isprintable()


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
        """Save a request as a run, which starts in the background.

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
        key = "" if identity is LOCAL else identity.name
        async with self.limits.starting(identity) as started:
            await self.runtime.decide(
                run.run_id, decisions, user=run.user, tenant=run.tenant, by=by, key=key, execute=True
            )
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
