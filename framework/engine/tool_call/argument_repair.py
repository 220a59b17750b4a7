"""What is put right in a model's arguments before anybody judges them, and how it is told what it must put right."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from framework.config.agents.compile import Agent
from framework.engine.context.run_context import RunContext
from framework.tools.locations import canonical_arguments, require_canonical
from framework.tools.schema.arguments import ArgumentsError
from framework.tools.schema.repairs import RepairedArguments, repair_arguments
from framework.tools.tool import Tool
from framework.types.messages import ToolCall
from framework.types.plan import PlanDraft
from framework.types.strict_json import has_more_values

T = TypeVar("T")

MAX_VALUES_IN_LOOP = 5_000
"""Values in arguments that are repaired in the event loop: about 15 ms."""


async def repair_call(run: RunContext, call: ToolCall, tool: Tool) -> ToolCall:
    """The call as it is judged, shown and made; told once, also where it is looked at again after a pause."""
    repaired = await _normalize(run, tool, call.arguments)
    if not (notes := repaired.notes):
        return call
    record = run.state.calls[call.id]
    if not record.repairs:
        run.state.calls[call.id] = record.model_copy(update={"repairs": notes})
        await _warn_of_repairs(run, tool, notes)
    return call.model_copy(update={"arguments": repaired.arguments})


async def repair_plan(run: RunContext, draft: PlanDraft) -> PlanDraft:
    """A plan as it is checked, shown and worked off."""
    steps = []
    for step in draft.steps:
        tool = run.agent.toolset.tools.get(step.tool or "")
        repaired = await _normalize(run, tool, step.parameters) if tool else RepairedArguments(step.parameters)
        if tool and repaired.notes:
            await _warn_of_repairs(run, tool, [f"step {step.id}: {note}" for note in repaired.notes])
        steps.append(step.model_copy(update={"parameters": repaired.arguments}))
    return draft.model_copy(update={"steps": tuple(steps)})


def findings_as_data(error: ArgumentsError) -> list[dict[str, Any]]:
    """What `error.j2` gets as `findings`: plain data, one entry a field."""
    return [{**asdict(finding), "fix": finding.fix} for finding in error.findings]


def normalize_arguments(
    tool: Tool, arguments: Mapping[str, Any], base: Path, *agents: Agent | None
) -> RepairedArguments:
    """Write paths and URLs in their canonical form, and repair the rest unless one of the agents is strict.

    Args:
        tool: the tool to be called.
        arguments: as the model, or a human, gave them.
        base: the folder that paths are relative to.
        *agents: those whose file may say `strict_arguments`.
    """
    if any(agent is not None and agent.spec.runtime_policy.strict_arguments for agent in agents):
        repaired = RepairedArguments(dict(arguments))
    else:
        repaired = repair_arguments(tool.definition.parameters, arguments)
    if not tool.paths and not tool.urls:
        return repaired
    canonical = canonical_arguments(tool, repaired.arguments, base)
    return RepairedArguments(canonical.arguments, (*repaired.notes, *canonical.notes))


def bind_arguments(tool: Tool, arguments: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """The arguments as the tool gets them; relative paths are below the folder `base`.

    Raises:
        ArgumentsError: they do not fit its schema.
        ToolError: a path or URL among them has no canonical form, such as one with `..`.
    """
    bound = tool.bind(arguments)
    require_canonical(tool, bound, base)
    return bound


async def call_off_loop(value: Any, function: Callable[[], T]) -> T:
    """Call a function of a value in a worker thread if the value is large, so that other runs continue meanwhile."""
    return await asyncio.to_thread(function) if has_more_values(value, MAX_VALUES_IN_LOOP) else function()


async def _normalize(run: RunContext, tool: Tool, arguments: Mapping[str, Any]) -> RepairedArguments:
    """By the version that the run is pinned to and the one that is live: strictness holds at once."""
    agents = (run.agent, run.services.current_agent(run.agent.name))
    return await call_off_loop(
        arguments, partial(normalize_arguments, tool, arguments, run.services.base_path, *agents)
    )


async def _warn_of_repairs(run: RunContext, tool: Tool, notes: Sequence[str]) -> None:
    message = f"the arguments of {tool.name} were put right: {'; '.join(notes)}"
    await run.warn("arguments_repaired", message)
