"""What is put right in a model's arguments before anybody judges them, and how it is told what it must put right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from framework.config.compile import Agent
from framework.engine.warning import warn
from framework.tools.arguments import ArgumentsError
from framework.tools.repairs import Repaired, repair_arguments
from framework.tools.tool import Tool
from framework.types.messages import ToolCall
from framework.types.plan import PlanDraft

if TYPE_CHECKING:
    from framework.engine.run import Run


async def repaired_call(run: Run, call: ToolCall, tool: Tool) -> ToolCall:
    """The call as it is judged, shown and made; told once, also where it is looked at again after a pause."""
    repaired = _repaired(run, tool, call.arguments)
    if not (notes := repaired.notes):
        return call
    record = run.state.calls[call.id]
    if not record.repairs:
        run.state.calls[call.id] = record.model_copy(update={"repairs": notes})
        await _tell(run, tool, notes)
    return call.model_copy(update={"arguments": repaired.arguments})


async def repaired_plan(run: Run, draft: PlanDraft) -> PlanDraft:
    """A plan as it is checked, shown and worked off."""
    steps = []
    for step in draft.steps:
        tool = run.agent.toolset.tools.get(step.tool or "")
        repaired = _repaired(run, tool, step.parameters) if tool else Repaired(step.parameters)
        if tool and repaired.notes:
            await _tell(run, tool, [f"step {step.id}: {note}" for note in repaired.notes])
        steps.append(step.model_copy(update={"parameters": repaired.arguments}))
    return draft.model_copy(update={"steps": tuple(steps)})


def findings_of(error: ArgumentsError) -> list[dict[str, Any]]:
    """What `error.j2` gets as `findings`: plain data, one entry a field."""
    return [{**asdict(finding), "fix": finding.fix} for finding in error.findings]


def put_right(tool: Tool, arguments: Mapping[str, Any], *agents: Agent | None) -> Repaired:
    """Repair arguments, unless one of the agents is strict."""
    if any(agent is not None and agent.spec.runtime_policy.strict_arguments for agent in agents):
        return Repaired(dict(arguments))
    return repair_arguments(tool.definition.parameters, arguments)


def _repaired(run: Run, tool: Tool, arguments: Mapping[str, Any]) -> Repaired:
    """By the version that the run is pinned to and the one that is live: strictness holds at once."""
    return put_right(tool, arguments, run.agent, run.services.current_agent(run.agent.name))


async def _tell(run: Run, tool: Tool, notes: Sequence[str]) -> None:
    message = f"the arguments of {tool.name} were put right: {'; '.join(notes)}"
    await warn(run, "arguments_repaired", message)
