"""The limits of `work.max_running` that apply to a run."""

from __future__ import annotations

from framework.config.agents.compile import Agent
from framework.config.settings import Settings
from framework.types.state import RunState


def limits_of(state: RunState, agent: Agent, settings: Settings) -> dict[str, int]:
    """Return the numbers of runs in progress from which a submitted run waits, by key; see `MaxRunning.limits`."""
    name = state.model or agent.spec.model or settings.model
    alias = settings.models.get(name)
    models = {name, alias.model} if alias else {name}
    return settings.work.max_running.limits(agent.name, models, state.tenant)
