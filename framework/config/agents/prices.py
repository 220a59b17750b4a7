"""Finds cost limits that cannot be enforced: the price of a model is unknown, or was left at 0."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from framework.config.agents.budgets import Budgets
from framework.config.agents.models import named_models, value_at
from framework.config.overlay import SETTINGS_FILE, SettingsSource
from framework.config.settings import ModelAlias, Settings
from framework.config.yaml.document import Document, KeyPath
from framework.llm.capabilities import Capabilities, known_capabilities
from framework.llm.providers import chosen_api
from framework.types.problem import Problem
from framework.types.spec import AgentSpec

_LIMIT_PATH, _COST_PATH = ("runtime_policy", "max_cost_usd"), ("runtime_policy", "cost")
_PRICES = "{input: N, output: N}"
OPT_OUT_HINT = "or set runtime_policy.cost: unknown_ok, and its calls count as 0"


@dataclass(frozen=True, slots=True)
class PriceList:
    """The models whose price is known from the settings or the built-in table."""

    default: str
    """The model of agents that do not name one."""
    routing: str | None
    """The model that selects agents; its cost counts towards the run's limit."""
    aliases: Mapping[str, ModelAlias]
    own: Collection[str]
    """Names of clients that the program passes in, and `offline`. Their prices are checked when a run calls them."""

    @classmethod
    def of(cls, settings: Settings, own: Collection[str]) -> PriceList:
        """Return the price list of a generation with these settings."""
        return cls(settings.model, settings.routing.model, settings.models, own)

    def has_price(self, name: str) -> bool:
        """Return whether the price of a model is known; it may be 0."""
        if name in self.own:
            return True
        alias = self.aliases.get(name)
        return (alias.model if alias else name) in self.own or self.capabilities(name).prices is not None

    def capabilities(self, name: str) -> Capabilities:
        """Return what is known about a model, from its alias and the built-in table."""
        alias = self.aliases.get(name) or ModelAlias.model_construct(model=name)
        known = (alias.capabilities or Capabilities()).over(known_capabilities(alias.model, alias.base_url))
        api = chosen_api(alias.model, base_url=alias.base_url, api=alias.api, capabilities=alias.capabilities)
        return known.model_copy(update={"api": api})

    def unpriced(self, spec: AgentSpec, specs: Mapping[str, AgentSpec]) -> Iterator[tuple[str, str]]:
        """Yield each model without a price that a run of the agent may call, and the key that names it."""
        if self.routing and not self.has_price(self.routing):
            yield self.routing, "routing.model"
        seen, queue = {spec.name}, [spec]
        while queue:
            current = queue.pop()
            used = [(name, ".".join(map(str, path))) for path, name in named_models(current)]
            if current.model is None:
                used.append((self.default, f"the default model of {SETTINGS_FILE}"))
            owner = "" if current is spec else f"{current.name}: "
            yield from ((name, owner + place) for name, place in used if not self.has_price(name))
            unseen = [name for name in current.sub_agents if name in specs and name not in seen]
            seen.update(unseen)
            queue += [specs[name] for name in unseen]


def zero_price_warnings(settings: Settings, source: SettingsSource) -> Iterator[Problem]:
    """Yield a warning for each model whose prices are written as 0, perhaps until somebody looks them up.

    Args:
        settings: the settings in effect.
        source: the content of the settings files.
    """
    aliases = ((name, alias.capabilities and alias.capabilities.prices) for name, alias in settings.models.items())
    free = [name for name, prices in aliases if prices and not (prices.input or prices.output)]
    if not free:
        return
    document = source.document_or_none()
    if document is None:
        return
    for name in free:
        path: KeyPath = ("models", name, "capabilities", "prices")
        if isinstance(value_at(document.data, path), Mapping):
            message = f"the prices of {name} are 0, so max_cost_usd never limits its calls"
            hint = "if the model costs nothing, write `prices: free`"
            problem = document.problem(path, message, hint=hint, at_key=True)
            yield problem.model_copy(update={"severity": "warning"})


def price_problems(
    spec: AgentSpec, document: Document, specs: Mapping[str, AgentSpec], prices: PriceList
) -> Iterator[Problem]:
    """Yield an error for an agent's cost limit if it, or a sub-agent, may call a model without a price.

    With `runtime_policy.cost: unknown_ok`, yield a warning for each of these models instead.
    """
    policy = spec.runtime_policy
    if policy.max_cost_usd is None:
        return
    opt_out = "" if spec.budgets else f"; {OPT_OUT_HINT}"  # a shared limit needs the price in any case
    named: set[str] = set()
    for name, place in prices.unpriced(spec, specs):
        if name in named:
            continue
        named.add(name)
        hint = price_hint(name, name in prices.aliases)
        if policy.cost == "known":
            message = f"max_cost_usd cannot be enforced: the price of {name} is unknown ({place})"
            yield document.problem(_LIMIT_PATH, message, hint=f"{hint}{opt_out}", at_key=True)
            return
        message = f"max_cost_usd counts calls of {name} as 0: its price is unknown ({place})"
        problem = document.problem(_COST_PATH, message, hint=hint, at_key=True)
        yield problem.model_copy(update={"severity": "warning"})


def budget_price_problems(
    spec: AgentSpec, document: Document, specs: Mapping[str, AgentSpec], prices: PriceList, budgets: Budgets
) -> Iterator[Problem]:
    """Yield an error for a shared cost limit of an agent if it, or a sub-agent, may call a model without a price.

    One missing price is one error: none if that of the agent's own limit says so, and only the first shared limit.
    """
    if spec.runtime_policy.max_cost_usd is not None and spec.runtime_policy.cost == "known":
        return
    for index, name in enumerate(spec.budgets):
        place = budgets[name].places.get("max_cost_usd") if name in budgets else None
        if place and (unpriced := next(prices.unpriced(spec, specs), None)):
            model, key = unpriced
            limit = f"max_cost_usd of budget {name} ({place})"
            message = f"{limit} cannot be enforced: the price of {model} is unknown ({key})"
            yield document.problem(("budgets", index), message, hint=price_hint(model, model in prices.aliases))
            return


def price_hint(name: str, is_alias: bool) -> str:
    """Return the hint on how to set the price of a model."""
    unit = "in US dollars per million tokens"
    if is_alias:
        return f"set capabilities.prices of models.{name} in {SETTINGS_FILE}: {_PRICES}, {unit}, or `free`"
    entry = f"{name}: {{model: {name}, capabilities: {{prices: {_PRICES}}}}}"
    return f"add to `models` in {SETTINGS_FILE}: `{entry}`, {unit}, or `prices: free`"
