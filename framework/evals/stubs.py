"""Makes a case free of side effects: the part of a generation that one agent needs, with stubs for tools and models.

Only read-only lookups are executed: tools with low risk that are idempotent and run in this process. Every other tool
is a stub that returns the case's `results`, or a fixed sentence. Rules and limits are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from copy import copy
from dataclasses import dataclass, fields, replace
from typing import Any

from framework.config.agents.compile import Agent
from framework.config.agents.external_tools import ExternalTools
from framework.config.generations.generation import Generation
from framework.config.settings import Settings
from framework.tools.tool import Tool, ToolContext
from framework.types.case import Failure
from framework.types.errors import ToolError

_NOT_EXECUTED = "(not executed in a test)"
_LOCAL_SOURCES = ("builtin", "plugin", "python")
"""Sources of tools that may be executed; tools of external servers never are."""

Answers = Sequence[str | Failure]


@dataclass(frozen=True, slots=True, kw_only=True)
class StubTool(Tool):
    """A stub: to policy and model it looks like the real tool, but it returns given answers and is never executed."""

    answers: Iterator[str | Failure]

    async def invoke(  # the signature is Tool's
        self,
        bound: Mapping[str, Any],  # noqa: ARG002
        context: Callable[[], ToolContext],  # noqa: ARG002
        threads: Executor | None,  # noqa: ARG002
    ) -> Any:
        """Return the next answer; raise ToolError if it is a failure."""
        answer = next(self.answers)
        if isinstance(answer, Failure):
            raise ToolError(answer.fail)
        return answer


def sandboxed(generation: Generation, agent: str, model: str, results: Mapping[str, Answers]) -> Generation:
    """Return the generation for a case: an agent and its sub-agents, on one model, with stubs for unsafe tools.

    Args:
        generation: the generation with the agents; it is not changed.
        agent: name of the agent under test.
        model: name of the model that all agents use.
        results: answers of stubs, by tool name.
    """
    tools = {name: stub_unless_safe(tool, results.get(name)) for name, tool in generation.tools.items()}
    agents = {
        name: _sandboxed_agent(generation.agents[name], model, tools) for name in reachable_agents(generation, agent)
    }
    settings = without_router_model(generation.settings)
    return replace(generation, agents=agents, tools=tools, external=ExternalTools(), settings=settings)


def without_router_model(settings: Settings) -> Settings:
    """Return the settings without `routing.model`."""
    return settings.model_copy(update={"routing": settings.routing.model_copy(update={"model": None})})


def without_budgets(agent: Agent) -> Agent:
    """Return the agent without its shared budgets: a test or a replay neither uses them nor is stopped by them."""
    return replace(agent, spec=agent.spec.model_copy(update={"budgets": ()}))


def stub_unless_safe(tool: Tool, answers: Answers | None) -> Tool:
    """Return the tool itself if it is safe in a test and has no given answers, else a stub."""
    is_safe = tool.risk == "low" and tool.idempotent and tool.source in _LOCAL_SOURCES
    if is_safe and answers is None:
        return tool
    values = {field.name: getattr(tool, field.name) for field in fields(Tool) if field.init}
    return StubTool(**values | {"rate": None, "needs": {}}, answers=_in_sequence(answers or (_NOT_EXECUTED,)))


def _in_sequence(answers: Answers) -> Iterator[str | Failure]:
    yield from answers
    while True:
        yield answers[-1]


def reachable_agents(generation: Generation, agent: str) -> list[str]:
    """Return the agent's name, with the names of all its direct and indirect sub-agents."""
    names = [agent]
    for name in names:
        subs = generation.agents[name].spec.sub_agents
        names.extend(sub for sub in subs if sub in generation.agents and sub not in names)
    return names


def _sandboxed_agent(agent: Agent, model: str, tools: Mapping[str, Tool]) -> Agent:
    toolset = copy(agent.toolset)
    toolset.tools = {name: _safe_tool(tool, tools) for name, tool in agent.toolset.tools.items()}
    toolset.offered = {name: toolset.tools[name] for name in agent.toolset.offered}
    return replace(without_budgets(agent.on_model(model)), toolset=toolset, hooks={})


def _safe_tool(tool: Tool, tools: Mapping[str, Tool]) -> Tool:
    """Return a sub-agent's tool unchanged, else its safe version; a stale agent may have a removed tool."""
    return tool if tool.source == "agent" else tools.get(tool.name) or stub_unless_safe(tool, None)
