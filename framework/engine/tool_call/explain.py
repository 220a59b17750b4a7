"""Explains what an agent may do: evaluates the policy as for a real call, without executing anything."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framework.config.agents.compile import Agent
from framework.config.templates.samples import placeholders
from framework.config.templates.variables import HTTP_TOOL, RunVariables
from framework.engine.context.policy import Policy, Verdict, VerdictKind, agent_verdict
from framework.engine.tool_call.argument_repair import bind_arguments, normalize_arguments
from framework.llm.capabilities import Capabilities
from framework.llm.json_protocol.client import needs_json_protocol
from framework.llm.tokens import estimate_tokens
from framework.tools.base_folder import BaseFolder
from framework.tools.conditions import policy_views
from framework.tools.tool import Tool
from framework.types.errors import ToolError
from framework.types.http import HttpLimits


@dataclass(frozen=True, slots=True)
class ToolExplanation:
    """The policy's verdict on a tool."""

    tool: Tool
    offered: bool
    """Whether the model is offered the tool."""
    verdict: Verdict
    """The verdict on a call that meets no condition, or on the explained call."""
    conditions: tuple[tuple[VerdictKind, str], ...] = ()
    """Verdicts for calls that meet a condition, with a description of that condition."""

    @property
    def tokens(self) -> int:
        """Estimated tokens of the tool's definition in each request."""
        return estimate_tokens(json.dumps(self.tool.definition.model_dump(), ensure_ascii=False)) if self.offered else 0


def explain_tools(agent: Agent) -> list[ToolExplanation]:
    """Explain every tool, sorted by name."""
    return [explain_tool(agent, tool) for _, tool in sorted(agent.toolset.tools.items())]


def explain_tool(agent: Agent, tool: Tool) -> ToolExplanation:
    """Explain one tool, for any arguments."""
    verdict = agent_verdict(agent, tool, {})
    conditions = tuple(_conditions(agent, tool)) if verdict.kind != "deny" else ()
    return ToolExplanation(tool, tool.name in agent.toolset.offered, verdict, conditions)


def explain_call(
    agent: Agent, tool: Tool, arguments: Mapping[str, Any], base: Path
) -> tuple[ToolExplanation, str | None]:
    """Explain one call; also return the error in its arguments, or None if they are valid.

    Args:
        agent: the agent whose policy applies.
        tool: the tool to call.
        arguments: the arguments as a model would pass them.
        base: the base directory of file tools.
    """
    policy = Policy(agent, lambda _: agent, base=BaseFolder(base))
    repaired = normalize_arguments(tool, arguments, base, agent).arguments
    argument_views, error_message = policy_views(tool, repaired), None
    try:
        argument_views = policy_views(tool, repaired, bind_arguments(tool, repaired, base))
    except ToolError as error:
        error_message = error.message
    verdict = policy.evaluate(tool, *argument_views)
    return ToolExplanation(tool, tool.name in agent.toolset.offered, verdict), error_message


def system_prompt(
    agent: Agent, locale: str, inputs: Mapping[str, Any], http: HttpLimits, capabilities: Capabilities
) -> str:
    """Return the first message of a new conversation, with placeholders for the user's message and missing inputs.

    Args:
        agent: the agent.
        locale: the language of its templates.
        inputs: values of its inputs.
        http: the operator's limits of `http_request`.
        capabilities: what its model can do.

    Raises:
        PromptError: a template cannot be rendered.
    """
    values = placeholders(agent.spec.inputs) | dict(inputs)
    run = RunVariables(
        "<message>",
        http=http if HTTP_TOOL in agent.toolset.offered else None,
        parallel_calls=not needs_json_protocol(agent.spec.protocol, capabilities),
    )
    parts = agent.instructions(locale, values, None, run), agent.guidance(locale, agent.spec.runtime_policy, run)
    return "\n\n".join(part for part in parts if part)


def _conditions(agent: Agent, tool: Tool) -> Iterator[tuple[VerdictKind, str]]:
    rules = agent.toolset.rules_for(tool.name)
    for kind, placed in [("deny", rule) for rule in rules.deny] + [("ask", rule) for rule in rules.ask]:
        if placed.rule.when:
            when = " and ".join(f"{name} {condition}" for name, condition in placed.rule.when.items())
            reason = f": {placed.rule.reason}" if placed.rule.reason else ""
            yield ("deny" if kind == "deny" else "ask"), f"when {when} ({placed.place}){reason}"
