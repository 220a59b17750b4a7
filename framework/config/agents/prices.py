"""Cost limits that could not be enforced: an agent has one, and the price of a model it may use is unknown."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from framework.config.agents.models import models_of
from framework.config.settings import SETTINGS_FILE, ModelAlias, Settings
from framework.config.yaml.document import Document
from framework.llm.capabilities import Capabilities, known_capabilities
from framework.types.problem import Problem
from framework.types.spec import AgentSpec

_LIMIT_PATH = ("runtime_policy", "max_cost_usd")


@dataclass(frozen=True, slots=True)
class PriceList:
    """Which models have a price, as far as the settings and the built-in table say."""

    default: str
    """The model of agents that name none."""
    routing: str | None
    """The model that chooses agents; its cost counts towards the run's."""
    aliases: Mapping[str, ModelAlias]
    own: Collection[str]
    """Names of the program's own clients, and `offline`: they are checked when a run asks them."""

    @classmethod
    def of(cls, settings: Settings, own: Collection[str]) -> PriceList:
        """The price list of a generation."""
        return cls(settings.model, settings.routing.model, settings.models, own)

    def has_price(self, name: str) -> bool:
        """Return whether the price of a model is known, be it 0."""
        if name in self.own:
            return True
        alias = self.aliases.get(name)
        model = alias.model if alias else name
        given = (alias.capabilities if alias else None) or Capabilities()
        return model in self.own or given.over(known_capabilities(model)).prices is not None

    def unpriced(self, spec: AgentSpec, specs: Mapping[str, AgentSpec]) -> Iterator[tuple[str, str]]:
        """Yield each model without a price that a run of the agent may ask, with what asks it."""
        if self.routing and not self.has_price(self.routing):
            yield self.routing, "routing.model"
        seen, waiting = {spec.name}, [spec]
        while waiting:
            one = waiting.pop()
            used = [(name, ".".join(map(str, path))) for path, name in models_of(one)]
            if one.model is None:
                used.append((self.default, f"the default model of {SETTINGS_FILE}"))
            whose = "" if one is spec else f"{one.name}: "
            yield from ((name, whose + place) for name, place in used if not self.has_price(name))
            fresh = [name for name in one.sub_agents if name in specs and name not in seen]
            seen.update(fresh)
            waiting += [specs[name] for name in fresh]


def price_problems(
    spec: AgentSpec, document: Document, specs: Mapping[str, AgentSpec], prices: PriceList
) -> Iterator[Problem]:
    """Yield an error for an agent's cost limit if a model that it, or a sub-agent, may ask has no price."""
    if found := next(prices.unpriced(spec, specs), None):
        name, place = found
        message = f"max_cost_usd cannot be enforced: the price of {name} is unknown ({place})"
        yield document.problem(_LIMIT_PATH, message, hint=price_hint(name, name in prices.aliases), at_key=True)


def price_hint(name: str, is_alias: bool) -> str:
    """Return what to write so that a cost limit can be enforced."""
    place = f"models.{name}" if is_alias else f"a model {name} under `models`"
    return f"set capabilities.prices of {place} in {SETTINGS_FILE}: US dollars for a million tokens, or `free`"
