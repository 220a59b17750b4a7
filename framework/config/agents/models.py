"""The models that files name: whether there are such, and whether they know what is set for them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping

from framework.config.settings import SETTINGS_FILE, Settings, variable_name
from framework.config.yaml.document import Document, DocumentError, KeyPath, read_document
from framework.config.yaml.environment import expand
from framework.config.yaml.parse import mask_problems
from framework.llm.capabilities import unsupported_settings
from framework.types.problem import Problem
from framework.types.spec import AgentSpec
from framework.types.text import did_you_mean

_HINT = "write provider/model, or an alias from agentsd.yaml"
_ALIAS_HINT = "write provider/model: the provider is the one whose format the server speaks, mostly openai"


def setting_problems(settings: Settings, source: bytes, models: Collection[str]) -> Iterator[Problem]:
    """What is wrong with the models that the settings name, as far as they come from this file or the environment.

    Args:
        settings: as they are in effect.
        source: of `agentsd.yaml`.
        models: all there are but the settings' own.
    """
    own = {*models, *settings.models}
    named: dict[KeyPath, str | None] = {("model",): settings.model, ("routing", "model"): settings.routing.model}
    aliases: dict[KeyPath, str | None] = {("models", n, "model"): alias.model for n, alias in settings.models.items()}
    checked = [(path, name, unknown_model(name, own)) for path, name in named.items() if name]
    checked += [(path, name, unknown_model(name, models)) for path, name in aliases.items() if name]
    wrong = [one for one in checked if one[2]]
    if not wrong:
        return
    try:
        document = read_document(SETTINGS_FILE, source)
    except DocumentError:
        return  # the settings are a program's own
    written, _ = expand(document, os.environ)
    for path, name, message in wrong:
        hint = _ALIAS_HINT if path in aliases else _HINT
        if _at(written, path) == name:
            yield from mask_problems([document.problem(path, message, hint=hint)], source)
        elif os.environ.get(variable_name(path)) == name:
            yield Problem(path=variable_name(path), message=message, hint=hint)


def _at(data: object, path: KeyPath) -> object:
    for key in path:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def model_problems(spec: AgentSpec, document: Document, models: Collection[str]) -> Iterator[Problem]:
    """What is wrong with the models of an agent."""
    for path, model in models_of(spec):
        if message := unknown_model(model, models):
            yield document.problem(path, message, hint=_HINT)
    provider = (spec.model or "").partition("/")[0]
    for name in unsupported_settings(provider, spec.model_settings):
        hint = "take it out: it would do nothing"
        yield document.problem(("model_settings", name), f"{provider} knows no {name}", hint=hint, at_key=True)


def models_of(spec: AgentSpec) -> Iterator[tuple[KeyPath, str]]:
    """The models that an agent's file names, each with its place."""
    if spec.model is not None:
        yield ("model",), spec.model
    yield from ((("fallback_models", index), name) for index, name in enumerate(spec.fallback_models))
    if spec.plan.model is not None:
        yield ("plan", "model"), spec.plan.model


def knows_models(spec: AgentSpec, models: Collection[str]) -> bool:
    """Whether an agent's models are among these, or of these providers."""
    return not any(unknown_model(name, models) for _, name in models_of(spec))


def unknown_model(name: str, models: Collection[str]) -> str:
    """What is wrong with the name of a model; empty: nothing.

    Args:
        name: as files write it.
        models: all there are; of a provider's, `provider/`.
    """
    provider, slash, rest = name.partition("/")
    if name in models or (rest and provider + slash in models):
        return ""
    if provider + "/" in models:
        return f"unknown model {name!r}: {provider} is a provider, and which of its models is not said"
    return f"unknown model {name!r}{did_you_mean(provider, sorted(model.removesuffix('/') for model in models))}"
