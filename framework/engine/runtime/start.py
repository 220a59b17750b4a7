"""Turns a message into a run: finds its conversation and agent, builds its first state, and saves it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import uuid4

from pydantic import BaseModel, ValidationError

from framework.config.agents.compile import Agent
from framework.config.generations.catalog import Catalog
from framework.config.generations.generation import Blueprints, Generation
from framework.engine.context.policy import BudgetLedger
from framework.engine.context.run_context import ModelClients
from framework.engine.routing import Route, choose_route, known_route, route_by_model
from framework.engine.run_report import RunTrace, finish_run
from framework.engine.runtime.launcher import Launcher, PreparedRun
from framework.engine.runtime.request import (
    Caller,
    GivenHistory,
    RunOptions,
    UserInput,
    check_request,
    check_unrouted,
    initial_state,
    may_contain_files,
    message_list,
    read_history,
    unrouted_limits,
)
from framework.llm.client import require_accepted
from framework.store.types import (
    ANSWERED_STATUSES,
    UNLIMITED,
    Conversation,
    ConversationQuery,
    CopiedTurn,
    RunInfo,
    RunLimits,
    RunQuery,
)
from framework.telemetry.metrics import RunMetrics
from framework.tools.builtin.notes import MAX_TODO_ITEMS, TODO
from framework.tools.tool import Session
from framework.types.errors import (
    AgentNotFound,
    ApprovalRequired,
    ConfigError,
    ConversationBusy,
    ConversationNotFound,
    RequestError,
    ToolError,
)
from framework.types.events import Event, read_event
from framework.types.messages import Message, ToolCall, ToolDefinition, ToolResult, transcript_errors
from framework.types.plan import TodoItem, merge_items, read_items
from framework.types.state import RunResult, RunState

if TYPE_CHECKING:
    from framework.store.store import Store


async def load_conversation(store: Store, conversation_id: str, caller: Caller) -> Conversation:
    """Return the caller's conversation with this id, or a new one.

    A conversation is its caller's alone: those of other users and tenants with this id are others. If the host serves a
    single user, a caller without one of its own gets the only one with this id, of the user and tenant if it names one.

    Raises:
        RequestError: several users or tenants have one with this id, and the caller none.
    """
    own = await store.conversation(conversation_id, caller.tenant, caller.user)
    if not caller.single_user or own.is_stored:
        return own
    query = ConversationQuery(id=conversation_id, tenant=caller.tenant, user=caller.user)
    owners = [(info.tenant, info.user) for info in await store.conversations(query)]
    if len(owners) > 1:
        raise several_owners(conversation_id, owners)
    return await store.conversation(conversation_id, *owners[0]) if owners else own


def several_owners(conversation_id: str, owners: Sequence[tuple[str | None, str | None]]) -> RequestError:
    """Return the error for a conversation's id that several tenants or users have, none of which is named."""
    tenants, users = ({*map(str, names)} for names in zip(*owners, strict=True))
    kind, names = ("tenant", tenants) if len(tenants) > 1 else ("user", users)
    exists = f"conversation {conversation_id!r} exists {'in' if kind == 'tenant' else 'for'} {len(names)} {kind}s"
    return RequestError(f"{exists} ({', '.join(sorted(names))}): name one with {kind}= or --{kind}", param=kind)


async def load_todo(store: Store, conversation_id: str, caller: Caller) -> tuple[TodoItem, ...]:
    """Return the to-do list, including changes of a run in progress. Raises RequestError if the id is unknown."""
    conversation = await _conversation(store, conversation_id, caller)
    if conversation.open_run is not None:
        return read_items((await store.load_run(conversation.open_run)).session.get(TODO))
    return read_items(conversation.session.get(TODO))


async def replace_todo(
    store: Store, conversation_id: str, items: Iterable[TodoItem | Mapping[str, Any]], caller: Caller
) -> tuple[TodoItem, ...]:
    """Replace the to-do list and return it; raises RequestError, or ConversationBusy while a run is open."""
    conversation = await _conversation(store, conversation_id, caller)
    if conversation.open_run is not None:
        raise ConversationBusy(
            f"conversation {conversation_id!r} is busy: run {conversation.open_run} is using its to-do list"
        )
    try:
        new_items = [item if isinstance(item, TodoItem) else TodoItem.model_validate(item) for item in items]
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        raise RequestError(f"to-do item: {'.'.join(map(str, detail['loc']))}: {detail['msg']}") from None
    if len(new_items) > MAX_TODO_ITEMS:
        raise RequestError(f"{len(new_items)} to-do items; at most {MAX_TODO_ITEMS} are allowed")
    updated = merge_items(read_items(conversation.session.get(TODO)), new_items, datetime.now(UTC))
    session = Session(dict(conversation.session))
    try:
        session.set(TODO, [item.model_dump(mode="json") for item in updated])
    except ToolError as error:
        raise RequestError(error.message) from None
    await store.replace_session(replace(conversation, session=session.values))
    return updated


async def _conversation(store: Store, conversation_id: str, caller: Caller) -> Conversation:
    conversation = await load_conversation(store, conversation_id, caller)
    if not conversation.turns:
        raise ConversationNotFound(f"this user has no conversation {conversation_id!r}", param="conversation")
    return conversation


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """Where a fork leaves the history of its origin; exactly one is set."""

    before: str | None = None
    """Id of the first run that is left out."""
    after: str | None = None
    """Id of the last run that is kept."""
    messages: int | None = None
    """Number of messages that are kept, counted from the first."""

    def check(self) -> None:
        """Raise RequestError unless exactly one is set."""
        if sum(value is not None for value in (self.before, self.after, self.messages)) != 1:
            raise RequestError("a fork needs one place: send before, after or messages", param="before")


async def fork_conversation(
    store: Store, origin: Conversation, point: ForkPoint, new_id: str | None = None
) -> Conversation:
    """Save a new conversation of the same user and tenant, whose first turns are copies of those before `point`.

    Nothing is executed: the copies have the messages, calls and events of the original runs.

    Args:
        store: the store.
        origin: the conversation to copy, as loaded.
        point: where the copy ends.
        new_id: id of the new conversation. Default: a new one.

    Raises:
        RequestError: the conversation has no such run or message, or the history would end with open calls.
        ConversationBusy: a conversation with the new id exists.
    """
    point.check()
    infos = await store.runs(RunQuery.of_conversation(origin))
    states = await _states(store, infos, point)
    fork_id = new_id or f"conv_{uuid4().hex}"
    copies = [await _copy(store, state, fork_id) for state in states]
    last = states[-1] if states else None
    messages = tuple(message for state in states for message in state.messages)
    is_pruned = last is not None and bool(last.seq) and not copies[-1].events  # with its values
    forked = Conversation(
        fork_id,
        messages,
        agent=last.agent if last else None,
        session=origin.session if is_pruned else last.session if last else {},
        turns=len(states),
        user=origin.user,
        tenant=origin.tenant,
        summary=last.summary if last and last.summary and last.summary.upto <= len(messages) else None,
        forked_from=origin.id,
        handed_to=last.handed_to if last else None,
    )
    await store.fork(forked, copies)
    return forked


async def _states(store: Store, infos: Sequence[RunInfo], point: ForkPoint) -> Sequence[RunState]:
    """Return the last states of the turns to copy; see `fork_conversation`."""
    answered = [info for info in infos if info.status in ANSWERED_STATUSES]
    kept = answered if point.messages is not None else _kept_turns(point, infos, answered)
    states = [await store.load_run(info.run_id) for info in kept]
    return states if point.messages is None else _first_messages(states, point.messages)


def _kept_turns(point: ForkPoint, infos: Sequence[RunInfo], answered: Sequence[RunInfo]) -> Sequence[RunInfo]:
    """Return the answered turns up to a run."""
    run_id = point.before or point.after
    known = infos if point.before is not None else answered
    end = next((info.turn for info in known if info.run_id == run_id and info.turn), None)
    if end is None:
        name = "before" if point.before is not None else "after"
        kind = "run that has started" if name == "before" else "answered run"
        raise RequestError(f"{name}: the conversation has no {kind} {run_id!r}", param=name)
    return [info for info in answered if info.turn < end or (info.turn == end and point.after is not None)]


def _first_messages(states: Sequence[RunState], count: int) -> Sequence[RunState]:
    """Return the turns of the first messages. The last turn is cut, without its calls and events, if it has more."""
    kept: list[RunState] = []
    for state in states:
        if count <= 0:
            return kept
        own = state.messages[:count]
        count -= len(own)
        kept.append(state if len(own) == len(state.messages) else _state_of(state, own))
    if count > 0:
        raise RequestError("messages: the conversation has fewer", param="messages")
    return kept


def _state_of(source: RunState, messages: Sequence[Message]) -> RunState:
    """Return a turn of these messages only; raises RequestError if a call has no result, or the answer is missing."""
    if problem := next(transcript_errors(messages), None):
        raise RequestError(f"messages: {problem}", param="messages")
    if messages[-1].role != "assistant":
        raise RequestError(
            f"messages: the last one must be an answer, not of role {messages[-1].role}", param="messages"
        )
    return RunState(
        agent=source.agent,
        handled_by=source.handled_by,
        conversation_id=source.conversation_id,
        user=source.user,
        tenant=source.tenant,
        status="completed",
        finish_reason="final",
        output=messages[-1].content,
        messages=list(messages),
    )


async def _copy(store: Store, state: RunState, conversation_id: str) -> CopiedTurn:
    """Return a copy of a run for a fork, and save the files that its messages refer to."""
    copied = state.model_copy(deep=True)
    run_id, copied.copied_from = f"run_{uuid4().hex}", state.run_id
    for one in copied.with_sub_runs():
        one.run_id, one.conversation_id, one.version = run_id, conversation_id, 0
    events: list[Event] = []
    if state.seq:
        events = [read_event({**event, "run_id": run_id}) for event in await store.events(state.run_id)]
    digests = {part.digest for message in state.messages for part in message.media}
    if digests and (files := await store.load_media(digests)):
        await store.save_media(run_id, files)
    return CopiedTurn(copied, events)


class NewRun(NamedTuple):
    """A run whose agent is chosen and whose files are saved, but which is not recorded yet."""

    state: RunState
    conversation: Conversation | None
    """The conversation that it continues, as it was loaded."""
    generation: Generation
    route: Route
    output_type: type[BaseModel] | None


class RunStarter:
    """Prepares new runs."""

    def __init__(
        self,
        store: Store,
        blueprints: Blueprints,
        models: ModelClients,
        meters: RunMetrics,
        caller: Callable[..., Caller],
        clock: Callable[[], float],
    ) -> None:
        self._store, self._blueprints, self._models, self._meters = store, blueprints, models, meters
        self._caller, self._clock = caller, clock

    async def start(self, content: UserInput, options: RunOptions, generation: Generation) -> PreparedRun:
        """Save a new run in the store, before any of its work starts.

        Raises:
            RequestError: the run cannot start with these options (AgentNotFound, ConversationBusy).
            ConfigError: no agent is valid.
            StoreError: the run could not be saved.
        """
        return await self.record(await self.prepare(content, options, generation))

    async def check(self, message: Message, options: RunOptions, generation: Generation) -> Conversation | None:
        """Check whether a run could start, as far as that is known without calling a model; raises as `start` does.

        A busy conversation is no error. Without a name, the agent is known only if it is the only one.

        Returns:
            The conversation that the run will continue, if any.
        """
        if model := options.get("model"):
            self._models.require_known(generation.settings, model)
        if options.get("agent") or len(generation.agents) + len(generation.broken) < 2 or not generation.agents:
            agent = select_agent(message.description, generation, explicit=options.get("agent")).agent
            initial_state(message, agent, generation, options)
        else:
            check_unrouted(message, options)
        await _history(options.get("history"), ())
        conversation_id = options.get("conversation")
        return await self._load_conversation(conversation_id, options) if conversation_id else None

    async def prepare(
        self, content: UserInput, options: RunOptions, generation: Generation, run_id: str | None = None
    ) -> NewRun:
        """Choose the agent of a new run and build its first state; raises as `start` does.

        Args:
            content: the user's message.
            options: the caller's options.
            generation: the generation that the run starts with.
            run_id: id of the queued run that starts. Default: a new one.
        """
        if model := options.get("model"):
            self._models.require_known(generation.settings, model)
        conversation = await self._conversation(options, is_queued=run_id is not None)
        last = conversation.agent if conversation and not options.get("reroute") else None
        message = await content.to_message()
        route = await self._choose_route(message.description, generation, options, last)
        tools = (tool.definition for tool in route.agent.toolset.offered.values())
        earlier, files = await _history(options.get("history"), tools)
        files |= {file.part.digest: file.data for file in content.files}
        addressed, kept = route.agent.name, dict[str, Any]()
        if (agent := _agent_handed_to(route.agent, conversation, generation, options)) is not None:
            route = Route(agent, "conversation", f"{addressed} handed the conversation over to it")
            given, known = options.get("inputs") or {}, generation.agents[addressed].spec.inputs
            kept = {name: given[name] for name in given if name in known and name not in agent.spec.inputs}
            options = cast(RunOptions, {**options, "inputs": {name: given[name] for name in given if name not in kept}})
        state = initial_state(message, route.agent, generation, options, earlier)
        if agent is not None:
            state.agent, state.handled_by = addressed, [agent.name]
            state.inputs = {**kept, **state.inputs}
        state.run_id = run_id or state.run_id
        if conversation is not None:
            # A single user may continue the conversation of any tenant and user.
            state.tenant, state.user = conversation.tenant, conversation.user
        state.executor = route.executor
        state.usage, state.model_uses, state.warnings = route.usage, dict(route.model_uses), [*route.warnings]
        if call := route.model_call:
            state.elapsed_ms = (call.ended_ns - call.started_ns) / 1e6
        if route.usage.total_tokens and (budgets := route.agent.spec.budgets):
            ledger = BudgetLedger(state, self._store, lambda: (generation.budgets, generation.budgets), self._clock)
            ledger.count_earlier(budgets, route.usage)
        if conversation is not None:
            state.summary, state.session = conversation.summary, dict(conversation.session)
            state.history = list(conversation.messages[conversation.summary.upto if conversation.summary else 0 :])
        if message.parts or any(earlier_message.parts for earlier_message in earlier):
            await self._save_files(files, state, route.agent, generation)
        return NewRun(state, conversation, generation, route, options.get("output_type"))

    async def record(self, new: NewRun, limits: RunLimits = UNLIMITED) -> PreparedRun:
        """Save a prepared run in the store, with these limits; raises ConversationBusy, RunBlocked or StoreError."""
        agent, state = new.route.agent, new.state
        blueprint = self._blueprints.of(new.generation, state.agent) if self._store.durable else None
        state.blueprint = blueprint.digest if blueprint else ""
        record = await self._store.start(state, new.conversation, blueprint, limits)
        return PreparedRun(state, record, new.generation, agent, new.route, new.output_type)

    async def _save_files(
        self, new: Mapping[str, bytes], state: RunState, agent: Agent, generation: Generation
    ) -> None:
        """Save the files of the message, and keep those that the message and the history refer to.

        Raises:
            RequestError: the model does not accept a file of the message, or a file is not stored.
        """
        own = state.messages[0]
        if own.parts:
            name = state.model or agent.spec.model or generation.settings.model
            with suppress(ConfigError):  # the run fails with it, and is recorded
                require_accepted(own.media, name, self._models.get(generation.settings, name).info)
        earlier = state.history if state.conversation_id is None else []  # a conversation keeps its own files
        digests = {part.digest for message in (own, *earlier) for part in message.media} - new.keys()
        owner = RunQuery.of_owner(state.tenant, state.user)
        if self._caller(state.user, state.tenant).single_user:  # it can access the files of any
            owner = RunQuery(tenant=state.tenant, user=state.user)
        contents = {**new, **(await self._store.load_media(digests, owner) if digests else {})}
        if missing := next((part for part in own.media if part.digest not in contents), None):
            raise RequestError(f"{missing.description} is not stored: pass the file itself")
        if contents:
            await self._store.save_media(state.run_id, contents)

    async def _choose_route(self, message: str, generation: Generation, options: RunOptions, last: str | None) -> Route:
        """Choose the agent: by name, conversation or rules, else by `routing.model` if one is set, else the default."""
        settings, agents, explicit = generation.settings.routing, generation.agents, options.get("agent")
        broken = generation.broken
        if settings.model is None or explicit is not None or not agents or len(agents) + len(broken) < 2:
            return select_agent(message, generation, explicit=explicit, last=last)
        if known := known_route(message, agents, last=last, broken=broken):
            return known
        limits = unrouted_limits(options)
        return await route_by_model(
            message, agents, generation.settings, limits, self._models, self._meters.if_enabled(), broken
        )

    async def _conversation(self, options: RunOptions, *, is_queued: bool) -> Conversation | None:
        """Return the conversation that the run continues, if any; raises RequestError, ConversationBusy."""
        if not (conversation_id := options.get("conversation")):
            return None
        conversation = await self._load_conversation(conversation_id, options)
        if conversation.open_run:
            raise await self._busy(conversation_id, conversation.open_run)
        if conversation.waiting and not is_queued:
            reason = f"{conversation.waiting} of its runs wait in the queue"
            advice = "wait for them, or submit this one with queue=True"
            raise ConversationBusy(f"conversation {conversation_id!r} is busy: {reason}; {advice}")
        return conversation

    async def _load_conversation(self, conversation_id: str, options: RunOptions) -> Conversation:
        """Return the caller's conversation, or a new one; raises RequestError if several owners have one."""
        caller = self._caller(options.get("user"), options.get("tenant"))
        return await load_conversation(self._store, conversation_id, caller)

    async def _busy(self, conversation_id: str, run_id: str) -> ConversationBusy:
        """Return the error for a conversation with an open run, with the command that resolves it."""
        pending = (await self._store.load_run(run_id)).pending
        orphans = await self._store.runs(RunQuery(run_id=run_id, orphaned=True))
        interrupted = bool(orphans)
        if pending:
            subjects = ", ".join(one.tool or one.kind for one in pending)
            reason = f"run {run_id} waits for a decision on {subjects}: agentsd runs decide {run_id}"
        elif interrupted:
            reason = f"run {run_id} was interrupted when its process ended; resume it: agentsd runs resume {run_id}"
        else:
            reason = f"run {run_id} is in progress; wait for it, or cancel it: agentsd runs cancel {run_id}"
        return ConversationBusy(
            f"conversation {conversation_id!r} is busy: {reason}", run_id=run_id, interrupted=interrupted
        )


def _agent_handed_to(
    agent: Agent, conversation: Conversation | None, generation: Generation, options: RunOptions
) -> Agent | None:
    """Return the agent that `agent` has handed the conversation over to, if its file still leads there."""
    name = options.get("handed_to")
    if conversation is not None and conversation.agent == agent.name and not options.get("reroute"):
        name = name or conversation.handed_to
    known, queue = generation.agents, [agent.name]
    for reached in queue:
        queue += [one for one in known[reached].spec.handoffs if one in known and one not in queue]
    return known[name] if name in queue[1:] else None


async def _history(
    given: GivenHistory | None, tools: Iterable[ToolDefinition]
) -> tuple[list[Message], dict[str, bytes]]:
    """Return earlier messages, and the contents of the files in them; raises RequestError."""
    if not given:
        return [], {}
    messages = message_list(given)
    if may_contain_files(messages):
        return await asyncio.to_thread(read_history, messages, tools)
    return read_history(messages, tools)


def select_agent(message: str, generation: Generation, *, explicit: str | None, last: str | None = None) -> Route:
    """Return the route of a message to an agent of the generation.

    Raises:
        AgentNotFound: no agent is named `explicit`. The error lists the problems in the files.
        ConfigError: every agent file has errors, or that of the agent that the message is for (AgentBroken).
        RequestError: no agent matches the message.
    """
    if not generation.agents and generation.errors:
        raise ConfigError("no valid agent", generation.errors)
    default, broken = generation.settings.routing.default_agent, generation.broken
    try:
        return choose_route(message, generation.agents, explicit=explicit, last=last, default=default, broken=broken)
    except AgentNotFound as missing:
        raise AgentNotFound(missing.name, missing.known, generation.errors) from None


async def call_one_tool(
    catalog: Catalog,
    launcher: Launcher,
    agent: str,
    name: str,
    arguments: Mapping[str, Any],
    inputs: Mapping[str, Any],
) -> ToolResult:
    """Call a tool; see `Runtime.call_tool`."""
    call = ToolCall(id=f"call_{uuid4().hex}", tool=name, arguments=dict(arguments))
    with catalog.lease() as generation:
        route = select_agent("", generation, explicit=agent)
        message = Message(role="user", content=f"call {name}")
        state = initial_state(message, route.agent, generation, RunOptions(inputs=inputs))
        run = launcher.ephemeral(state, route.agent, generation)
        confirmations = await run.call_tool(call)
    if confirmations:
        launcher.abandon_calls(state)
        raise ApprovalRequired(f"{name} needs approval: {confirmations[0].reason or confirmations[0].rule}")
    result = state.calls[call.id].result
    assert result is not None
    return result


async def ask_model_only(catalog: Catalog, launcher: Launcher, message: str, options: RunOptions) -> RunResult:
    """Return the answer of an agent's model. The agent's limits, shared budgets and hooks apply.

    Args:
        catalog: the agents.
        launcher: the services of runs.
        message: the whole prompt.
        options: options of the run. Without an agent, the rules of routing select one.

    Raises:
        RequestError: the message or an option is invalid, or no agent matches (AgentNotFound).
    """
    _, checked = check_request(message, options)
    with catalog.lease() as generation:
        plain = select_agent(message, generation, explicit=checked.get("agent")).agent.model_only()
        state = initial_state(Message(role="user", content=message), plain, generation, checked)
        run = launcher.ephemeral(state, plain, generation)
        with RunTrace(run, None) as trace:
            return await finish_run(run, await run.drive(), trace)
