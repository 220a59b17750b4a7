"""Checks an agent's templates when its file is loaded: variables, and rendering with samples."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol

from jinja2 import TemplateSyntaxError

from framework.config.templates.prompts import PLAN_TEMPLATE, RUN_VARIABLES, PromptError, Prompts, RunVariables
from framework.config.yaml.document import Document, KeyPath
from framework.types.http import HttpLimits
from framework.types.messages import Message, Summary
from framework.types.plan import Plan, PlanStep
from framework.types.problem import Problem
from framework.types.spec import AgentSpec, InputSpec, TemplateRef


def run_samples(used: Collection[str]) -> Mapping[str, RunVariables]:
    """Return sample values by description; more than one only if the template uses variables of the run."""
    messages = (Message(role="user", content="text"), Message(role="assistant", content="text"))
    samples = {"": RunVariables("text", messages, HttpLimits(domains=("example.com",)))}
    if RUN_VARIABLES.isdisjoint(used):
        return samples
    return {**samples, ", in a new conversation": RunVariables("text")}


class AnyValue(dict[str, Any]):
    """A placeholder for an object of undeclared shape: it has every key and accepts every operator."""

    def __missing__(self, key: str) -> AnyValue:
        return self

    def _self(self, *_: object) -> AnyValue:
        return self

    def _false(self, _: object) -> bool:
        return False

    def __format__(self, _: str) -> str:
        return ""

    def __float__(self) -> float:
        return 0.0

    def __index__(self) -> int:
        return 0

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _self
    __floordiv__ = __mod__ = __neg__ = __round__ = _self
    __lt__ = __le__ = __gt__ = __ge__ = _false


def input_samples(inputs: Mapping[str, InputSpec]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield sample requests with a description: one with all inputs, and one with the required inputs only."""
    samples = {name: _sample(field) if field.default is None else field.default for name, field in inputs.items()}
    yield "with all inputs", samples
    if optional := {name: field.default for name, field in inputs.items() if not field.required}:
        yield f"without {', '.join(optional)}", samples | optional


def placeholders(inputs: Mapping[str, InputSpec]) -> dict[str, Any]:
    """Return a value to display for each input: its default, or its name in angle brackets."""
    return {
        name: field.default if field.default is not None else f"<{name}>" if field.type == "string" else _sample(field)
        for name, field in inputs.items()
    }


def runtime_samples(shared: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the runtime's own templates with sample variables; all but `error.j2` also receive `shared`."""
    steps = tuple(PlanStep(id=f"s{n}", description="text", status=s) for n, s in enumerate(("done", "failed")))
    yield "react.j2", shared
    planning = {"findings": [], "feedback": "", "progress": [], "max_plan_steps": 1}
    progress = [{"id": "s1", "status": "done", "description": "text"}]
    yield "plan.j2", {**shared, **planning}
    yield "plan.j2", {**shared, **planning, "findings": ["text"], "feedback": "text", "progress": progress}
    yield "summary.j2", {**shared, "plan": Plan(goal="text", steps=steps).model_dump()}
    yield "compress.j2", {**shared, "requests": ["text"]}
    summary = Summary(upto=1, text="text", events=("text",), facts=("text",)).model_dump()
    yield "earlier.j2", {**shared, "summary": summary}
    yield "earlier.j2", {**shared, "summary": {**summary, "events": (), "facts": ()}}
    finding = {"field": "text", "kind": "value", "problem": "text", "value": "text", "expected": "text", "fix": "text"}
    yield "error.j2", {"tool": "text", "message": "text", "hint": None, "findings": []}
    yield "error.j2", {"tool": "text", "message": "text", "hint": None, "findings": [finding]}


def _sample(field: InputSpec) -> Any:
    match field.type:
        case "string":
            return "text"
        case "integer":
            return 1
        case "number":
            return 1.5
        case "boolean":
            return True
        case "array":
            return [AnyValue()]
        case "object":
            return AnyValue()


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
