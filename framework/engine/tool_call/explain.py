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
from framework.llm.json_protocol import needs_json_protocol
from framework.llm.request_cache import estimate_tokens
from framework.tools.base_folder import BaseFolder
from framework.tools.conditions import policy_views
from framework.tools.tool import Tool
from framework.tools.toolset import PlacedRule
from framework.types.errors import ToolError
from framework.types.http import HttpLimits


@dataclass(frozen=True, slots=True)
class ConditionalVerdict:
    """The policy's verdict on calls of a tool whose arguments meet a condition."""

    condition: str
    """Such as `amount > 50`."""
    verdict: Verdict

    def __str__(self) -> str:
        because = f": {self.verdict.reason}" if self.verdict.reason else ""
        return f"when {self.condition} ({self.verdict.place}){because}"


@dataclass(frozen=True, slots=True)
class ToolExplanation:
    """The policy's verdict on a tool."""

    tool: Tool
    offered: bool
    """Whether the model is offered the tool."""
    verdict: Verdict
    """The verdict on a call that meets no condition, or on the explained call."""
    conditions: tuple[ConditionalVerdict, ...] = ()
    """Verdicts on calls that meet a condition."""

    @property
    def tokens(self) -> int:
        """Estimated tokens of the tool's definition in each request."""
        return estimate_tokens(json.dumps(self.tool.definition.model_dump(), ensure_ascii=False)) if self.offered else 0


def explain_tools(agent: Agent) -> list[ToolExplanation]:
    """Explain every tool, sorted by name."""
    return [explain_tool(agent, tool) for _, tool in sorted(agent.toolset.tools.items())]


def explain_tool(agent: Agent, tool: Tool) -> ToolExplanation:
    """Explain one tool, for any arguments."""
    offered = tool.name in agent.toolset.offered
    return ToolExplanation(
        tool, offered, agent_verdict(agent, tool, {}), tuple(_conditions(agent, tool)) if offered else ()
    )


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


def _conditions(agent: Agent, tool: Tool) -> Iterator[ConditionalVerdict]:
    """Yield the rules that apply to some arguments only, in the order in which the policy evaluates them."""
    rules, files = agent.toolset.rules_for(tool.name), agent.spec.skill_policy.files.deny
    yield from (_conditional("deny", placed) for placed in rules.deny if placed.rule.when)
    if files and (tool.paths or tool.urls):
        place = agent.place("skill_policy", "files", "deny")
        yield ConditionalVerdict(f"a file matches {' or '.join(files)}", Verdict("deny", "files.deny", place))
    yield from (_conditional("ask", placed) for placed in rules.ask if placed.rule.when)


def _conditional(kind: VerdictKind, placed: PlacedRule) -> ConditionalVerdict:
    condition = " and ".join(f"{name} {expected}" for name, expected in placed.rule.when.items())
    verdict = Verdict(kind, f"{kind} {placed.rule.tool}", placed.place, placed.rule.reason)
    return ConditionalVerdict(condition, verdict)
