"""Models of a project: aliases, prices, budgets, and settings that a model does not take."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from framework.config.overlay import SETTINGS_FILE, SettingsSource
from framework.config.settings import ModelAlias, Settings, variable_name
from framework.config.yaml.document import Document, KeyPath
from framework.config.yaml.parse import expand, get_dotted, mask_problems, variable_hint
from framework.llm.capabilities import Capabilities, known_capabilities
from framework.llm.client import ModelInfo
from framework.llm.providers import chosen_api, missing_sdk, other_name
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
    agents: Iterable[tuple[AgentSpec, Document]], settings: Settings, file: Document | None, missing: Mapping[str, str]
) -> Iterator[Problem]:
    """Yield a warning for each model of the agents, and the default one, whose SDK is not installed.

    Args:
        agents: the specs of the agents and their files.
        settings: the settings in effect.
        file: the settings files; None if the settings come from the program.
        missing: the result of `missing_sdks`.
    """
    for spec, document in agents:
        used = (one for one in named_models(spec) if one[1] in missing)
        yield from (document.warning(path, missing[name]) for path, name in used)
    if (text := missing.get(settings.model)) and file and value_at(file.data, ("model",)) == settings.model:
        yield file.warning(("model",), text)


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


_LIMIT_PATH, _COST_PATH = ("runtime_policy", "max_cost_usd"), ("runtime_policy", "cost")
_PRICES = "{input: N, output: N}"
OPT_OUT_HINT = "or set limits.prices: unknown_ok, and its calls count as 0"


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

    def window(self, name: str | None) -> int | None:
        """Return the context window of a model in tokens, by default of the default model; None if it is unknown."""
        return self.capabilities(name or self.default).context_window

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
            others = (*current.sub_agents, *current.handoffs)
            unseen = [name for name in dict.fromkeys(others) if name in specs and name not in seen]
            seen.update(unseen)
            queue += [specs[name] for name in unseen]


def zero_price_warnings(settings: Settings, document: Document | None) -> Iterator[Problem]:
    """Yield a warning for each model whose prices the file writes as 0, perhaps until somebody looks them up."""
    for name, alias in settings.models.items() if document else ():
        prices, path = alias.capabilities and alias.capabilities.prices, ("models", name, "capabilities", "prices")
        is_free = prices and not (prices.input or prices.output)
        if document and is_free and isinstance(value_at(document.data, path), Mapping):
            message = f"the prices of {name} are 0, so max_cost_usd never limits its calls"
            yield document.warning(path, message, hint="if the model costs nothing, write `prices: free`", at_key=True)


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
        yield document.warning(_COST_PATH, message, hint=hint, at_key=True)


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
        provider, _, model = (alias.model if alias else name).partition("/")
        info = ModelInfo(provider, model, capabilities=prices.capabilities(name))
        for setting, problem, hint in info.unsupported_settings(spec.model_settings):
            yield document.problem(("model_settings", setting), problem + place, hint=hint, at_key=True)


_SETTING = ("work", "max_running")


def unused_limit_warnings(
    settings: Settings, document: Document | None, agents: Collection[str], models: Collection[str]
) -> Iterator[Problem]:
    """Yield a warning for each agent and each model of `work.max_running` that does not exist.

    Args:
        settings: the settings in effect.
        document: the settings files; None if the settings come from the program.
        agents: the names of all agents.
        models: all known models except the aliases in the settings.
    """
    limits, own = settings.work.max_running, {*models, *settings.models}
    unused: dict[KeyPath, str] = {
        ("agents", name): f"no agent named {name!r}{did_you_mean(name, sorted(agents))}"
        for name in limits.agents
        if name not in agents
    }
    unused |= {("models", name): message for name in limits.models if (message := unknown_model_message(name, own))}
    for key, message in unused.items():
        path: KeyPath = (*_SETTING, *key)
        if document and value_at(document.data, path) is not None:
            yield document.warning(path, f"{message}: its limit has no effect", at_key=True)
