"""Limits on the number of runs that are in progress at a time: the setting `work.max_running`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from pydantic import Field

from framework.types.frozen import Frozen
from framework.types.spec import AgentName

_Limit = Annotated[int, Field(ge=1, le=100_000)]


class MaxRunning(Frozen):
    """How many submitted runs may be in progress at a time, in all processes of a store together."""

    agents: dict[AgentName, _Limit] = {}
    """Limit of each agent, by name. The runs of its sub-agents count for the agent that was called first."""
    models: dict[str, _Limit] = {}
    """Limit of each model, by the name in agent files, or by the `provider/model` of an alias. Runs whose agent has
    this model count, whatever models they fall back to."""
    tenant: _Limit | None = None
    """Limit of each tenant. Runs without a tenant share one."""

    def limits(self, agent: str, models: Collection[str], tenant: str | None) -> dict[str, int]:
        """Return the limits that apply to a run, by key: `agent:NAME`, `model:NAME` and `tenant:ID`.

        Args:
            agent: the run's agent.
            models: the names of the agent's model: the one in its file and, of an alias, that of the model itself.
            tenant: the run's tenant.
        """
        limits = {f"model:{name}": self.models[name] for name in models if name in self.models}
        if agent in self.agents:
            limits[f"agent:{agent}"] = self.agents[agent]
        if self.tenant is not None:
            limits[f"tenant:{tenant or ''}"] = self.tenant
        return limits

    def allowed(self, key: str) -> int | None:
        """Return the limit with a key of `limits`; None if there is none."""
        kind, _, name = key.partition(":")
        if kind == "tenant":
            return self.tenant
        return (self.agents if kind == "agent" else self.models).get(name)
