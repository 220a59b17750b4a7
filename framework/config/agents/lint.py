"""What is odd about an agent, though it keeps nothing from running: rules and variables that nothing uses."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from framework.config.agents.rules import rule_warnings
from framework.config.templates.prompts import Prompts
from framework.config.yaml.document import Document, Path
from framework.tools.toolset import Toolset
from framework.types.problem import Problem
from framework.types.spec import AgentSpec, TemplateRef

MOST_TOOLS = 128
"""Offered to a model: the limit of OpenAI and of servers that follow it."""
ONLY_TEMPLATES = "only a template can say it: instructions: {template: …}"


def lint(
    spec: AgentSpec, document: Document, toolset: Toolset, prompts: Prompts, silent: Collection[str] = ()
) -> Iterator[Problem]:
    """Warnings about an agent that can be used as it is; nothing is said about tools of `silent` sources."""
    yield from _empty_allow(spec, document)
    yield from _many_tools(toolset, document)
    yield from rule_warnings(spec, toolset, silent)
    yield from _unused_variables(spec, document, prompts)


def _empty_allow(spec: AgentSpec, document: Document) -> Iterator[Problem]:
    """Some read an empty allow beside a deny as "all but these"."""
    policy = spec.skill_policy
    if policy.deny and not policy.allow and not policy.ask and not spec.sub_agents:
        message = "`allow` is empty, so no tool is offered: deny rules take away, they allow nothing"
        hint = 'for all tools but the denied ones write `allow: ["*"]`'
        problem = document.problem(("skill_policy", "allow"), message, hint=hint, at_key=True)
        yield problem.model_copy(update={"severity": "warning"})


def _many_tools(toolset: Toolset, document: Document) -> Iterator[Problem]:
    """What counts is what a model is offered, not what a server lists."""
    if (count := len(toolset.offered)) > MOST_TOOLS:
        message = f"the model is offered {count} tools, and several providers accept at most {MOST_TOOLS}"
        hint = "allow fewer, or leave tools of a server out with `tools: [GLOB]` at its entry"
        problem = document.problem(("skill_policy", "allow"), message, hint=hint, at_key=True)
        yield problem.model_copy(update={"severity": "warning"})


def _unused_variables(spec: AgentSpec, document: Document, prompts: Prompts) -> Iterator[Problem]:
    def warning(path: Path, message: str, hint: str | None = None) -> Problem:
        problem = document.problem(path, message, hint=hint, at_key=True)
        return problem.model_copy(update={"severity": "warning"})

    source = spec.instructions
    if not isinstance(source, TemplateRef):
        for name in spec.inputs:
            message = f"the model never sees the input {name!r}: the instructions are plain text"
            yield warning(("inputs", name), message, ONLY_TEMPLATES)
        return
    used = set().union(*(prompts.used(variant) for variant in prompts.variants(source.template)))
    for name in source.vars.keys() - used:
        yield warning(("instructions", "vars", name), f"no template uses the variable {name!r}")
    for name in spec.inputs.keys() - used:
        yield warning(("inputs", name), f"no template uses the input {name!r}: the model never sees it")
