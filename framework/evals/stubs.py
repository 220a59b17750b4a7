"""What makes a case harmless: the part of a generation that one agent needs, with a model and tools safe in a test.

Only tools that look something up run for real: of low risk, harmless to repeat, and of this process. Everything else is
a stand-in that answers with the case's `results`, or with a neutral sentence. Rules and limits stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
"""Where tools come from that may run for real; those of servers elsewhere never do."""

Answers = Sequence[str | Failure]


@dataclass(frozen=True, slots=True, kw_only=True)
class StubTool(Tool):
    """A tool that policy and model see as it is, and that is never carried out."""

    answers: Iterator[str | Failure]

    async def invoke(self, bound: Mapping[str, Any], context: ToolContext, threads: Executor | None) -> Any:  # noqa: ARG002 - the signature is Tool's
        """The next answer; raises ToolError where it is a failure."""
        answer = next(self.answers)
        if isinstance(answer, Failure):
            raise ToolError(answer.fail)
        return answer


def sandboxed(generation: Generation, agent: str, model: str, results: Mapping[str, Answers]) -> Generation:
    """The generation as a case sees it: an agent and whom it may call, all on one model.

    Args:
        generation: where the agents come from; it is not changed.
        agent: the agent that the case is about.
        model: the name of the model that all of them use.
        results: what tools answer instead of being called, by name.
    """
    tools = {name: stub_unless_safe(tool, results.get(name)) for name, tool in generation.tools.items()}
    agents = {
        name: _sandboxed_agent(generation.agents[name], model, tools) for name in reachable_agents(generation, agent)
    }
    settings = without_router_model(generation.settings)
    return replace(generation, agents=agents, tools=tools, external=ExternalTools(), settings=settings)


def without_router_model(settings: Settings) -> Settings:
    """The settings without a model of the router's: agents have theirs."""
    return settings.model_copy(update={"routing": settings.routing.model_copy(update={"model": None})})


def stub_unless_safe(tool: Tool, answers: Answers | None) -> Tool:
    """The tool itself if it may run in a test and has no answers of its own, else a stand-in."""
    is_safe = tool.risk == "low" and tool.idempotent and tool.source in _LOCAL_SOURCES
    if is_safe and answers is None:
        return tool
    values = {field.name: getattr(tool, field.name) for field in fields(Tool)}
    return StubTool(**values | {"rate": None}, answers=_in_sequence(answers or (_NOT_EXECUTED,)))


def _in_sequence(answers: Answers) -> Iterator[str | Failure]:
    yield from answers
    while True:
        yield answers[-1]


def reachable_agents(generation: Generation, agent: str) -> list[str]:
    """The agent, its sub-agents, theirs, and so on."""
    names = [agent]
    for name in names:
        subs = generation.agents[name].spec.sub_agents
        names.extend(sub for sub in subs if sub in generation.agents and sub not in names)
    return names


def _sandboxed_agent(agent: Agent, model: str, tools: Mapping[str, Tool]) -> Agent:
    toolset = copy(agent.toolset)
    toolset.tools = {name: _safe_tool(tool, tools) for name, tool in agent.toolset.tools.items()}
    toolset.offered = {name: toolset.tools[name] for name in agent.toolset.offered}
    return replace(agent.on_model(model), toolset=toolset, hooks={})


def _safe_tool(tool: Tool, tools: Mapping[str, Tool]) -> Tool:
    """A sub-agent stays what it is; an agent that is stale may know a tool that is there no more."""
    return tool if tool.source == "agent" else tools.get(tool.name) or stub_unless_safe(tool, None)
