"""From a parsed agent file to an Agent that is ready to run: every reference is resolved, or is a Problem."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from framework.config.document import Document, Path
from framework.config.parse import ParseError
from framework.config.prompts import PromptError, Prompts
from framework.tools.tool import Tool, parameters_schema
from framework.tools.toolset import Toolset
from framework.types.errors import ToolError, did_you_mean
from framework.types.messages import ToolDefinition
from framework.types.problem import Problem
from framework.types.spec import AgentSpec, InputSpec, TemplateRef

_TYPES: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list[Any],
    "object": dict[str, Any],
}
_SAMPLES: Mapping[str, Any] = {
    "string": "text",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "array": [],
    "object": {},
}
_GLOB_SIGNS = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent ready to run: its spec, tools and templates belong together and never change."""

    spec: AgentSpec
    document: Document
    digest: str
    toolset: Toolset
    prompts: Prompts
    inputs: type[BaseModel]
    """Checks the variables of a request."""
    variables: Mapping[str, Any]
    """What every template may use besides `vars` and `inputs`."""
    stale: tuple[Problem, ...] = ()
    """Why the file as it is now could not be used; this is the last version that could."""

    @property
    def name(self) -> str:
        """The agent's identity."""
        return self.spec.name

    @property
    def path(self) -> str:
        """The file it comes from, relative to the root."""
        return self.document.path

    def place(self, *path: str | int) -> str:
        """`file:line` of a key of the agent's file."""
        return self.document.place(path)

    def render(self, template: str, locale: str, **variables: Any) -> str:
        """Render one of the runtime's own templates for this agent; raises PromptError."""
        return self.prompts.render(template, locale, {**self.variables, "locale": locale, **variables})

    def instructions(self, locale: str, inputs: Mapping[str, Any], user: str | None) -> str:
        """The system prompt: the file's text as it is, or its template rendered; raises PromptError."""
        source = self.spec.instructions
        if isinstance(source, str):
            return source
        variables = {**self.variables, "locale": locale, "user": user, **source.vars, **inputs}
        return self.prompts.render(source.template, locale, variables)


@dataclass(frozen=True, slots=True)
class World:
    """What an agent's references may point at."""

    tools: Mapping[str, Tool]
    prompts: Prompts
    specs: Mapping[str, AgentSpec]
    executors: Collection[str]
    models: Collection[str]
    """Model aliases and providers."""


def compile_agent(spec: AgentSpec, document: Document, digest: str, world: World) -> tuple[Agent, list[Problem]]:
    """Resolve an agent's references.

    Returns:
        The agent, and warnings about it.

    Raises:
        ParseError: with every reference that leads nowhere.
    """
    problems = [*_reference_problems(spec, document, world)]
    if problems:
        raise ParseError(problems)
    agents = [agent_tool(world.specs[name]) for name in spec.sub_agents]
    toolset = Toolset(
        {**world.tools, **{tool.name: tool for tool in agents}},
        spec.skill_policy,
        risk_level=spec.runtime_policy.risk_level,
        place=lambda kind, index: document.place(("skill_policy", kind, index)),
    )
    agent = Agent(spec, document, digest, toolset, world.prompts, _inputs_model(spec), _variables(spec, toolset))
    if problems := list(_prompt_problems(agent)):
        raise ParseError(problems)
    return agent, list(_warnings(agent))


def agent_tool(spec: AgentSpec) -> Tool:
    """A sub-agent as its parent's model sees it: a tool that takes a message and the agent's inputs."""
    message = (str, Field(description="The task, complete in itself: the agent sees nothing else."))
    arguments: type[BaseModel] = create_model(
        spec.name, __config__=ConfigDict(extra="forbid"), message=message, **_input_fields(spec.inputs)
    )
    name = f"agent.{spec.name}"
    definition = ToolDefinition(name=name, description=spec.description, parameters=parameters_schema(arguments))
    return Tool(definition, _delegate, arguments, risk="low", idempotent=True, source="agent")


async def _delegate(**arguments: Any) -> str:
    raise ToolError(f"a sub-agent is run by the engine, not called: {sorted(arguments)}")


def _variables(spec: AgentSpec, toolset: Toolset) -> Mapping[str, Any]:
    return {
        "agent": {"name": spec.name, "description": spec.description},
        "tools": [definition.model_dump() for definition in toolset.definitions],
        "limits": spec.runtime_policy.model_dump(),
    }


def _inputs_model(spec: AgentSpec) -> type[BaseModel]:
    model: type[BaseModel] = create_model("inputs", __config__=ConfigDict(extra="forbid"), **_input_fields(spec.inputs))
    return model


def _input_fields(inputs: Mapping[str, InputSpec]) -> dict[str, Any]:
    return {
        name: (
            _TYPES[field.type] if field.required else _TYPES[field.type] | None,
            Field(... if field.required else field.default, description=field.description or None),
        )
        for name, field in inputs.items()
    }


def _reference_problems(spec: AgentSpec, document: Document, world: World) -> Iterator[Problem]:
    if isinstance(spec.instructions, TemplateRef) and not world.prompts.has(spec.instructions.template):
        known = world.prompts.names()
        message = (
            f"there is no template {spec.instructions.template!r}{did_you_mean(spec.instructions.template, known)}"
        )
        yield document.problem(("instructions", "template"), message)
    if spec.executor not in world.executors:
        message = f"there is no executor {spec.executor!r}{did_you_mean(spec.executor, sorted(world.executors))}"
        yield document.problem(("executor",), message)
    if spec.model is not None and spec.model.partition("/")[0] not in world.models and spec.model not in world.models:
        message = f"unknown model {spec.model!r}{did_you_mean(spec.model.partition('/')[0], sorted(world.models))}"
        yield document.problem(("model",), message, hint="write provider/model, or an alias from agentsd.yaml")
    for index, name in enumerate(spec.sub_agents):
        if name not in world.specs:
            yield document.problem(
                ("sub_agents", index), f"there is no agent {name!r}{did_you_mean(name, sorted(world.specs))}"
            )
        elif cycle := _cycle(spec.name, name, world.specs):
            yield document.problem(("sub_agents", index), f"sub-agents in a circle: {' -> '.join(cycle)}")
    for index, pattern in enumerate(spec.skill_policy.allow):
        if not _GLOB_SIGNS.intersection(pattern) and pattern not in world.tools:
            path: Path = ("skill_policy", "allow", index)
            yield document.problem(path, f"there is no tool {pattern!r}{did_you_mean(pattern, sorted(world.tools))}")


def _cycle(start: str, name: str, specs: Mapping[str, AgentSpec]) -> Sequence[str] | None:
    """The way from `name` back to `start`, if there is one."""
    trails: list[tuple[str, ...]] = [(start, name)]
    seen = {name}
    while trails:
        trail = trails.pop()
        if trail[-1] == start:
            return trail
        children = specs[trail[-1]].sub_agents if trail[-1] in specs else ()
        for child in children:
            if child == start or child not in seen:
                seen.add(child)
                trails.append((*trail, child))
    return None


def _prompt_problems(agent: Agent) -> Iterator[Problem]:
    """Render with sample inputs: an unknown variable or a broken include shows before a request does."""
    if not isinstance(agent.spec.instructions, TemplateRef):
        return
    samples = {name: field.default or _SAMPLES[field.type] for name, field in agent.spec.inputs.items()}
    for variant in agent.prompts.variants(agent.spec.instructions.template):
        locale = variant.removesuffix(".j2").rpartition(".")[2] if variant != agent.spec.instructions.template else "-"
        try:
            agent.instructions(locale, samples, None)
        except PromptError as error:
            yield error.problem
            place = agent.place("instructions", "template")
            yield agent.document.problem(
                ("instructions", "template"),
                f"the template cannot be rendered: {error.problem.place}",
                hint=f"used at {place}",
            )


def _warnings(agent: Agent) -> Iterator[Problem]:
    for rule in agent.toolset.unused_rules():
        path, _, line = rule.place.rpartition(":")
        yield Problem(
            path=path,
            line=int(line),
            message=f"the {rule.kind} rule {rule.rule.tool!r} matches no tool there is",
            severity="warning",
        )
