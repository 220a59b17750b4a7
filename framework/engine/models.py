"""The model clients of a process: one for each name that agents use, made when it is first asked."""

from __future__ import annotations

import os
from collections.abc import Mapping

from framework.config.compile import Agent
from framework.config.settings import Settings
from framework.llm.client import ModelClient
from framework.llm.providers import connect


class Models:
    """Finds an agent's model: a client of the embedding program, an alias of the settings, or `provider/model`."""

    def __init__(self, clients: Mapping[str, ModelClient], settings: Settings) -> None:
        self._clients = dict(clients)
        self._settings = settings

    def of(self, agent: Agent) -> ModelClient:
        """The client of an agent; raises ConfigError when it has no key."""
        return self.named(agent.spec.model or self._settings.model)

    def named(self, name: str) -> ModelClient:
        """The client of a name that agent files use; raises ConfigError when it has no key."""
        if name not in self._clients:
            self._clients[name] = self._connect(name)
        return self._clients[name]

    def _connect(self, name: str) -> ModelClient:
        alias = self._settings.models.get(name)
        if alias is None:
            return connect(name, environ=os.environ)
        key = alias.api_key.get_secret_value() if alias.api_key else None
        return connect(alias.model, base_url=alias.base_url, api_key=key, environ=os.environ)

    async def close(self) -> None:
        """Give all connections back."""
        for client in self._clients.values():
            await client.close()
