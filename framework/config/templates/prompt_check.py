"""Renders an agent's templates with sample values, so that unknown variables and broken includes show at load."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from jinja2 import TemplateSyntaxError

from framework.config.templates.prompts import PromptError, Prompts
from framework.config.templates.samples import input_samples, runtime_samples
from framework.config.templates.variables import run_samples
from framework.config.yaml.document import Document, KeyPath
from framework.types.problem import Problem
from framework.types.spec import AgentSpec, TemplateRef


class Renderable(Protocol):
    """What is checked of an agent: its templates, and what they are rendered with."""

    @property
    def spec(self) -> AgentSpec:
        """The agent's file, as data."""
        ...

    @property
    def document(self) -> Document:
        """The file itself, for the places of problems."""
        ...

    @property
    def prompts(self) -> Prompts:
        """All templates."""
        ...

    @property
    def variables(self) -> Mapping[str, Any]:
        """Variables that every template may use."""
        ...


def runtime_templates(spec: AgentSpec, shared: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The runtime's own templates that an agent is rendered with, each with sample values."""
    unused = {"plan.j2", "summary.j2"} if spec.executor == "react" else set()
    return ((name, variables) for name, variables in runtime_samples(shared) if name not in unused)


def prompt_problems(agent: Renderable) -> Iterator[Problem]:
    """Render with samples: an unknown variable or a broken include shows before a request does."""
    source = agent.spec.instructions
    if not (isinstance(source, TemplateRef) or agent.prompts.project_names):
        return
    shared = {**agent.variables, "locale": "en"}
    if isinstance(source, TemplateRef):
        requests = [
            (f"{when}{where}", {**shared, **run.data(), "user": None, **source.vars, **inputs})
            for where, run in run_samples(_variables_used(agent, source.template)).items()
            for when, inputs in input_samples(agent.spec.inputs)
        ]
        yield from _render_problems(agent, source.template, requests, ("instructions", "template"))
    for name, variables in runtime_templates(agent.spec, shared):
        if not agent.prompts.project_names.isdisjoint(agent.prompts.closure([name])):
            samples = [("", {**variables, **run.data()}) for run in run_samples(_variables_used(agent, name)).values()]
            yield from _render_problems(agent, name, samples, ())


def _variables_used(agent: Renderable, template: str) -> set[str]:
    """The variables that a template uses in any language."""
    try:
        return set().union(*(agent.prompts.variables(variant) for variant in agent.prompts.variants(template)))
    except (TemplateSyntaxError, RecursionError):
        return set()  # what is wrong with it is reported


def _render_problems(
    agent: Renderable, template: str, samples: Iterable[tuple[str, Mapping[str, Any]]], path: KeyPath
) -> Iterator[Problem]:
    """What is wrong with each locale's variant: in the template, and in the file that uses it."""
    samples = list(samples)
    for variant in agent.prompts.variants(template):
        found, hint = agent.prompts.check(variant, samples[0][1]), None
        if not found:
            found, hint = _render_failure(agent.prompts, variant, samples)
        yield from found
        if found:
            message = f"its template {variant} cannot be rendered: {found[0].place}: {found[0].message}"
            yield agent.document.problem(path, message, hint=hint)


def _render_failure(
    prompts: Prompts, variant: str, samples: Iterable[tuple[str, Mapping[str, Any]]]
) -> tuple[tuple[Problem, ...], str | None]:
    """The first error of rendering with samples, and which sample it was."""
    for when, variables in samples:
        try:
            prompts.render_within_timeout(variant, variables)
        except PromptError as error:
            return (error.problem,), f"tried {when}" if when else None
    return (), None
