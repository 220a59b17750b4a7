"""The clients of models that runs share: circuit breakers, names and fallbacks, and their attributes in traces."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Protocol

from framework.config.agents.compile import Agent
from framework.config.agents.models import unknown_model_message
from framework.config.overlay import SETTINGS_FILE
from framework.config.settings import ModelAlias, Settings
from framework.engine.context.events import TextKind
from framework.engine.context.policy import Budget
from framework.llm.client import ModelClient, ModelInfo, ModelRequest, ProbingClient
from framework.llm.json_protocol import with_protocol
from framework.llm.message_shape import ToolsetCache, message_tokens, tool_tokens
from framework.llm.providers import OFFLINE, PROVIDERS, create_client, environment_of
from framework.telemetry import names
from framework.telemetry.content import Content
from framework.telemetry.metrics import RunMetrics
from framework.telemetry.spans import Spans
from framework.types.errors import ConfigError, RequestError
from framework.types.messages import Usage
from framework.types.report import WarningCode
from framework.types.text import did_you_mean

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
            after: number of failures in a row that begin a cooldown.
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
        self.begin_with_thoughts: set[str] = set()
        """Models whose last streamed reply began with thoughts and had their end tag only."""
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
