"""The models that agents name: whether there are such, and whether they know what is set for them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from framework.config.document import Document, Path
from framework.llm.capabilities import unknown_settings
from framework.types.errors import did_you_mean
from framework.types.problem import Problem
from framework.types.spec import AgentSpec


def model_problems(spec: AgentSpec, document: Document, models: Collection[str]) -> Iterator[Problem]:
    """What is wrong with the models of an agent."""
    for path, model in models_of(spec):
        if not _is_known(model, models):
            hint = "write provider/model, or an alias from agentsd.yaml"
            message = f"unknown model {model!r}{did_you_mean(model.partition('/')[0], sorted(models))}"
            yield document.problem(path, message, hint=hint)
    provider = (spec.model or "").partition("/")[0]
    for name in unknown_settings(provider, spec.model_settings):
        hint = "take it out: it would do nothing"
        yield document.problem(("model_settings", name), f"{provider} knows no {name}", hint=hint, at_key=True)


def models_of(spec: AgentSpec) -> Iterator[tuple[Path, str]]:
    """The models that an agent's file names, each with its place."""
    if spec.model is not None:
        yield ("model",), spec.model
    yield from ((("fallback_models", index), name) for index, name in enumerate(spec.fallback_models))
    if spec.plan.model is not None:
        yield ("plan", "model"), spec.plan.model


def knows_models(spec: AgentSpec, models: Collection[str]) -> bool:
    """Whether an agent's models are among these, or of these providers."""
    return all(_is_known(name, models) for _, name in models_of(spec))


def _is_known(name: str, models: Collection[str]) -> bool:
    return name in models or name.partition("/")[0] in models
