"""The built-in executors: `react`, `plan`, and `auto`, which lets a model choose one of the two."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from framework.config.agents.extensions import BUILTIN_EXECUTORS
from framework.engine.model_call.turn import call_model
from framework.engine.plan.executor import plan
from framework.engine.react import react
from framework.engine.routing.by_model import choose_agent
from framework.engine.run import Executor, Run
from framework.types.errors import ModelError
from framework.types.events import Routed


async def auto(run: Run) -> str:
    """Run the executor that suits the request: chosen once, by the router's model or by one model call."""
    if not run.state.executor:
        run.state.executor = await _choose_executor(run)
    return await (plan(run) if run.state.executor == "plan" else react(run))


async def _choose_executor(run: Run) -> str:
    model = run.services.generation.settings.routing.model
    name = run.agent.name
    try:
        await run.model_caller.probe(model)
        primary = run.model_caller.primary(model)
        call = partial(call_model, run, primary=primary)
        choice = await choose_agent(run.state.messages[0].description, {name: run.agent}, primary.info, call)
    except ModelError as error:
        await run.warn("routing", f"the executor could not be chosen ({error.message}); using react")
        return "react"
    reason = f"executor {choice.executor}{': ' + choice.reason if choice.reason else ''}"
    await run.emit(Routed, agent=name, reason=reason, confidence=choice.confidence, executor=choice.executor)
    return choice.executor


EXECUTORS: Mapping[str, Executor] = dict(zip(BUILTIN_EXECUTORS, (react, plan, auto), strict=True))
