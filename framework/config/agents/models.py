"""Checks the model names in agent files and in `agentsd.yaml`."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping

from framework.config.overlay import SettingsSource
from framework.config.settings import Settings, variable_name
from framework.config.yaml.document import Document, KeyPath
from framework.config.yaml.environment import expand, variable_hint
from framework.config.yaml.parse import mask_problems
from framework.llm.providers import missing_sdk, other_name
from framework.types.problem import Problem
from framework.types.spec import AgentSpec
from framework.types.text import did_you_mean

_HINT = "write provider/model, or an alias from agentsd.yaml"
_ALIAS_HINT = "write provider/model, where the provider is the one whose API the server implements, usually openai"


def setting_problems(settings: Settings, source: SettingsSource, models: Collection[str]) -> Iterator[Problem]:
    """Yield a problem for each unknown model in the settings that this file or the environment names.

    Args:
        settings: the settings in effect.
        source: the content of the settings files.
        models: all known models except the aliases in the settings.
    """
    own = {*models, *settings.models}
    named: dict[KeyPath, str | None] = {("model",): settings.model, ("routing", "model"): settings.routing.model}
    aliases: dict[KeyPath, str | None] = {("models", n, "model"): alias.model for n, alias in settings.models.items()}
    checked = [(path, name, unknown_model_message(name, own)) for path, name in named.items() if name]
    checked += [(path, name, unknown_model_message(name, models)) for path, name in aliases.items() if name]
    unknown = [entry for entry in checked if entry[2]]
    if not unknown:
        return
    document = source.document_or_none()
    if document is None:
        return
    written, _ = expand(document, os.environ)
    for path, name, message in unknown:
        hint = _ALIAS_HINT if path in aliases else _HINT
        if value_at(written, path) == name:
            yield from mask_problems([document.problem(path, message, hint=hint)], source.text)
        elif os.environ.get(variable_name(path)) == name:
            yield Problem(path=variable_name(path), message=message, hint=hint)


def missing_sdks(names: Iterable[str], settings: Settings, own: Collection[str]) -> dict[str, str]:
    """Return the models, of the given names and aliases, whose SDK is not installed, with what to do.

    Args:
        names: the models and aliases.
        settings: the settings in effect.
        own: names of clients that the program passes in; they need no SDK.
    """
    models = {name: settings.models[name].model if name in settings.models else name for name in names}
    return {name: text for name, model in models.items() if model not in own and (text := missing_sdk(model))}


def missing_sdk_warnings(
    agents: Iterable[tuple[AgentSpec, Document]], settings: Settings, source: SettingsSource, missing: Mapping[str, str]
) -> Iterator[Problem]:
    """Yield a warning for each model of the agents, and the default one, whose SDK is not installed.

    Args:
        agents: the specs of the agents and their files.
        settings: the settings in effect.
        source: the content of the settings files.
        missing: the result of `missing_sdks`.
    """
    found = [
        document.problem(path, missing[name])
        for spec, document in agents
        for path, name in named_models(spec)
        if name in missing
    ]
    if text := missing.get(settings.model):
        file = source.document_or_none()
        if file and value_at(file.data, ("model",)) == settings.model:
            found.append(file.problem(("model",), text))
    yield from (problem.model_copy(update={"severity": "warning"}) for problem in found)


def value_at(data: object, path: KeyPath) -> object:
    """Return the value at a path of keys, or None."""
    for key in path:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def model_problems(spec: AgentSpec, document: Document, models: Collection[str]) -> Iterator[Problem]:
    """Yield a problem for each unknown model of an agent."""
    for path, model in named_models(spec):
        if message := unknown_model_message(model, models):
            yield document.problem(path, message, hint=variable_hint(model) or _HINT)


def named_models(spec: AgentSpec) -> Iterator[tuple[KeyPath, str]]:
    """Yield the models that an agent file names, each with the path of its key."""
    if spec.model is not None:
        yield ("model",), spec.model
    yield from ((("fallback_models", index), name) for index, name in enumerate(spec.fallback_models))
    if spec.plan.model is not None:
        yield ("plan", "model"), spec.plan.model
    if spec.conversation.compress_model is not None:
        yield ("conversation", "compress_model"), spec.conversation.compress_model


def are_models_known(spec: AgentSpec, models: Collection[str]) -> bool:
    """Return whether all models of an agent are known."""
    return not any(unknown_model_message(name, models) for _, name in named_models(spec))


def unknown_model_message(name: str, models: Collection[str]) -> str:
    """Return why a model name is unknown, or an empty string if it is known.

    Args:
        name: the name as files contain it.
        models: all known names; `provider/` covers every model of a provider.
    """
    provider, slash, rest = name.partition("/")
    if name in models or (rest and provider + slash in models):
        return ""
    if provider + "/" in models:
        return f"unknown model {name!r}: {provider} is a provider; add the name of one of its models"
    known = sorted(model.removesuffix("/") for model in models)
    return f"unknown model {name!r}{other_name(provider) or did_you_mean(provider, known)}"
