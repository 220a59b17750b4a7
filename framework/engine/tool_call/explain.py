"""Why an agent may or may not do something, without running anything: the same judgement as at a call."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framework.config.agents.compile import Agent
from framework.config.templates.samples import placeholders
from framework.config.templates.variables import HTTP_TOOL, RunVariables
from framework.engine.context.policy import Policy, Verdict, VerdictKind, evaluate
from framework.engine.tool_call.argument_repair import bind_arguments, normalize_arguments
from framework.llm.tokens import estimate_tokens
from framework.tools.base_folder import BaseFolder
from framework.tools.conditions import policy_views
from framework.tools.tool import Tool
from framework.types.errors import ToolError
from framework.types.http import HttpLimits


@dataclass(frozen=True, slots=True)
class ToolExplanation:
    """What the rules say of a tool."""

    tool: Tool
    offered: bool
    """The model is told of it."""
    verdict: Verdict
    """Of a call for which no condition holds, or of the call that was asked about."""
    conditions: tuple[tuple[VerdictKind, str], ...] = ()
    """What arguments change that, and to what."""

    @property
    def tokens(self) -> int:
        """About how many tokens each request spends on telling the model of it."""
        return estimate_tokens(json.dumps(self.tool.definition.model_dump(), ensure_ascii=False)) if self.offered else 0


def explain_tools(agent: Agent) -> list[ToolExplanation]:
    """All tools there are, by name."""
    return [explain_tool(agent, tool) for _, tool in sorted(agent.toolset.tools.items())]


def explain_tool(agent: Agent, tool: Tool) -> ToolExplanation:
    """One tool, whatever it is called with."""
    verdict = evaluate(agent, tool, {})
    conditions = tuple(_conditions(agent, tool)) if verdict.kind != "deny" else ()
    return ToolExplanation(tool, tool.name in agent.toolset.offered, verdict, conditions)


def explain_call(
    agent: Agent, tool: Tool, arguments: Mapping[str, Any], base: Path
) -> tuple[ToolExplanation, str | None]:
    """One call, and what is wrong with its arguments, if anything is.

    Args:
        agent: whose policy.
        tool: the tool to be called.
        arguments: as a model would give them.
        base: the folder that file tools work below.
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


def system_prompt(agent: Agent, locale: str, inputs: Mapping[str, Any], http: HttpLimits) -> str:
    """The first message of a new conversation; the message and inputs that are missing stand as their names.

    Raises:
        PromptError: a template cannot be rendered.
    """
    values = placeholders(agent.spec.inputs) | dict(inputs)
    run = RunVariables("<message>", http=http if HTTP_TOOL in agent.toolset.offered else None)
    guidance = agent.guidance(locale, agent.spec.runtime_policy, run)
    return f"{agent.instructions(locale, values, None, run)}\n\n{guidance}"


def _conditions(agent: Agent, tool: Tool) -> Iterator[tuple[VerdictKind, str]]:
    rules = agent.toolset.rules_for(tool.name)
    for kind, placed in [("deny", rule) for rule in rules.deny] + [("ask", rule) for rule in rules.ask]:
        if placed.rule.when:
            when = " and ".join(f"{name} {condition}" for name, condition in placed.rule.when.items())
            reason = f": {placed.rule.reason}" if placed.rule.reason else ""
            yield ("deny" if kind == "deny" else "ask"), f"when {when} ({placed.place}){reason}"
