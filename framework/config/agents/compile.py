"""Compiles a parsed agent file into an `Agent`, or reports each reference that does not resolve."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError, create_model

from framework.config.agents.lint import lint
from framework.config.agents.models import budget_problems, model_problems
from framework.config.agents.plan_steps import plan_problems
from framework.config.agents.skills import NO_SKILLS, SkillSet, skill_problems, skill_warnings
from framework.config.agents.toolbox import Toolbox
from framework.config.templates.prompt_check import prompt_problems, runtime_templates
from framework.config.templates.prompts import CONVERSATION_VARIABLES, NO_RUN, Prompts, RunVariables
from framework.config.yaml.document import Document, KeyPath
from framework.config.yaml.parse import MAX_FILE_PROBLEMS, ParseError, sort_problems, variable_hint
from framework.tools.arguments import ModelArguments, SchemaArguments
from framework.tools.builtin.notes import memory_tools
from framework.tools.child_processes import command_hook, program_problem
from framework.tools.conditions import CONDITION_FORMS, condition_fault, has_argument, takes_text, yaml_text
from framework.tools.declaration import Extension
from framework.tools.scripts import SCRIPT_TOOL, is_function
from framework.tools.tool import BY_KEY, Tool, source_of
from framework.tools.tool_source import client_tool
from framework.tools.toolset import CLIENT, Toolset, matching_names
from framework.types.errors import ConfigError, ToolError
from framework.types.http import HttpLimits
from framework.types.messages import ToolDefinition
from framework.types.problem import Problem
from framework.types.spec import (
    GLOB_SIGNS,
    AgentSpec,
    CommandHook,
    HookPlace,
    InputSpec,
    Limits,
    MemoryPolicy,
    Rule,
    TemplateRef,
    is_glob,
)
from framework.types.state import ClientTools
from framework.types.text import did_you_mean, estimate_tokens

_KEPT = (*BY_KEY, "builtin", "run")
"""Sources of tools that `defer: auto` leaves in requests."""
_TOOLS_SHARE, _ASSUMED_WINDOW = 0.05, 100_000
"""Share of the context window above which `defer: auto` applies; and the window of a model that is not known."""
HANDOFF = "handoff."
"""Start of the names of tools that hand the conversation over to another agent."""
_HANDOFF = "Hand this conversation over; call it alone in its turn. The agent answers this message and the next ones."
CODE = "code"
"""Name of the executor with which the model writes scripts that call the tools."""
BUILTIN_EXECUTORS = ("react", "plan", "auto", CODE)
"""Names of the executors of the runtime."""
HOOK_ARGUMENTS: Mapping[HookPlace, tuple[str, ...]] = {
    "before_run": ("context", "message"),
    "before_tool": ("context", "call"),
    "after_tool": ("context", "call", "result"),
    "after_run": ("context", "output"),
}


def hooks_by_place(spec: AgentSpec) -> Iterator[tuple[HookPlace, tuple[str | CommandHook, ...]]]:
    """Return the hooks of an agent with the place where they are called."""
    places: tuple[HookPlace, ...] = get_args(HookPlace)
    return ((place, getattr(spec.hooks, place)) for place in places)


def extension_names(spec: AgentSpec) -> list[str]:
    """Return the name of the executor and the names of all hooks of an agent that are functions."""
    names = (name for _, entries in hooks_by_place(spec) for name in entries)
    return [spec.executor, *(name for name in names if isinstance(name, str))]


def extension_problems(
    spec: AgentSpec,
    document: Document,
    extensions: Mapping[str, Extension],
    own_executors: Collection[str],
    root: Path,
) -> Iterator[Problem]:
    """Yield a problem for each executor, hook or embedder that is missing or does not fit its place."""
    embedders = {name: one for name, one in extensions.items() if one.kind == "embedder"}
    if (embed := spec.memory.embed) is not None and embed not in embedders:
        yield _unknown(document, ("memory", "embed"), "embedder", embed, embedders)
    executors = {*own_executors, *(name for name, one in extensions.items() if one.kind == "executor")}
    if spec.executor not in executors:
        yield _unknown(document, ("executor",), "executor", spec.executor, executors)
    hooks = {name: one for name, one in extensions.items() if one.kind == "hook"}
    for place, names in hooks_by_place(spec):
        for index, name in enumerate(names):
            path: KeyPath = ("hooks", place, index)
            if isinstance(name, CommandHook):
                if problem := program_problem(root, name):
                    yield document.problem(path, problem)
            elif name not in hooks:
                yield _unknown(document, path, "hook", name, hooks)
            elif not hooks[name].accepts(len(HOOK_ARGUMENTS[place])):
                arguments = ", ".join(HOOK_ARGUMENTS[place])
                yield document.problem(path, f"{name} does not accept the arguments of {place}: ({arguments})")


def memory_problems(spec: AgentSpec, document: Document, tools: Mapping[str, Tool]) -> Iterator[Problem]:
    """Yield what prevents a memory: a missing scope, tools of the same names."""
    if spec.memory.scope is None and spec.memory != MemoryPolicy():
        hint = "write scope: user, agent or tenant"
        yield document.problem(("memory",), "memory needs a scope", hint=hint, at_key=True)
    for name in (one.name for one in memory_tools(spec.memory) if one.name in tools):
        message = f"a plugin or server has a tool {name}, which is the name of a tool of the memory"
        yield document.problem(("memory",), message, hint="rename that tool", at_key=True)


def code_problems(spec: AgentSpec, document: Document, tools: Mapping[str, Tool]) -> Iterator[Problem]:
    """Yield what prevents `executor: code`: a missing package, a tool of the same name, a tool that must be called."""
    if spec.executor != CODE:
        return
    if missing := SCRIPT_TOOL.missing_packages:
        yield document.problem(("executor",), f"code mode is not installed: {missing}")
    if SCRIPT_TOOL.name in tools:
        message = f"a plugin or server has a tool {SCRIPT_TOOL.name}, which is the name of the tool that runs scripts"
        yield document.problem(("executor",), message, hint="rename that tool")
    choice = spec.model_settings.tool_choice
    if choice is not None and choice in tools and is_function(tools[choice]):
        message = f"the model cannot be made to call {choice}: in code mode, scripts call it"
        hint = f"write tool_choice: {SCRIPT_TOOL.name}, or leave it out"
        yield document.problem(("model_settings", "tool_choice"), message, hint=hint)


def _unknown(document: Document, path: KeyPath, kind: str, name: str, choices: Collection[str]) -> Problem:
    hint = None if choices else f"a plugin registers one with @{kind}"
    return document.problem(path, f"there is no {kind} {name!r}{did_you_mean(name, sorted(choices))}", hint=hint)


_TYPES: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list[Any],
    "object": dict[str, Any],
}


class NoInputs(BaseModel):
    """The model of all agents without inputs. One class per agent would take most of an agent's memory."""

    model_config = ConfigDict(extra="forbid")


def inputs_model(spec: AgentSpec) -> type[BaseModel]:
    """Return the model that validates an agent's inputs."""
    if not spec.inputs:
        return NoInputs
    model: type[BaseModel] = create_model("inputs", __config__=ConfigDict(extra="forbid"), **input_fields(spec.inputs))
    return model


def input_fields(inputs: Mapping[str, InputSpec]) -> dict[str, Any]:
    """Return the inputs as field definitions for `create_model`."""
    return {
        name: (
            _TYPES[field.type] if field.required else _TYPES[field.type] | None,
            Field(... if field.required else field.default, description=field.description or None),
        )
        for name, field in inputs.items()
    }


def input_problems(spec: AgentSpec, document: Document) -> Iterator[Problem]:
    """Yield a problem for each invalid name and each default of the wrong type."""
    for name, declared in spec.inputs.items():
        path: KeyPath = ("inputs", name)
        if name == "message":
            message = "an input cannot be named `message`: that is the request itself; choose another name"
            yield document.problem(path, message, at_key=True)
        elif not name.isidentifier() or name.startswith("_") or hasattr(BaseModel, name):
            message = f"invalid input name {name!r}: use letters, digits and '_', and no name that Pydantic reserves"
            yield document.problem(path, message, at_key=True)
        elif declared.default is not None and not _default_matches(declared):
            yield document.problem((*path, "default"), f"the default is not of type {declared.type}")


def output_problems(spec: AgentSpec, document: Document) -> Iterator[Problem]:
    """Yield a problem if `output_schema` is not a valid schema."""
    if spec.output_schema is not None:
        try:
            SchemaArguments(spec.output_schema)
        except ConfigError as error:
            yield document.problem(("output_schema",), error.message, at_key=True)


def _default_matches(field: InputSpec) -> bool:
    try:
        TypeAdapter(_TYPES[field.type]).validate_python(field.default, strict=True)
    except ValidationError:
        return False
    return True


_OPTIONAL_HINT = "if a server may offer the tool later, write {{tool: {}, optional: true}}"


def rule_problems(
    spec: AgentSpec, document: Document, tools: Mapping[str, Tool | None], unavailable: Collection[str]
) -> Iterator[Problem]:
    """Yield a problem for each deny or ask rule that matches no tool, or whose conditions fit no call.

    Args:
        spec: the agent.
        document: its file.
        tools: all tools that a rule may name, by name; None for one whose arguments are not known.
        unavailable: sources whose tools are not known.
    """
    for kind, rules in (("deny", spec.skill_policy.deny), ("ask", spec.skill_policy.ask)):
        for index, rule in enumerate(rules):
            path: KeyPath = ("skill_policy", kind, index)
            matching = _matching(rule.tool, tools)
            if matching:
                yield from _condition_problems(rule, path, document, [tool for tool in matching if tool])
            elif not rule.optional and not _may_appear(rule.tool, unavailable):
                message = f"the {kind} rule {rule.tool!r} matches no tool{did_you_mean(rule.tool, sorted(tools))}"
                yield document.problem((*path, "tool"), message, hint=_OPTIONAL_HINT.format(rule.tool))


def _matching(pattern: str, tools: Mapping[str, Tool | None]) -> list[Tool | None]:
    if not is_glob(pattern):
        return [tools[pattern]] if pattern in tools else []
    return [tool for name, tool in tools.items() if fnmatchcase(name, pattern)]


def _may_appear(pattern: str, unavailable: Collection[str]) -> bool:
    """Return whether a client, or a source whose tools are not known, may have a tool that the pattern matches."""
    start = pattern[: next((at for at, sign in enumerate(pattern) if sign in GLOB_SIGNS), len(pattern))]
    names = (f"{source}." for source in unavailable)
    return pattern.startswith(CLIENT) or any(
        start.startswith(name) or (is_glob(pattern) and name.startswith(start)) for name in names
    )


def _condition_problems(rule: Rule, path: KeyPath, document: Document, tools: list[Tool]) -> Iterator[Problem]:
    """Yield a problem for each condition that is a mistake for all of the tools that a rule matches."""
    if not rule.when or not tools:
        return
    fitting = [tool for tool in tools if all(has_argument(tool, name) for name in rule.when)]
    if not fitting:
        yield document.problem((*path, "when"), _missing_argument(rule, tools), at_key=True)
        return
    for name, condition in rule.when.items():
        where = (*path, "when", name)
        if not isinstance(condition, (str, bool)) and any(takes_text(tool, name) for tool in fitting):
            written, compared = document.written(where), yaml_text(condition)
            if written != compared:
                message = f"the condition on {name!r} of {fitting[0].name} compares texts with {compared!r}"
                yield document.problem(where, f"{message}; put it in quotes: '{written}'")
                continue
        faults: list[str] = []
        for tool in fitting:
            if (fault := condition_fault(tool, name, condition)) is None:
                break
            faults.append(fault)
        else:
            yield document.problem(where, faults[0], hint=CONDITION_FORMS)
            continue
        if isinstance(condition, str) and (condition != condition.strip() or _INVISIBLE.search(condition)):
            message = f"the condition {condition!r} on {name!r} has a blank at an end, or an invisible character"
            yield document.problem(where, message, hint="remove it: texts are compared exactly")


_INVISIBLE = re.compile(
    "[\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\ufeff]"
    "|(?<![^\0-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\0-\x7f])"
)
"""Characters that a reader of a condition does not see, so that it looks like another one.

Joiners belong to the spelling of Persian and Indian words, and to emoji, but never stand beside ASCII.
"""


def _missing_argument(rule: Rule, tools: list[Tool]) -> str:
    choices = sorted({name for tool in tools for name in tool.definition.parameters.get("properties", {})})
    missing = next((name for name in rule.when if not any(has_argument(tool, name) for tool in tools)), None)
    if missing is None:
        return f"no tool that {rule.tool!r} matches has all arguments of these conditions"
    which = f"{tools[0].name} has no" if len(tools) == 1 else f"no tool that {rule.tool!r} matches has an"
    return f"{which} argument {missing!r}{did_you_mean(missing, choices)}"


_MAX_GUIDANCE_TEXTS = 32


@dataclass(frozen=True, slots=True)
class CompileContext:
    """The scope in which the references of an agent file are resolved."""

    toolbox: Toolbox
    prompts: Prompts
    specs: Mapping[str, AgentSpec]
    executors: Collection[str]
    """Names of the executors that do not come from plugins."""
    models: Collection[str]
    """Model aliases, names of clients, and providers as `provider/`."""
    budgets: Collection[str] = ()
    """Names of the shared budgets."""
    window: Callable[[str | None], int | None] = lambda _: None
    """Returns the context window of a model in tokens, by default of the default model; None if it is unknown."""

    def with_only(self, names: Iterable[str]) -> CompileContext:
        """Return a copy that contains no other agents than `names`."""
        return replace(self, specs={name: self.specs[name] for name in names if name in self.specs})


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent that is ready to run. Immutable: its spec, tools and templates belong together."""

    spec: AgentSpec
    document: Document
    digest: str
    toolset: Toolset
    context: CompileContext
    """The scope in which its references were resolved."""
    inputs: type[BaseModel]
    """Validates the inputs of a request."""
    hooks: Mapping[HookPlace, tuple[Extension, ...]] = field(default_factory=dict)
    executor: Extension | None = None
    """The executor, if a plugin defines it; None for a built-in one."""
    skills: SkillSet = NO_SKILLS
    """The Agent Skills that it can use."""
    warnings: tuple[Problem, ...] = ()
    """Lint warnings about the file."""
    stale: tuple[Problem, ...] = ()
    """The errors in the current file, if this is its last good version; empty if the file is valid."""
    original: Agent | None = field(default=None, compare=False, repr=False)
    """The unrestricted last good version, if this one is restricted by its invalid file; otherwise None."""
    name: str = field(init=False)
    """The unique name of the agent."""
    _guidance: dict[tuple[str, Limits, HttpLimits | None, bool], str] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.spec.name)  # every check of a limit and of the policy reads it

    @property
    def last_good(self) -> Agent:
        """The version compiled from the last valid file, without restrictions from an invalid one."""
        return self.original or self

    @property
    def prompts(self) -> Prompts:
        """The templates that its prompts are rendered with."""
        return self.context.prompts

    @property
    def path(self) -> str:
        """The path of its file, relative to the project's folder."""
        return self.document.path

    def place(self, *path: str | int) -> str:
        """Return `file:line` of a key in the agent's file."""
        return self.document.place(path)

    @property
    def variables(self) -> Mapping[str, Any]:
        """The variables of all templates, in addition to `vars` and `inputs`. Built on access."""
        return {
            "agent": {"name": self.spec.name, "description": self.spec.description},
            "tools": [  # not a copy: templates cannot change data
                {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
                for tool in self.toolset.definitions
            ],
            "limits": self.spec.runtime_policy.model_dump(),
        }

    def on_model(self, model: str) -> Agent:
        """Return the agent with `model` as its only model: no fallbacks, no other model for plans or summaries."""
        plan = self.spec.plan.model_copy(update={"model": None})
        conversation = self.spec.conversation.model_copy(update={"compress_model": None})
        others = {"fallback_models": (), "plan": plan, "conversation": conversation}
        return replace(self, spec=self.spec.model_copy(update={"model": model, **others}))

    def with_client_tools(self, client: ClientTools) -> Agent:
        """Return the agent with the tools of its client that the rules offer; raises ConfigError for an invalid one."""
        allowed_by = f"client_tools of the key {client.key}" if client.key else ""
        tools = [client_tool(declared, allowed_by) for declared in client.tools]
        return replace(self, toolset=self.toolset.with_client_tools(tools))

    def for_run(self, model: str | None, client: ClientTools | None, *, is_root: bool) -> Agent:
        """Return the agent for a run: on the caller's model, with the client's tools. A sub-run hands nothing over."""
        agent = self.on_model(model) if model else self
        if is_root:
            return agent.with_client_tools(client) if client and client.tools else agent
        handoffs = {f"{HANDOFF}{name}" for name in self.spec.handoffs}
        return replace(agent, toolset=agent.toolset.without(handoffs)) if handoffs else agent

    def inputs_from(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs that the agent declares, with its defaults; raises ValidationError."""
        given = {name: value for name, value in values.items() if name in self.spec.inputs}
        return self.inputs.model_validate(given, strict=True).model_dump()

    def model_only(self) -> Agent:
        """Return the agent without instructions, inputs, tools and output schema: only its model, limits and hooks."""
        settings = self.spec.model_settings.model_copy(update={"tool_choice": None, "response_format": None})
        none: dict[str, Any] = {
            "instructions": "",
            "examples": (),
            "inputs": {},
            "mcp_policy": {},
            "memory": MemoryPolicy(),
            "output_schema": None,
        }
        update = {**none, "guidance": "none", "executor": "react", "model_settings": settings}
        spec = self.spec.model_copy(update=update)
        toolset = self.toolset.narrowed((), "a request to the model alone")
        return replace(self, spec=spec, toolset=toolset, inputs=inputs_model(spec), skills=NO_SKILLS, executor=None)

    def functions(self) -> Iterator[Callable[..., Any]]:
        """Yield the functions of the tools, hooks and executor that the agent may call."""
        yield from (tool.function for tool in self.toolset.offered.values())
        yield from (hook.function for hooks in self.hooks.values() for hook in hooks)
        if self.executor:
            yield self.executor.function

    def render(self, template: str, locale: str, **variables: Any) -> str:
        """Render one of the runtime's templates for this agent. Raises PromptError."""
        return self.prompts.render(template, locale, {**self.variables, "locale": locale, **variables})

    def tool_guidance(self) -> Iterator[str]:
        """Yield the parts of the system prompt about skills and about calls in code; they may be empty."""
        if self.skills.skills:
            yield self.skills.prompt(self.toolset)
        yield self.toolset.code_prompt()

    def guidance(self, locale: str, limits: Limits, run: RunVariables = NO_RUN) -> str:
        """Render the text that follows the instructions, on how to work within `limits`; empty if there is none.

        The text is cached by locale, limits and the limits of the run. Raises PromptError.
        """
        source = self.spec.guidance
        if source == "none":
            return ""
        template, own = ("react.j2", {}) if isinstance(source, str) else (source.template, source.vars)
        if self.prompts.project_names and not CONVERSATION_VARIABLES.isdisjoint(
            self.prompts.variables_for(template, locale)
        ):
            return self.render(template, locale, **{**run.data(), "limits": limits.model_dump(), **own})
        key = (locale, limits, run.http, run.parallel_calls)
        if (text := self._guidance.get(key)) is None:  # a single lookup: hashing limits is slow
            while len(self._guidance) >= _MAX_GUIDANCE_TEXTS:
                del self._guidance[next(iter(self._guidance))]
            text = self.render(template, locale, **{**run.limits(), "limits": limits.model_dump(), **own})
            self._guidance[key] = text
        return text

    def instructions(self, locale: str, inputs: Mapping[str, Any], user: str | None, run: RunVariables = NO_RUN) -> str:
        """Return the system prompt: the text from the file, or its rendered template. Raises PromptError."""
        source = self.spec.instructions
        if isinstance(source, str):
            return source
        variables = {**self.variables, **run.data(), "locale": locale, "user": user, **source.vars, **inputs}
        return self.prompts.render(source.template, locale, variables)


def compile_agent(
    spec: AgentSpec, document: Document, digest: str, context: CompileContext
) -> tuple[Agent, tuple[Problem, ...]]:
    """Resolve the references of an agent and render its templates once with sample values.

    Returns:
        The agent and its warnings; the agent holds them as well.

    Raises:
        ParseError: with every reference that does not resolve, or every template that fails to render.
    """
    if problems := unresolved_references(spec, document, context):
        raise ParseError(problems)
    agent = build_agent(spec, document, digest, context)
    if problems := [*islice(fixed_plan_problems(agent), MAX_FILE_PROBLEMS), *prompt_problems(agent)]:
        raise ParseError(problems)
    findings = [*lint(spec, document, agent.toolset, context.prompts, context.toolbox.external.unavailable)]
    findings += skill_warnings(spec, document, agent.skills, context.toolbox.skills)
    warnings = tuple(sort_problems(findings))
    return replace(agent, warnings=warnings), warnings


def fixed_plan_problems(agent: Agent) -> Iterator[Problem]:
    """Yield the problems of the plan in an agent's file."""
    specs = agent.context.specs
    outputs = {
        f"agent.{name}": specs[name].output_schema or {"type": "string"}
        for name in agent.spec.sub_agents
        if name in specs
    }
    unavailable = agent.context.toolbox.external.unavailable
    return plan_problems(agent.spec, agent.document, agent.toolset, outputs, unavailable)


def unresolved_references(spec: AgentSpec, document: Document, context: CompileContext) -> list[Problem]:
    """Return the references in an agent file that do not resolve or do not fit, at most `MAX_FILE_PROBLEMS`."""
    problems = chain(
        input_problems(spec, document),
        output_problems(spec, document),
        _reference_problems(spec, document, context),
        skill_problems(spec, document, context.toolbox.skills, context.toolbox.tools),
        rule_problems(spec, document, _tools_for_rules(spec, document, context), context.toolbox.external.unavailable),
        extension_problems(spec, document, context.toolbox.extensions, context.executors, context.toolbox.root),
        memory_problems(spec, document, context.toolbox.tools),
        code_problems(spec, document, context.toolbox.tools),
        handoff_problems(spec, document, context),
    )
    return list(islice(problems, MAX_FILE_PROBLEMS))


def build_agent(spec: AgentSpec, document: Document, digest: str, context: CompileContext) -> Agent:
    """Build an agent whose references have been checked. Missing tools are not offered."""
    skills = SkillSet.of(spec.skills, context.toolbox.skills)
    own = [*filter(None, _sub_agents(spec, context).values()), *_handoffs(spec, context), *_mode_tools(spec, context)]
    tools = context.toolbox.tools
    toolset = Toolset(
        {**tools, **{tool.name: tool for tool in own}} if own else tools,
        spec.skill_policy,
        risk_level=spec.runtime_policy.risk_level,
        source=document,
        blocked=[name for name in context.toolbox.external.drifted if _is_pinned(spec, name)],
    )
    if spec.skill_policy.defer:
        toolset = toolset.deferring(_deferred(spec, toolset, context))
    return Agent(
        spec,
        document,
        digest,
        toolset,
        context,
        inputs_model(spec),
        {
            place: tuple(_hook(place, index, entry, document, context) for index, entry in enumerate(entries))
            for place, entries in hooks_by_place(spec)
            if entries
        },
        context.toolbox.extensions.get(spec.executor),
        skills,
    )


def _hook(
    place: HookPlace, index: int, entry: str | CommandHook, document: Document, context: CompileContext
) -> Extension:
    if isinstance(entry, str):
        return context.toolbox.extensions[entry]
    return command_hook(place, entry, context.toolbox.root, document.place(("hooks", place, index)))


def _mode_tools(spec: AgentSpec, context: CompileContext) -> list[Tool]:
    """Return the tools that an agent has because of its skills, its memory and its executor."""
    scripts = [SCRIPT_TOOL] if spec.executor == CODE else []
    return [*SkillSet.of(spec.skills, context.toolbox.skills).tools(), *memory_tools(spec.memory), *scripts]


def _deferred(spec: AgentSpec, toolset: Toolset, context: CompileContext) -> Collection[str]:
    """Return the names of the tools that `tools.defer` keeps out of requests until the model finds them.

    The tool that the model must call stays.
    """
    if spec.skill_policy.defer == "auto":
        window = context.window(spec.model) or _ASSUMED_WINDOW
        if (
            sum(estimate_tokens(tool.definition.canonical_json) for tool in toolset.offered.values())
            <= _TOOLS_SHARE * window
        ):
            return ()
        names = {name for name, tool in toolset.offered.items() if tool.source not in _KEPT}
    else:
        names = matching_names(spec.skill_policy.defer, toolset.offered.keys())
    return names - {spec.model_settings.tool_choice or ""}


def template_names(spec: AgentSpec) -> list[str]:
    """Return the names of the templates that an agent is rendered with."""
    own = (source.template for source in (spec.instructions, spec.guidance) if isinstance(source, TemplateRef))
    return [*own, *dict.fromkeys(name for name, _ in runtime_templates(spec, {}))]


def _sub_agents(spec: AgentSpec, context: CompileContext) -> dict[str, Tool | None]:
    """Return the tools of an agent's sub-agents by name, remote ones included; None for one that is not there."""
    remote = context.toolbox.external.agents
    return {
        f"agent.{name}": agent_tool(context.specs[name]) if name in context.specs else remote.get(name)
        for name in spec.sub_agents
    }


def agent_tool(spec: AgentSpec) -> Tool:
    """Return the tool that represents a sub-agent to its parent: it accepts a message and the agent's inputs."""
    message = (str, Field(description="The task, complete in itself: the agent sees nothing else."))
    model: type[BaseModel] = create_model(
        spec.name, __config__=ConfigDict(extra="forbid"), message=message, **input_fields(spec.inputs)
    )
    arguments = ModelArguments(model)
    name = f"agent.{spec.name}"
    definition = ToolDefinition(name=name, description=spec.description, parameters=arguments.schema)
    return Tool(definition, _delegate, arguments, risk="low", idempotent=True, source="agent")


async def _delegate(**arguments: Any) -> str:
    raise ToolError(f"a sub-agent is run by the engine and cannot be called: {sorted(arguments)}")


def _handoffs(spec: AgentSpec, context: CompileContext) -> Iterator[Tool]:
    """Yield the tools that hand an agent's conversation over to the other agents that its file names."""
    for name in dict.fromkeys(spec.handoffs):
        if target := context.specs.get(name):
            description = f"{_HANDOFF} {name}: {target.description}"
            definition = ToolDefinition(
                name=f"{HANDOFF}{name}", description=description, parameters=_HANDOFF_ARGUMENTS.schema
            )
            yield Tool(definition, _hand_off, _HANDOFF_ARGUMENTS, risk="low", idempotent=True, source="handoff")


class _HandoffArguments(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reason: Annotated[str, StringConstraints(max_length=500)] = Field(
        default="", description="Why, in one sentence, for the agent that takes over."
    )


_HANDOFF_ARGUMENTS = ModelArguments(_HandoffArguments)


async def _hand_off(**arguments: Any) -> str:
    raise ToolError(f"a conversation is handed over by the engine: {sorted(arguments)}")


def handoff_problems(spec: AgentSpec, document: Document, context: CompileContext) -> Iterator[Problem]:
    """Yield a problem for each agent that the conversation cannot be handed over to."""
    if spec.handoffs and spec.executor in ("plan", "auto"):
        message = "an agent that may write plans cannot hand its conversation over: a handoff is a turn of its own"
        yield document.problem(("handoffs",), message, hint="remove `mode`", at_key=True)
    for index, name in enumerate(spec.handoffs):
        place = ("handoffs", index)
        if name == spec.name:
            yield document.problem(place, f"the agent {name!r} cannot hand its conversation over to itself")
        elif name not in context.specs:
            choices = did_you_mean(name, sorted(context.specs.keys() - {spec.name}))
            remote = f"agent.{name}" in context.toolbox.external.declared
            hint = "a remote agent can be called: list it under `agents`" if remote else variable_hint(name)
            yield document.problem(place, f"there is no usable agent {name!r}{choices}", hint=hint)


def _reference_problems(spec: AgentSpec, document: Document, context: CompileContext) -> Iterator[Problem]:
    def unknown(
        path: KeyPath, kind: str, name: str, choices: Iterable[str], hint: str | None = None, *, at_key: bool = False
    ) -> Problem:
        message = f"there is no {kind} {name!r}{did_you_mean(name, sorted(choices))}"
        return document.problem(path, message, hint=variable_hint(name) or hint, at_key=at_key)

    for key, source in (("instructions", spec.instructions), ("guidance", spec.guidance)):
        if isinstance(source, TemplateRef) and not context.prompts.has(source.template):
            yield unknown((key, "template"), "template", source.template, context.prompts.names())
    if (planner := spec.plan.template) is not None and not context.prompts.has(planner):
        yield unknown(("plan", "template"), "template", planner, context.prompts.names())
    yield from model_problems(spec, document, context.models)
    yield from budget_problems(spec, document, context.budgets)
    declared = context.toolbox.external.declared
    remote = {name.removeprefix("agent.") for name in declared if name.startswith("agent.")}
    for index, name in enumerate(spec.sub_agents):
        if name not in context.specs and name not in remote:
            choices = (context.specs.keys() | remote) - {spec.name}
            yield unknown(("sub_agents", index), "usable agent", name, choices)
        elif name in context.specs and name in remote:
            two = f"there are two agents {name!r}: the other one is declared in {declared[f'agent.{name}']}"
            yield document.problem(("sub_agents", index), two, hint="rename one of them")
    servers = {name.removeprefix("mcp.") for name in context.toolbox.external.declared if name.startswith("mcp.")}
    hint = None if servers else "declare it in a file plugins/NAME.yaml, under mcp_servers"
    for name in sorted(spec.mcp_policy.keys() - servers):
        yield unknown(("mcp_policy", name), "MCP server", name, servers, hint, at_key=True)
    tools = _known_tools(spec, context)
    for index, name in missing_tools(spec, context):
        yield unknown(("skill_policy", "allow", index), "tool", name, tools)


def missing_tools(spec: AgentSpec, context: CompileContext) -> Iterator[tuple[int, str]]:
    """Yield index and name of each tool in `skill_policy.allow` that does not exist, unless its server is down.

    The tools of clients are not known.
    """
    tools = _known_tools(spec, context)
    for index, pattern in enumerate(spec.skill_policy.allow):
        unavailable = source_of(pattern) in (*context.toolbox.external.unavailable, CLIENT[:-1])
        if not is_glob(pattern) and pattern not in tools and not unavailable:
            yield index, pattern


def _known_tools(spec: AgentSpec, context: CompileContext) -> set[str]:
    return context.toolbox.tools.keys() | {
        *(f"agent.{name}" for name in spec.sub_agents),
        *(f"{HANDOFF}{name}" for name in spec.handoffs),
        *(tool.name for tool in _mode_tools(spec, context)),
    }


def _tools_for_rules(spec: AgentSpec, document: Document, context: CompileContext) -> Mapping[str, Tool | None]:
    """Return the tools that rules may name; None for a sub-agent that does not exist, or has invalid inputs."""
    own = [*_handoffs(spec, context), *_mode_tools(spec, context)]
    if not spec.sub_agents and not own:
        return context.toolbox.tools
    named = context.with_only(spec.sub_agents)
    specs = {name: other for name, other in named.specs.items() if not any(input_problems(other, document))}
    agents = _sub_agents(spec, replace(named, specs=specs))
    return {**context.toolbox.tools, **agents, **{tool.name: tool for tool in own}}


def _is_pinned(spec: AgentSpec, tool: str) -> bool:
    """Return whether the agent refuses tools whose definition has changed since they were accepted."""
    policy = spec.mcp_policy.get(tool.split(".")[1]) if tool.startswith("mcp.") else None
    return policy is None or policy.pin == "block"


def cycle_problems(spec: AgentSpec, document: Document, specs: Mapping[str, AgentSpec]) -> Iterator[Problem]:
    """Yield a problem for each sub-agent that leads back to the agent itself."""
    for index, name in enumerate(spec.sub_agents):
        if cycle := _find_cycle(spec.name, name, specs):
            yield document.problem(("sub_agents", index), f"agents form a cycle: {' -> '.join(cycle)}")


def _find_cycle(start: str, name: str, specs: Mapping[str, AgentSpec]) -> tuple[str, ...] | None:
    """Return the path from `start` over `name` back to `start`, or None."""
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
