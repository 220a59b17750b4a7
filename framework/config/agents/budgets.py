"""Shared budgets as files define them: their places, and the names that agent files use."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from framework.config.overlay import SETTINGS_FILE, SettingsSource
from framework.config.settings import Settings, variable_name
from framework.config.yaml.document import Document
from framework.config.yaml.environment import expand
from framework.config.yaml.partial import get_dotted
from framework.types.budget import BudgetLimit, SharedBudget
from framework.types.problem import Problem
from framework.types.spec import AgentSpec
from framework.types.text import did_you_mean

_SECTION = "budgets"
_NO_FILE = "the settings of the program"


@dataclass(frozen=True, slots=True)
class DefinedBudget:
    """A shared budget with the place of each of its limits."""

    name: str
    budget: SharedBudget
    places: Mapping[BudgetLimit, str]
    """`file:line` of each limit that is set, or what else sets it."""


Budgets = Mapping[str, DefinedBudget]
"""Shared budgets by name."""


def define_budgets(settings: Settings, source: SettingsSource, previous: Budgets) -> Budgets:
    """Return the budgets of the settings, with their places.

    Args:
        settings: the settings in effect.
        source: the content of the settings files.
        previous: the budgets until now: a limit that the file does not contain keeps its place.
    """
    if not settings.budgets:
        return {}
    document = source.document_or_none()
    written = expand(document, os.environ)[0] if document else {}
    defined = {}
    for name, budget in settings.budgets.items():
        places = {key: _place(name, key, limit, document, written, previous) for key, limit in budget.limits()}
        defined[name] = DefinedBudget(name, budget, places)
    return defined


def _place(
    name: str, key: BudgetLimit, limit: float, document: Document | None, written: Mapping[str, Any], previous: Budgets
) -> str:
    variable = variable_name((_SECTION,))
    if document and str(get_dotted(written, f"{_SECTION}.{name}.{key}")) in (str(limit), f"{limit:g}"):
        return document.place((_SECTION, name, key))
    if any(given.upper().startswith(variable) for given in os.environ):
        return variable
    return previous[name].places.get(key, _NO_FILE) if name in previous else _NO_FILE


def with_used_budgets(defined: Budgets, previous: Budgets, specs: Iterable[AgentSpec]) -> Budgets:
    """Return the budgets, with those that the last good version of an agent still names and no file defines."""
    removed = previous.keys() - defined.keys()
    kept = removed.intersection(name for spec in specs for name in spec.budgets) if removed else set[str]()
    return {**defined, **{name: previous[name] for name in sorted(kept)}} if kept else defined


def budget_problems(spec: AgentSpec, document: Document, known: Collection[str]) -> Iterator[Problem]:
    """Yield a problem for each budget of an agent that agentsd.yaml does not define."""
    for index, name in enumerate(spec.budgets):
        if name not in known:
            hint = (
                None
                if known
                else f"define it in {SETTINGS_FILE}, as in `budgets: {{{name}: {{max_cost_usd: 5, per: day}}}}`"
            )
            yield document.problem(
                (_SECTION, index), f"there is no budget {name!r}{did_you_mean(name, sorted(known))}", hint=hint
            )
