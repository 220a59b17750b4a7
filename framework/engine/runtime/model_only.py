"""Asks the model of an agent alone: no instructions, no tools, and nothing is recorded."""

from __future__ import annotations

from framework.config.generations.catalog import Catalog
from framework.engine.run_trace import RunTrace
from framework.engine.runtime.launcher import Launcher
from framework.engine.runtime.request import RunOptions, check_request, initial_state
from framework.engine.runtime.result import finish_run
from framework.engine.runtime.start import select_agent
from framework.types.messages import Message
from framework.types.state import RunResult


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
