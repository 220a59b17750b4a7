"""The model clients of a process: one for each name that agents use, made when it is first asked."""

from __future__ import annotations

import os
from collections.abc import Mapping

from framework.config.agents.compile import Agent
from framework.config.agents.models import unknown_model
from framework.config.settings import SETTINGS_FILE, ModelAlias, Settings
from framework.engine.context.circuit_breaker import CircuitBreakers
from framework.llm.client import ModelClient
from framework.llm.json_protocol.client import with_protocol
from framework.llm.providers import OFFLINE, PROVIDERS, create_client
from framework.types.errors import ConfigError, RequestError
from framework.types.text import did_you_mean


class ModelClients:
    """Finds an agent's model: a client of the embedding program, an alias of the settings, or `provider/model`."""

    def __init__(self, clients: Mapping[str, ModelClient]) -> None:
        self.breakers = CircuitBreakers()
        self._own = dict(clients)
        self._connected: dict[tuple[str, ModelAlias | None], ModelClient] = {}

    def for_agent(self, settings: Settings, agent: Agent, name: str | None = None) -> ModelClient:
        """The client of an agent, or another one for it, in its protocol; raises ConfigError when it has no key."""
        return with_protocol(self.get(settings, name or agent.spec.model or settings.model), agent.spec.protocol)

    def get(self, settings: Settings, name: str) -> ModelClient:
        """The client of a name that agent files use; raises ConfigError when it has no key."""
        if name in self._own:
            return self._own[name]
        alias = settings.models.get(name)
        if (client := self._connected.get((name, alias))) is None:
            client = self._connected[name, alias] = self._connect(name, alias, settings)
        return client

    def require_known(self, settings: Settings, name: str) -> None:
        """Raise RequestError unless a caller's model is one that agent files could name."""
        known = {OFFLINE, *(f"{provider.name}/" for provider in PROVIDERS), *self._own, *settings.models}
        if problem := unknown_model(name, known):
            raise RequestError(f"{problem}: write provider/model, or an alias from {SETTINGS_FILE}")

    def _connect(self, name: str, alias: ModelAlias | None, settings: Settings) -> ModelClient:
        if alias is None:
            if "/" not in name and name != OFFLINE:
                known = did_you_mean(name, sorted({OFFLINE, *self._own, *settings.models}))
                raise ConfigError(f"there is no model {name!r}: write PROVIDER/MODEL, or an alias{known}")
            return create_client(name, environ=os.environ)
        key = alias.api_key.get_secret_value() if alias.api_key else None
        return create_client(
            alias.model, base_url=alias.base_url, api_key=key, capabilities=alias.capabilities, environ=os.environ
        )

    async def close(self) -> None:
        """Give all connections back."""
        for client in (*self._own.values(), *self._connected.values()):
            await client.close()
