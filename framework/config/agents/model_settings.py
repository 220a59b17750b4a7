"""Finds model settings of agents that a model does not support."""

from __future__ import annotations

from collections.abc import Iterator

from framework.config.agents.models import named_models
from framework.config.agents.prices import PriceList
from framework.config.overlay import SETTINGS_FILE
from framework.config.yaml.document import Document
from framework.llm.capabilities import unsupported_settings
from framework.types.problem import Problem
from framework.types.spec import AgentSpec


def model_setting_problems(spec: AgentSpec, document: Document, prices: PriceList) -> Iterator[Problem]:
    """Yield an error for each model setting that the agent's models do not support.

    Fallback models are called without it, or with the closest reasoning level that they have.
    """
    used = {} if spec.model else {prices.default: f" (the default model of {SETTINGS_FILE})"}
    for path, name in named_models(spec):
        if path[0] != "fallback_models":
            used.setdefault(name, "" if path == ("model",) else f" ({'.'.join(map(str, path))})")
    for name, place in used.items():
        if name in prices.own:
            continue
        alias = prices.aliases.get(name)
        model = alias.model if alias else name
        provider = model.partition("/")[0]
        for setting, problem, hint in unsupported_settings(
            provider, model, spec.model_settings, prices.capabilities(name)
        ):
            yield document.problem(("model_settings", setting), problem + place, hint=hint, at_key=True)
