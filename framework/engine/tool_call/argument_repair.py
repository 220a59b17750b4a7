"""Normalizes and repairs a model's arguments before the policy is evaluated, and reports what it must correct."""

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
from framework.tools.schema.json_schema import RepairedArguments, repair_arguments
from framework.tools.tool import Tool
from framework.tools.toolset import Toolset
from framework.types.messages import ToolCall, original_keys
from framework.types.plan import PlanDraft
from framework.types.strict_json import has_more_values
from framework.types.text import shorten

T = TypeVar("T")

MAX_VALUES_IN_LOOP = 5_000
"""Number of values up to which arguments are repaired in the event loop; this takes about 15 ms."""


async def repair_call(run: RunContext, call: ToolCall, tool: Tool) -> ToolCall:
    """Return the call with repaired arguments; the repairs are reported once, also if the run resumes in between.

    The repair of the tool's name, which `normalize_message` made, is reported with them.
    """
    repaired = await _normalize(run, tool, call.arguments)
    written = run.state.misspelt.pop(call.id, None)
    notes = repaired.notes if written is None else (f"name: {shorten(written, 80)!r} is {tool.name}", *repaired.notes)
    if not notes:
        same_names = repaired.arguments.keys() == call.arguments.keys()
        return call if same_names else call.model_copy(update={"arguments": repaired.arguments})
    record = run.state.calls[call.id]
    if not record.repairs:
        run.state.calls[call.id] = record.model_copy(update={"repairs": notes})
        await _warn_of_repairs(run, tool, notes, "arguments" if written is None else "call")
    return call.model_copy(update={"arguments": repaired.arguments})


async def repair_plan(run: RunContext, draft: PlanDraft) -> PlanDraft:
    """Return the plan with the names and parameters of the tools of its steps repaired, as in calls."""
    toolset, steps = run.agent.toolset, []
    for step in draft.steps:
        tool = _meant_by(toolset, step.tool) if step.tool else None
        repaired = await _normalize(run, tool, step.parameters) if tool else RepairedArguments(step.parameters)
        changed: dict[str, Any] = {"parameters": repaired.arguments}
        notes = list(repaired.notes)
        if tool and tool.name != step.tool:
            changed["tool"] = tool.name
            if tool.definition.wire_name != step.tool:
                notes.insert(0, f"name: {shorten(step.tool or '', 80)!r} is {tool.name}")
        if tool and notes:
            what = "arguments" if len(notes) == len(repaired.notes) else "call"
            await _warn_of_repairs(run, tool, [f"step {step.id}: {note}" for note in notes], what)
        if step.tools:
            allowed = ((name, _meant_by(toolset, name)) for name in step.tools)
            changed["tools"] = tuple(meant.name if meant else name for name, meant in allowed)
        steps.append(step.model_copy(update=changed))
    return draft.model_copy(update={"steps": tuple(steps)})


def _meant_by(toolset: Toolset, name: str) -> Tool | None:
    """Return the tool with a name, with that name in an API, or the only one that it can mean."""
    return toolset.tools.get(name) or toolset.by_wire_name(name) or toolset.by_misspelt_name(name)


def findings_as_data(error: ArgumentsError) -> list[dict[str, Any]]:
    """Return the value of `findings` in `error.j2`: one dict per invalid field."""
    return [{**asdict(finding), "fix": finding.fix} for finding in error.findings]


def normalize_arguments(
    tool: Tool, arguments: Mapping[str, Any], base: Path, *agents: Agent | None
) -> RepairedArguments:
    """Convert paths and URLs to their canonical form, and repair other values unless an agent is strict.

    Names that had to be changed for a provider are restored first.

    Args:
        tool: the tool to call.
        arguments: the arguments from the model or a person.
        base: the base directory of relative paths.
        *agents: agents whose `strict_arguments` setting applies.
    """
    schema = tool.definition.parameters
    arguments = original_keys(arguments, schema.get("properties", {}))
    if any(agent is not None and agent.spec.runtime_policy.strict_arguments for agent in agents):
        repaired = RepairedArguments(dict(arguments))
    else:
        repaired = repair_arguments(schema, arguments)
    if not tool.paths and not tool.urls:
        return repaired
    canonical = canonical_arguments(tool, repaired.arguments, base)
    return RepairedArguments(canonical.arguments, (*repaired.notes, *canonical.notes))


def bind_arguments(tool: Tool, arguments: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Return the arguments as passed to the tool; relative paths are below the directory `base`.

    Raises:
        ArgumentsError: the arguments do not fit the tool's schema.
        ToolError: a path or URL has no canonical form, such as one with `..`.
    """
    bound = tool.bind(arguments)
    require_canonical(tool, bound, base)
    return bound


async def call_off_loop(value: Any, function: Callable[[], T]) -> T:
    """Call `function` in a worker thread if `value`, which it works on, is large, so as not to block other runs."""
    return await asyncio.to_thread(function) if has_more_values(value, MAX_VALUES_IN_LOOP) else function()


async def _normalize(run: RunContext, tool: Tool, arguments: Mapping[str, Any]) -> RepairedArguments:
    """Normalize by the pinned and the live version of the agent: a stricter live version applies immediately."""
    agents = (run.agent, run.services.current_agent(run.agent.name))
    return await call_off_loop(
        arguments, partial(normalize_arguments, tool, arguments, run.services.base_path, *agents)
    )


async def _warn_of_repairs(run: RunContext, tool: Tool, notes: Sequence[str], what: str = "arguments") -> None:
    verb = "was" if what == "call" else "were"
    message = f"the {what} of {tool.name} {verb} repaired: {'; '.join(notes)}"
    await run.warn("arguments_repaired", message)
