"""One run as its parts see it: its state, agent, rules, events and time, and the clients of its models.

Model turns, tool calls and traces accept a `RunContext`. `Run` extends it with the methods that executors call.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from operator import is_not
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, Protocol

from aiolimiter import AsyncLimiter
from pydantic import BaseModel

from framework.config.agents.compile import Agent
from framework.config.agents.models import unknown_model_message
from framework.config.generations.generation import Generation
from framework.config.overlay import SETTINGS_FILE
from framework.config.settings import ModelAlias, Settings, ToolSettings
from framework.config.templates.prompts import PromptError
from framework.engine.context.events import EventHub, Journal, TextKind, next_event
from framework.engine.context.grants import GrantBook
from framework.engine.context.policy import Budget, BudgetLedger, Policy, apply_settings, limited_to_shared_tools
from framework.llm.client import ModelClient, ModelInfo, ModelRequest, ProbingClient
from framework.llm.json_protocol import JsonProtocol
from framework.llm.message_shape import RequestCache, ToolsetCache, message_tokens, tool_tokens
from framework.llm.providers import OFFLINE, PROVIDERS, create_client, environment_of
from framework.store.types import RunQuery
from framework.telemetry import names
from framework.telemetry.metrics import RunMetrics
from framework.telemetry.spans import NOOP_SPAN, Content, OpenInferenceKind, Spans, TraceSpan
from framework.tools.declaration import Extension, RateLimit
from framework.tools.files import BaseFolder
from framework.tools.threads import ToolThreads
from framework.types.errors import AgentsdError, ConfigError, RequestError, outcome_for
from framework.types.events import RunEvent, Warned
from framework.types.file import File, media_parts
from framework.types.media import MediaPart
from framework.types.messages import Message, ToolCall, ToolDefinition, Usage
from framework.types.redact import redact
from framework.types.report import MAX_WARNINGS_PER_CODE, WARNINGS, ErrorInfo, RunWarning, WarningCode
from framework.types.spec import HookPlace
from framework.types.spec import Protocol as ToolProtocol
from framework.types.state import Confirmation, Decision, RunState
from framework.types.text import content_digest, did_you_mean, fix_surrogates

if TYPE_CHECKING:
    from framework.store.notes import Notes
    from framework.store.store import Store


MAX_COOLDOWN = 60.0
"""Seconds."""
JITTER = 0.2
"""Share by which a cooldown is shortened at random, so that processes do not all call at the same moment."""
_Identity = tuple[str, ModelAlias | None, str | None, tuple[str | None, ...]]
"""What a client depends on: name, alias, key, and the variables of its provider. One that changes has a new client."""
_MIN_LEARNED = 1000
"""Estimated tokens of a rejected request from which on its size is taken as the server's context window."""


@dataclass(frozen=True, slots=True)
class Permit:
    """Whether a model may be called now."""

    wait: float
    """Seconds until the next permit can be requested; 0 if the call is admitted."""
    epoch: int
    """Number of cooldowns and probes before this call: a call from before a cooldown does not count at its end."""


@dataclass(slots=True)
class _Record:
    failures: int = 0
    """Number of failures in a row."""
    cooldown: float = 0.0
    """Length in seconds; 0 while the circuit is closed."""
    until: float = 0.0
    epoch: int = 0
    last_message: str = ""


class CircuitBreakers:
    """The circuit breakers of a process, by the model names that agent files use.

    Args:
        clock: returns seconds; monotonic.
        random_share: returns a number from 0 to 1.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, random_share: Callable[[], float] = random.random
    ) -> None:
        self._clock, self._random_share = clock, random_share
        self._records: dict[str, _Record] = {}

    def acquire(self, model: str) -> Permit:
        """Return whether a call is admitted. The outcome of an admitted call must be recorded."""
        record = self._records.get(model)
        if record is None or not record.cooldown:
            return Permit(0.0, record.epoch if record else 0)
        now = self._clock()
        if now < record.until:
            return Permit(record.until - now, record.epoch)
        # This call is the probe. If its outcome is never recorded, another probe is admitted after the same time.
        record.until = now + record.cooldown
        record.epoch += 1
        return Permit(0.0, record.epoch)

    def record_success(self, model: str) -> None:
        """Record that the model answered, even with a rejection."""
        if (record := self._records.get(model)) is not None:
            record.failures, record.cooldown = 0, 0.0

    def record_failure(self, model: str, permit: Permit, error: str, *, after: int, cooldown: float) -> None:
        """Record that the model was unavailable.

        Args:
            model: its name.
            permit: the permit of the call.
            error: the error message, reported to calls that have to wait.
            after: number of failures in a row that start a cooldown.
            cooldown: length of the first cooldown, in seconds.
        """
        record = self._records.setdefault(model, _Record(epoch=permit.epoch))
        if permit.epoch != record.epoch:
            return
        record.failures += 1
        record.last_message = error
        if record.cooldown or record.failures >= after:
            record.cooldown = min(MAX_COOLDOWN, record.cooldown * 2 if record.cooldown else cooldown)
            record.until = self._clock() + record.cooldown * (1 - JITTER * self._random_share())
            record.epoch += 1

    def is_open(self, model: str) -> bool:
        """Return whether the model is in cooldown, so that no call is admitted."""
        record = self._records.get(model)
        return record is not None and record.cooldown > 0 and self._clock() < record.until

    def last_error(self, model: str) -> str:
        """Return why the model is in cooldown, as a message."""
        record = self._records.get(model, _Record())
        return f"{record.failures} failures in a row, most recently: {record.last_message}"


class CallContext(Protocol):
    """Receives what a model call reports, and limits its time. A run is one."""

    async def warn(self, code: WarningCode, message: str, *, message_id: str | None = None) -> None:
        """Record a warning; with a message id, the text shown of that message is void."""
        ...

    def emit_text(self, kind: TextKind, message_id: str, text: str) -> None:
        """Show a piece of an answer or of its reasoning while it arrives."""
        ...

    def message_id(self, attempt: int) -> str:
        """Return the id of the message that this attempt at the call produces; attempts count from 1."""
        ...

    def keep_time(self) -> None:
        """Count the time used so far."""
        ...

    async def save(self) -> None:
        """Persist the usage so far, and count it in shared budgets."""
        ...

    def time_remaining(self) -> float:
        """Return the seconds until the deadline, infinite without one."""
        ...


@dataclass(frozen=True, slots=True)
class ModelCaller:
    """Everything needed to call the models of an agent. A run has one; routing makes one before its run exists."""

    agent: Agent
    """Its file names the model, the fallbacks and the protocol."""
    settings: Settings
    clients: ModelClients
    budget: Budget
    spans: Spans
    meters: RunMetrics | None
    content: Content
    """How much prompt and reply text spans may include."""
    context: CallContext
    sources: Mapping[str, str] = field(default_factory=dict)
    """`file:line` of the declarations of MCP servers and HTTP tool hosts, by name, such as `mcp.docs`."""
    outgrown: Set[str] = frozenset()
    """Models whose context windows are too small for the run, while that of a fallback is not."""
    failed_models: set[str] = field(default_factory=set)
    """Models that are not called again as long as a fallback remains: their last error was permanent."""

    def primary(self, name: str | None = None) -> NamedClient:
        """Return the model that is called before any fallback: the named one, or else the agent's own.

        Raises:
            ConfigError: there is no such model, or it has no key.
        """
        name = name or self.agent.spec.model or self.settings.model
        return NamedClient(name, self.client(name))

    def names_from(self, primary: str) -> Sequence[str]:
        """Return the names of a model and the agent's fallbacks, without those that are not called again."""
        names = tuple(dict.fromkeys((primary, *self.agent.spec.fallback_models)))
        return [name for name in names if name not in self.failed_models | self.outgrown] or names

    async def probe(self, name: str | None = None) -> None:
        """Ask the server of that model, or of the agent's own, for unknown capabilities, if it is local."""
        await self.clients.probe(self.settings, name or self.agent.spec.model or self.settings.model)

    def client(self, name: str) -> ModelClient:
        """Return the client of a model, in the agent's protocol; raises ConfigError if it is unknown or has no key."""
        return with_protocol(self.clients.get(self.settings, name), self.agent.spec.protocol)


def with_protocol(client: ModelClient, protocol: ToolProtocol) -> ModelClient:
    """Return the client for an agent's `protocol`; one that is no language model is returned unchanged."""
    return JsonProtocol(client) if client.info.needs_json_protocol(protocol) else client


@dataclass(frozen=True, slots=True)
class NamedClient:
    """A model's client, with the name that agent files and circuit breakers use."""

    name: str
    client: ModelClient

    @property
    def info(self) -> ModelInfo:
        """The model's properties."""
        return self.client.info


class ModelClients:
    """The model clients of a process, each created on first use, with their circuit breakers.

    A name is a client that the embedding program passes, an alias in the settings, or `provider/model`.
    """

    def __init__(self, clients: Mapping[str, ModelClient]) -> None:
        self.breakers = CircuitBreakers()
        self.start_with_thoughts: set[str] = set()
        """Models whose last streamed reply started with thoughts and had their end tag only."""
        self._tool_tokens = ToolsetCache(tool_tokens)  # a list of tools is counted once while it is in use
        self._embedded = dict(clients)
        self._connected: dict[_Identity, ModelClient] = {}
        self._unprobed: dict[ModelClient, ProbingClient] = {}
        """Clients of local servers that have not reported all capabilities of their model."""
        self._learned: dict[tuple[str, str | None, int | None], int] = {}
        """Context windows by model and server, as the sizes of rejected requests show them."""

    def get(self, settings: Settings, name: str) -> ModelClient:
        """Return the client of a model; raises ConfigError if the name is unknown or the model has no key."""
        if name in self._embedded:
            return self._embedded[name]
        alias = settings.models.get(name)
        key = alias.key_text if alias else None
        identity = name, alias, key, environment_of(alias.model if alias else name, os.environ)
        if (client := self._connected.get(identity)) is None:
            client = self._connected[identity] = self._connect(name, alias, key, settings)
            if isinstance(client, ProbingClient) and client.needs_probe:
                self._unprobed[client] = client
        return client

    async def probe(self, settings: Settings, name: str) -> None:
        """Ask the server of a model what it can do, if it is local and unknown. An unknown name is left to `get`."""
        if name in self._embedded:
            return
        try:
            client = self.get(settings, name)
        except ConfigError:
            return
        if (unprobed := self._unprobed.get(client)) is not None:
            await unprobed.probe()
            if not unprobed.needs_probe:
                self._unprobed.pop(client, None)

    def window(self, info: ModelInfo) -> int | None:
        """Return the context window of a model in tokens: the known one, or a smaller one that its server has shown."""
        sizes = (info.capabilities.context_window, self._learned.get(_server_key(info)))
        return min((size for size in sizes if size is not None), default=None)

    def learn_window(self, info: ModelInfo, request: ModelRequest, stated: int | None) -> None:
        """Remember the context window of a model whose server rejected a request as too long.

        It is the size that the server states, or else the estimated size of the request: not of one with files, whose
        size is unknown, nor of a short one, which must have another fault.
        """
        size = stated or (0 if request.media else self.request_tokens(request))
        if stated or size >= _MIN_LEARNED:
            self._learned[_server_key(info)] = min(size, self.window(info) or size)

    def require_known(self, settings: Settings, name: str) -> None:
        """Raise RequestError unless an agent file could use this name."""
        known = {OFFLINE, *(f"{provider.name}/" for provider in PROVIDERS), *self._embedded, *settings.models}
        if problem := unknown_model_message(name, known):
            raise RequestError(f"{problem}: write provider/model, or an alias from {SETTINGS_FILE}")

    def request_tokens(self, request: ModelRequest) -> int:
        """Return the estimated number of tokens of a request, with its tools."""
        return sum(map(message_tokens, request.messages)) + self._tool_tokens.get(request.tools)

    def _connect(self, name: str, alias: ModelAlias | None, key: str | None, settings: Settings) -> ModelClient:
        if alias is None:
            if "/" not in name and name != OFFLINE:
                known = did_you_mean(name, sorted({OFFLINE, *self._embedded, *settings.models}))
                raise ConfigError(f"there is no model {name!r}: write PROVIDER/MODEL, or an alias{known}")
            return create_client(name, environ=os.environ)
        return create_client(
            alias.model,
            base_url=alias.base_url,
            api_key=key,
            api=alias.api,
            capabilities=alias.capabilities,
            stream=alias.stream,
            **alias.options,
            environ=os.environ,
        )

    async def close(self) -> None:
        """Close all connections."""
        for client in (*self._embedded.values(), *self._connected.values()):
            await client.close()


def _server_key(info: ModelInfo) -> tuple[str, str | None, int | None]:
    return info.name, info.server_address, info.server_port


def model_attributes(info: ModelInfo) -> dict[str, Any]:
    """Return the attributes of a model: its provider, as the GenAI conventions name it, and its server."""
    return {
        names.PROVIDER: names.PROVIDER_NAMES.get(info.provider, info.provider),
        names.REQUEST_MODEL: info.wire_name,
        names.SERVER_ADDRESS: info.server_address,
        names.SERVER_PORT: info.server_port,
    }


def usage_attributes(usage: Usage | None) -> dict[str, Any]:
    """Return tokens and cost of a model call. Only `chat` spans carry them, so that no backend counts them twice."""
    if usage is None:
        return {}
    return {
        names.INPUT_TOKENS: usage.prompt_tokens,
        names.OUTPUT_TOKENS: usage.completion_tokens,
        names.CACHED_TOKENS: usage.cached_tokens or None,
        names.CACHE_WRITE_TOKENS: usage.cache_write_tokens or None,
        names.CALL_COST: usage.cost_usd,
        names.MLFLOW_COST: json.dumps({"total_cost": usage.cost_usd}) if usage.cost_usd is not None else None,
    }


class RunMedia:
    """The files of a root run and its sub-runs."""

    def __init__(self, state: RunState, store: Store | None) -> None:
        """Create the files of a run.

        Args:
            state: the root run.
            store: saves the files; None for a run that is not stored.
        """
        self._state, self._store = state, store
        self._loaded: dict[str, bytes] = {}
        self._reported: set[str] = set()
        self.in_use = any(
            any(message.parts for message in (*run.history, *run.messages))
            or any(record.result.media for record in run.calls.values() if record.result)
            for run in state.with_sub_runs()
        )
        """Whether any message or result of the run contains a file. If not, model calls do nothing about files."""

    async def save(self, files: Sequence[File]) -> tuple[MediaPart, ...]:
        """Save files, and return the parts of messages that refer to them; raises StoreError."""
        parts = await media_parts(files)
        contents = {part.digest: file.data for part, file in zip(parts, files, strict=True)}
        if self._store is not None:
            await self._store.save_media(self._state.run_id, contents)
        self._loaded |= contents
        self.in_use = True
        return parts

    async def load(self, digests: Collection[str]) -> Mapping[str, bytes]:
        """Return the files with these digests; those that were deleted are missing. Raises StoreError."""
        missing = set(digests) - self._loaded.keys()
        if missing and self._store is not None:
            owner = RunQuery.of_owner(self._state.tenant, self._state.user)
            self._loaded |= await self._store.load_media(missing, owner)
        return {digest: self._loaded[digest] for digest in digests if digest in self._loaded}

    def newly_omitted(self, parts: Sequence[MediaPart]) -> list[MediaPart]:
        """Return those of the files that no model call has omitted before."""
        new = [part for part in parts if part.digest not in self._reported]
        self._reported.update(part.digest for part in new)
        return new


@dataclass(frozen=True, slots=True)
class Services:
    """The services of one root run and its sub-runs."""

    root: RunState
    """State of the root run: contains all sub-runs, decisions and the event counter; the store persists it."""
    generation: Generation
    current_agent: Callable[[str], Agent | None]
    """Returns the live version of an agent, or None if it was deleted."""
    clients: ModelClients
    journal: Journal
    media: RunMedia
    """Files in messages of the run."""
    hub: EventHub
    """Delivers the run's events, and text while it arrives."""
    spans: Spans
    threads: ToolThreads
    """Run tools that are not coroutines."""
    rate_limiter: RateLimiter
    now: Callable[[], float]
    """Returns the time of the store, as Unix time."""
    notes: Notes
    """Notes that agents keep across conversations."""
    ledger: BudgetLedger
    """Counts the use of shared budgets."""
    base_path: Path
    reserved_files: tuple[Path, ...]
    """Files of the store, which no tool may read or write."""
    tools: Callable[[], ToolSettings]
    """Returns limits for tools: the stricter of those when the run started and the live ones."""
    deps: Any
    content: Content
    """How much of prompts, arguments and results the operator allows in traces."""
    meters: RunMetrics | None
    """Metrics; None if they are not exported."""
    grants: GrantBook
    """Approvals that are remembered."""
    output_type: type[BaseModel] | None = None
    """Type of the answer's data, if the caller requires one."""
    decided: Collection[str] = ()
    """Ids of the confirmations that a person has just decided."""
    failed_models: set[str] = field(default_factory=set)
    """Models whose last error was permanent: a rejected key, or an unknown model."""


class RateLimiter:
    """Keeps the calls of each tool below the rate it declares, over all runs of the process."""

    def __init__(self) -> None:
        self._limiters: dict[tuple[str, float, float], AsyncLimiter] = {}

    async def wait(self, tool: str, rate: RateLimit) -> bool:
        """Wait until the tool may be called; return whether the call had to wait."""
        calls, seconds = rate  # a tool whose rate has changed gets a new limiter
        limiter = self._limiters.setdefault((tool, calls, seconds), AsyncLimiter(calls, seconds))
        has_capacity = limiter.has_capacity()
        await limiter.acquire()
        return not has_capacity


log = logging.getLogger("agentsd.runs")

MAX_ADDED_TOOLS = 100
"""Maximum number of tools that a run adds to its requests: providers accept about 128 tools."""
CLOCK_DRIFT = 0.001
"""Seconds: smaller differences between two readings of a deadline are ignored."""


Confirmations = tuple[Confirmation, ...]


class RunContext(ABC):
    """A root run or a sub-run: the base of `Run` that its parts use."""

    def __init__(self, state: RunState, agent: Agent, services: Services, parent: RunContext | None = None) -> None:
        self.state, self.services, self.parent = state, services, parent
        self.deadline: asyncio.Timeout | None = None
        """Deadline of the run while it is in progress."""
        self.last_message_id = ""
        """Id, in events, of the last model call in this process."""
        self._counted_at = 0.0
        """When the active time was last added to the state, by `perf_counter`."""
        self._answer: BaseModel | None = None
        self._requested = state.model_settings, state.output_schema, state.limits
        self.bind(agent)

    def bind(self, agent: Agent) -> None:
        """Let an agent work on the run: the one that it started with, or another one that it was handed over to."""
        state, services, parent = self.state, self.services, self.parent
        is_root, model = parent is None, services.root.model
        agent = agent.for_run(model, state.client, is_root=is_root)
        names = state.handled_by[:-1] if is_root else []
        others = (services.generation.agents[name] for name in names)
        earlier = tuple(other.for_run(model, state.client, is_root=is_root) for other in others)
        if earlier:
            agent = limited_to_shared_tools(agent, earlier)
            apply_settings(state, self._requested, earlier, agent)
        self.agent = agent
        above = parent.budget.chain if parent else ()
        self.budget: Budget = Budget(state, agent, services.current_agent, above, services.ledger, earlier)
        parents = (*parent.policy.parents, *parent.policy.earlier, parent.agent) if parent else ()
        self.policy: Policy = Policy(agent, services.current_agent, parents, earlier, BaseFolder(services.base_path))
        self.content: Content = parent.content if parent else services.content
        """How much content traces of this run include: never more than its callers allow, whose text it contains."""
        for one in (*earlier, agent):
            self.content = self.content.restricted_to(one.spec.telemetry.content)
        self.request_cache = RequestCache()
        """Cache of model clients, shared by all requests of this run."""
        self.outgrown: set[str] = set()
        """Models that are not called again, because the run does not fit into their windows but into a fallback's."""
        self.rendered: dict[Literal["preamble", "summary", "recalled"], tuple[Message, ...]] = {}
        """Messages that are equal in every request of this run, rendered for the first one."""
        self._definitions: tuple[int, Collection[str], tuple[ToolDefinition, ...]] = (-1, (), ())
        """What `tool_definitions` returned last, with the number of added tools and the names of the searchable ones"""
        self._searchable: tuple[Sequence[Agent | None], frozenset[str]] | None = None
        """What `searchable_tools` returned last, with the live versions of agents for which it applies."""
        self.result_chars: int | None = None
        """Characters of each tool result that requests contain, once the whole results did not fit the model."""

    @property
    def model_caller(self) -> ModelCaller:
        """What calls the models. It is not stored: the cycle of references would keep ended runs until a collection."""
        services = self.services
        return ModelCaller(
            self.agent,
            services.generation.settings,
            services.clients,
            self.budget,
            services.spans,
            services.meters,
            self.content,
            context=self,
            sources=services.generation.external.declared,
            outgrown=self.outgrown,
            failed_models=services.failed_models,
        )

    @abstractmethod
    async def delegate(
        self, key: str, agent: Agent, message: str, inputs: Mapping[str, Any]
    ) -> tuple[tuple[Confirmation, ...], RunState]:
        """Run a sub-agent, or continue its run.

        Args:
            key: identifies the sub-run within this run.
            agent: the sub-agent.
            message: its user message.
            inputs: values of its declared inputs.

        Returns:
            The confirmations it waits for, empty once it has ended, and its state.
        """

    @abstractmethod
    async def call_tool(self, call: ToolCall) -> tuple[Confirmation, ...]:
        """Execute a call that no model message requested; return the confirmations that it needs first, if any.

        Its result is in `state.calls`.
        """

    def cut_results(self, chars: int) -> bool:
        """Let further requests contain at most so many characters of each tool result; return whether that is new."""
        if self.result_chars is not None and self.result_chars <= chars:
            return False
        self.result_chars = chars
        return True

    # --- tools in requests

    def tool_definitions(self) -> tuple[ToolDefinition, ...]:
        """Return the definitions of tools that requests contain: the agent's, then those that were added to the run.

        Returns the same object until a tool is added.
        """
        toolset, added, searchable = self.agent.toolset, self.state.added_tools, self.searchable_tools()
        if not added and searchable is toolset.deferred:
            return toolset.definitions
        if self._definitions[0] != len(added) or self._definitions[1] is not searchable:
            self._definitions = len(added), searchable, toolset.first_definitions(searchable, added)
        return self._definitions[2]

    def add_tools(self, names: Iterable[str]) -> list[str]:
        """Add tools to the further requests of this run, after the others; return the new ones, as far as they fit."""
        there = {*self.state.added_tools, *(tool.name for tool in self.tool_definitions())}
        new = [name for name in dict.fromkeys(names) if name not in there]
        fitting = new[: max(0, MAX_ADDED_TOOLS - len(self.state.added_tools))]
        self.state.added_tools.extend(fitting)
        return fitting

    def searchable_tools(self) -> frozenset[str]:
        """Return the names of the deferred tools that the pinned and live rules may allow.

        Returns the same object until the rules change.
        """
        policy, deferred = self.policy, self.agent.toolset.deferred
        agents = (*policy.parents, *policy.earlier, self.agent)
        if not deferred:
            return deferred
        live = [self.services.current_agent(agent.name) for agent in agents]
        if live[0] is self.agent and len(agents) == 1:
            return deferred
        if self._searchable is None or any(map(is_not, live, self._searchable[0])):
            tools = self.agent.toolset.offered
            self._searchable = live, frozenset(name for name in deferred if self.policy.may_allow(tools[name]))
        return self._searchable[1]

    # --- rules in force

    def hooks(self, place: HookPlace) -> Iterator[Extension]:
        """Yield the hooks of the version that the run is pinned to, then those only the live version has.

        Those of agents that handed the conversation over follow, except `before_run`, which they have called before.
        """
        agents = (self.agent, *(self.policy.earlier if place != "before_run" else ()))
        by_name: dict[str, Extension] = {}
        for version in (one for agent in agents for one in (agent, self.services.current_agent(agent.name)) if one):
            for hook in version.hooks.get(place, ()):
                by_name.setdefault(hook.name, hook)
        yield from by_name.values()

    @property
    def is_guarded(self) -> bool:
        """Whether `after_run` hooks check the output, so that no part of it is emitted before."""
        agents, current = (self.agent, *self.policy.earlier), self.services.current_agent  # asked for each token
        return any(one.hooks.get("after_run") for agent in agents for one in (agent, current(agent.name)) if one)

    def decision(self, confirmation_id: str) -> Decision | None:
        """Return a person's decision on a confirmation, or None if it is pending."""
        return self.services.root.decisions.get(confirmation_id)

    def confirmation_id(self, prefix: str, texts: Sequence[str], *, mark: str = "~", end: str = "") -> str:
        """Return the id of a confirmation: a decision counts only for the texts whose digests the id contains.

        Args:
            prefix: what the id starts with.
            texts: what the decision applies to; their digests follow the prefix.
            mark: put before each digest.
            end: what the id ends with.
        """
        return f"{prefix}{''.join(mark + content_digest(text) for text in texts)}{end}"

    # --- records, events and spans

    @property
    def system_prompt(self) -> str | None:
        """Text of the system message; None before the first request, without one, or if its template failed."""
        preamble = self.rendered.get("preamble")
        return preamble[0].content if preamble and preamble[0].role == "system" else None

    def span(
        self, name: str, kind: OpenInferenceKind, attributes: Mapping[str, Any], *, client: bool = False
    ) -> TraceSpan:
        """Open a span around a part of the run's work; `client` marks a call of another service."""
        if not self.services.spans.recording:
            return NOOP_SPAN
        return self.services.spans.span(name, kind, {names.AGENT: self.agent.name, **attributes}, client=client)

    async def emit(self, event: type[RunEvent], **payload: Any) -> None:
        """Emit an event to all listeners, after it is persisted."""
        journal, root = self.services.journal, self.services.root
        if journal.has_no_readers:
            root.seq += 1
        else:
            journal.append(next_event(root, event, path=self.state.path, **payload))

    async def warn(self, code: WarningCode, message: str, *, message_id: str | None = None) -> None:
        """Record a warning in the root run's state, log its code, and emit it.

        Args:
            code: a key of `WARNINGS`.
            message: what happened and what to do. It can contain content, so it is not logged.
            message_id: the message whose text is void because its model call failed.
        """
        warnings = self.services.root.warnings
        if sum(warning.code == code for warning in warnings) < MAX_WARNINGS_PER_CODE:
            warnings.append(RunWarning(code=code, message=message, path=self.state.path))
            log.warning("run %s agent=%s: %s: %s", self.state.run_id, self.agent.name, code, WARNINGS[code])
        await self.emit(Warned, code=code, message=message, message_id=message_id)

    def emit_text(self, kind: TextKind, message_id: str, text: str) -> None:
        """Send a piece of a text to readers without persisting it; hooks that check the output hold it back."""
        if not self.is_guarded:
            generation, path = self.services.root.generation, self.state.path
            self.services.hub.add_text(kind, text, generation=generation, path=path, message_id=message_id)

    def message_id(self, attempt: int = 1) -> str:
        """Return the id, in events, of the message that an attempt at the current model turn produces.

        Args:
            attempt: its number within the turn, from 1.
        """
        suffix = f"-{attempt}" if attempt > 1 else ""
        return ".".join(("msg", *self.state.path, str(self.state.steps))) + suffix

    @property
    def output_message_id(self) -> str:
        """Id, in events, of the message with the run's output: that of the last model call."""
        return self.last_message_id or self.message_id()

    async def save(self) -> None:
        """Persist the state of the whole run; raises StoreError."""
        await self.services.journal.save()

    def record(self, messages: Iterable[Message]) -> None:
        """Append messages that no model turn produced."""
        self.state.messages.extend(messages)

    def keep_answer(self, answer: BaseModel) -> None:
        """Keep the answer as an instance of the caller's type, until the result is built."""
        self._answer = answer

    @property
    def typed_answer(self) -> BaseModel | None:
        """The answer as an instance of the caller's type; None without one, or if hooks changed the output."""
        return self._answer if self.services.output_type and self.state.data is not None else None

    def end(self, finish_reason: str, output: str = "", error: BaseException | None = None) -> None:
        """Set in the state how the run ends."""
        state = self.state
        state.finish_reason, state.output = finish_reason, fix_surrogates(output)
        status = getattr(error, "http_status", 500)
        state.status = outcome_for(finish_reason, status).status
        state.error = state.stopped_by = None
        if error is not None:
            ours = isinstance(error, (AgentsdError, PromptError))
            message = redact(str(error)) if ours else "internal error; see the log"
            state.error = ErrorInfo(code=finish_reason, message=message, retryable=getattr(error, "retryable", False))

    # --- time

    def keep_time(self) -> None:
        """Add the active time of the run and its parents to their state, and apply a timeout that was lowered since.

        The time is persisted with the next step, so that a crash loses little of it.
        """
        if self.parent is not None:
            self.parent.keep_time()
        if self.deadline is None:
            return
        if perf_counter() - self._counted_at > CLOCK_DRIFT:
            self._count_time()
        if self.budget.limits is self.state.limits:  # none was lowered
            return
        left = self.budget.time_left()
        if left is None or self.deadline.expired():
            return
        due, now_due = self.deadline.when(), asyncio.get_running_loop().time() + left
        if due is None or now_due < due - CLOCK_DRIFT:
            self.deadline.reschedule(now_due)

    def time_remaining(self) -> float:
        """Return the seconds until this run, or a run that it is part of, must end; infinite without a timeout."""
        remaining = self.parent.time_remaining() if self.parent else math.inf
        if self.deadline and (due := self.deadline.when()) is not None:
            remaining = min(remaining, due - asyncio.get_running_loop().time())
        return remaining

    def _count_time(self) -> None:
        now = perf_counter()
        self.state.elapsed_ms += (now - self._counted_at) * 1000
        self._counted_at = now
