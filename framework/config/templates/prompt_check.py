"""Renders an agent's templates with sample values, to report unknown variables and broken includes at load."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from jinja2 import TemplateSyntaxError

from framework.config.templates.prompts import PromptError, Prompts
from framework.config.templates.samples import input_samples, runtime_samples
from framework.config.templates.variables import PLAN_TEMPLATE, run_samples
from framework.config.yaml.document import Document, KeyPath
from framework.types.problem import Problem
from framework.types.spec import AgentSpec, TemplateRef


class Renderable(Protocol):
    """The parts of an agent that the check needs: its templates and their variables."""

    @property
    def spec(self) -> AgentSpec:
        """The agent's file as a model."""
        ...

    @property
    def document(self) -> Document:
        """The parsed file, for the positions of problems."""
        ...

    @property
    def prompts(self) -> Prompts:
        """The templates of the generation."""
        ...

    @property
    def variables(self) -> Mapping[str, Any]:
        """Variables that all templates receive."""
        ...


def runtime_templates(spec: AgentSpec, shared: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Return the runtime's own templates that the agent uses, each with sample values."""
    unused = {PLAN_TEMPLATE, "summary.j2"} if spec.executor == "react" else set()
    unused |= {"react.j2"} if spec.guidance != "default" else set()
    own = {PLAN_TEMPLATE: spec.plan.template or PLAN_TEMPLATE}
    return ((own.get(name, name), variables) for name, variables in runtime_samples(shared) if name not in unused)


def prompt_problems(agent: Renderable) -> Iterator[Problem]:
    """Render the agent's templates with sample values and yield the problems."""
    source = agent.spec.instructions
    if not (isinstance(source, TemplateRef) or agent.prompts.project_names):
        return  # a template of `guidance` is the project's, or a shipped one
    shared = {**agent.variables, "locale": "en"}
    if isinstance(source, TemplateRef):
        requests = [
            (f"{when}{suffix}", {**shared, **run.data(), "user": None, **source.vars, **inputs})
            for suffix, run in run_samples(_variables_used(agent, source.template)).items()
            for when, inputs in input_samples(agent.spec.inputs)
        ]
        yield from _render_problems(agent, source.template, requests, ("instructions", "template"))
    guidance = agent.spec.guidance
    if isinstance(guidance, TemplateRef):
        runs = run_samples(_variables_used(agent, guidance.template)).items()
        turns = [(when.removeprefix(", "), {**shared, **run.data(), **guidance.vars}) for when, run in runs]
        yield from _render_problems(agent, guidance.template, turns, ("guidance", "template"))
    for name, variables in runtime_templates(agent.spec, shared):
        if not agent.prompts.project_names.isdisjoint(agent.prompts.closure([name])):
            samples = [("", {**variables, **run.data()}) for run in run_samples(_variables_used(agent, name)).values()]
            yield from _render_problems(agent, name, samples, ())


def _variables_used(agent: Renderable, template: str) -> set[str]:
    """Return the variables that any locale's variant of a template uses."""
    try:
        return set().union(*(agent.prompts.variables(variant) for variant in agent.prompts.variants(template)))
    except (TemplateSyntaxError, RecursionError):
        return set()  # rendering reports the error


def _render_problems(
    agent: Renderable, template: str, samples: Iterable[tuple[str, Mapping[str, Any]]], path: KeyPath
) -> Iterator[Problem]:
    """Yield the problems of each locale's variant, in the template and in the file that uses it."""
    samples = list(samples)
    for variant in agent.prompts.variants(template):
        problems, hint = agent.prompts.check(variant, samples[0][1]), None
        if not problems:
            problems, hint = _render_failure(agent.prompts, variant, samples)
        yield from problems
        if problems:
            message = f"cannot render template {variant}: {problems[0].place}: {problems[0].message}"
            yield agent.document.problem(path, message, hint=hint)


def _render_failure(
    prompts: Prompts, variant: str, samples: Iterable[tuple[str, Mapping[str, Any]]]
) -> tuple[tuple[Problem, ...], str | None]:
    """Return the first error of rendering with samples, and a hint that names the sample."""
    for when, variables in samples:
        try:
            prompts.render_within_timeout(variant, variables)
        except PromptError as error:
            hint = f"tried {when}" if when else None
            return (error.problem.model_copy(update={"hint": error.problem.hint or hint}),), hint
    return (), None
