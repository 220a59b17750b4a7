"""Routing without a model: by the caller's choice, the conversation's last agent, rules, or the default agent.

They apply in this order; `routing.model`, if set, comes before the default. Each route contains its reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from framework.config.agents.compile import Agent
from framework.config.agents.findings import BrokenAgent, find_broken, require_valid
from framework.llm.client import ModelInfo
from framework.types.errors import AgentBroken, AgentNotFound, RequestError
from framework.types.messages import ModelUse, Usage
from framework.types.report import RunWarning
from framework.types.spec import Routing

Mode = Literal["explicit", "conversation", "rule", "model", "default"]
NO_AGENTS = "there are no agents: put one under agents.d/, or run `agentsd init`"
_FALLBACK_AGENT = "assistant"
"""Default agent if an agent has this name and `routing.default_agent` is not set."""
_UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3\uf900-\ufaff"
    r"\U00020000-\U0003ffff"
)
"""Scripts without spaces between words, or with suffixes: Thai, Burmese, Khmer, Japanese, Chinese, Korean."""


@dataclass(frozen=True, slots=True)
class RoutingCall:
    """The model call that chose a route."""

    info: ModelInfo
    usage: Usage
    began_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True)
class Route:
    """The agent chosen for a message, and why."""

    agent: Agent
    mode: Mode
    reason: str
    confidence: float = 1.0
    executor: str = ""
    """Executor that a model chose with the agent; empty unless the agent's executor is `auto`."""
    model_call: RoutingCall | None = None
    usage: Usage = field(default_factory=Usage)
    """Usage of the model call that routes, whether or not its choice is used."""
    model_uses: Mapping[str, ModelUse] = field(default_factory=dict)
    """The same usage by model."""
    warnings: tuple[RunWarning, ...] = ()
    """Warnings of the model call that routes."""


def choose_route(
    message: str,
    agents: Mapping[str, Agent],
    *,
    explicit: str | None = None,
    last: str | None = None,
    default: str | None = None,
    broken: Sequence[BrokenAgent] = (),
) -> Route:
    """Choose an agent.

    Args:
        message: the user's message.
        agents: the agents to choose from.
        explicit: the agent that the caller names.
        last: the agent that answered last in this conversation.
        default: `routing.default_agent`.
        broken: the agents that are invalid. A message for one of them is given to no other agent.

    Raises:
        AgentNotFound: the explicit or the default agent does not exist.
        AgentBroken: the message is for a broken agent, or may be.
        RequestError: no rule matches, and there is no default agent.
    """
    known = known_route(message, agents, explicit=explicit, last=last, broken=broken)
    return known or default_route(agents, default, broken)


def known_route(
    message: str,
    agents: Mapping[str, Agent],
    *,
    explicit: str | None = None,
    last: str | None = None,
    broken: Sequence[BrokenAgent] = (),
) -> Route | None:
    """Choose an agent by name, conversation or rules; return None if no rule applies.

    Raises:
        AgentNotFound: the explicit agent does not exist.
        AgentBroken: the message is for a broken agent, or may be, because its rules cannot be read.
    """
    if explicit is not None:
        return Route(_named(explicit, agents, broken), "explicit", "named by the caller")
    if last is not None and (last in agents or find_broken(last, broken)):
        reason = "answered last in this conversation"
        return Route(_named(last, agents, broken, reason), "conversation", reason)
    if route := _by_rules(message, agents, broken):
        return route
    if unreadable := next((agent for agent in broken if agent.routing is None), None):
        reason = f"the routing rules in {unreadable.path} cannot be read, and no other agent's rules match this message"
        raise AgentBroken(f"{reason}: correct the file, or name an agent", [unreadable.name], unreadable.problems)
    return None


def _named(name: str, agents: Mapping[str, Agent], broken: Sequence[BrokenAgent], reason: str = "") -> Agent:
    if name not in agents:
        require_valid(name, broken, reason)
        raise AgentNotFound(name, list(agents))
    return agents[name]


def _by_rules(message: str, agents: Mapping[str, Agent], broken: Sequence[BrokenAgent]) -> Route | None:
    """Return the match with the highest priority; among equals, the one with more hits, then the first by name."""
    rules = {agent.name: agent.routing for agent in broken if agent.routing is not None}
    rules |= {name: agent.spec.routing for name, agent in agents.items()}
    matches = []
    for name in sorted(rules):
        hits = _hits(message, rules[name])
        if hits:
            matches.append((-rules[name].priority, -len(hits), name, hits))
    if not matches:
        return None
    _, _, name, hits = min(matches)
    ties = [match for match in matches if match[:2] == min(matches)[:2]]
    return Route(_named(name, agents, broken, hits[0]), "rule", hits[0], round(1 / len(ties), 2))


def _hits(message: str, rules: Routing) -> list[str]:
    """Return the rules that match, as readable text."""
    text = message.casefold().strip()
    hits = [f"example {example!r}" for example in rules.examples if example.casefold().strip() == text]
    hits += [f"keyword {word!r}" for word in rules.keywords if _contains(text, word.casefold().strip())]
    hits += [f"pattern {pattern!r}" for pattern, compiled in rules.compiled if compiled.is_in(message)]
    return hits


def _contains(text: str, word: str) -> bool:
    """Return whether the text contains the word: a whole word in scripts with spaces, a substring in others."""
    if not word or re.search(f"[{_UNSPACED}]", word):
        return bool(word) and word in text
    letter = rf"[^\W{_UNSPACED}]"
    return re.search(rf"(?<!{letter}){re.escape(word)}(?!{letter})", text) is not None


def default_route(agents: Mapping[str, Agent], default: str | None, broken: Sequence[BrokenAgent] = ()) -> Route:
    """Return the route to the default agent.

    Raises:
        AgentNotFound: the default agent does not exist.
        AgentBroken: it is broken, or there would be a choice if the broken agents were valid.
        RequestError: there is no default agent.
    """
    if default is not None:
        return Route(_named(default, agents, broken, "routing.default_agent"), "default", "routing.default_agent")
    if len(agents) == 1 and not broken:
        (only,) = agents.values()
        return Route(only, "default", "the only agent")
    reason = f"no rule matches; {_FALLBACK_AGENT!r} is the fallback agent"
    if _FALLBACK_AGENT in agents or find_broken(_FALLBACK_AGENT, broken):
        return Route(_named(_FALLBACK_AGENT, agents, broken, reason), "default", reason, 0.5)
    if not agents:
        raise RequestError(NO_AGENTS)
    names = ", ".join(sorted(agents))
    if broken:
        invalid = ", ".join(sorted({agent.name for agent in broken}))
        message = f"no agent's rules match this message, and the files of some agents have errors ({invalid})"
        problems = [problem for agent in broken for problem in agent.problems]
        raise AgentBroken(f"{message}; correct them, or name one of: {names}", invalid.split(", "), problems)
    raise RequestError(f"no agent's rules match this message; name one of: {names}, or set routing.default_agent")
