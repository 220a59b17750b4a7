"""Which agent takes a message: explicit > the conversation's last agent > rules > model > default. The Route says why.

The model's part is in `choosing.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from framework.config.agents.compile import Agent
from framework.llm.client import ModelInfo
from framework.types.errors import AgentNotFound, RequestError
from framework.types.messages import Usage
from framework.types.spec import Routing
from framework.types.warnings import RunWarning

Mode = Literal["explicit", "conversation", "rule", "model", "default"]
NO_AGENTS = "there are no agents: put one under agents.d/, or run `agentsd init`"
_FALLBACK_AGENT = "assistant"
"""Takes what no rule matches, if there is an agent of that name and no `routing.default_agent`."""
_UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3\uf900-\ufaff"
    r"\U00020000-\U0003ffff"
)
"""Scripts whose words stand without spaces, or grow endings: Thai, Burmese, Khmer, Japanese, Chinese, Korean."""


@dataclass(frozen=True, slots=True)
class RoutingCall:
    """The question to a model that a route comes from."""

    info: ModelInfo
    usage: Usage
    began_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True)
class Route:
    """The agent that was chosen, and why."""

    agent: Agent
    mode: Mode
    reason: str
    confidence: float = 1.0
    executor: str = ""
    """How it works, where its file leaves that open and a model has chosen that, too."""
    model_call: RoutingCall | None = None
    usage: Usage = field(default_factory=Usage)
    """Usage of the model call that routes, whether or not its choice is used."""
    warnings: tuple[RunWarning, ...] = ()
    """Warnings of the model call that routes."""


def choose_route(
    message: str,
    agents: Mapping[str, Agent],
    *,
    explicit: str | None = None,
    last: str | None = None,
    default: str | None = None,
) -> Route:
    """Choose an agent.

    Args:
        message: what the user wrote.
        agents: all there are.
        explicit: the agent the caller names.
        last: the agent that answered last in this conversation.
        default: `routing.default_agent`.

    Raises:
        AgentNotFound: the explicit or the default agent is not there.
        RequestError: nothing matches and there is no default.
    """
    return known_route(message, agents, explicit=explicit, last=last) or default_route(agents, default)


def known_route(
    message: str, agents: Mapping[str, Agent], *, explicit: str | None = None, last: str | None = None
) -> Route | None:
    """The same without the default: what the caller, the conversation or the rules say, if anything.

    Raises:
        AgentNotFound: the explicit agent is not there.
    """
    if explicit is not None:
        return Route(_named(explicit, agents), "explicit", "named by the caller")
    if last is not None and last in agents:
        return Route(agents[last], "conversation", "answered last in this conversation")
    return _by_rules(message, agents)


def _named(name: str, agents: Mapping[str, Agent]) -> Agent:
    try:
        return agents[name]
    except KeyError:
        raise AgentNotFound(name, list(agents)) from None


def _by_rules(message: str, agents: Mapping[str, Agent]) -> Route | None:
    """The match of highest priority; between equals, the one with more matches, then the first by name."""
    found = []
    for name in sorted(agents):
        hits = _hits(message, agents[name].spec.routing)
        if hits:
            found.append((-agents[name].spec.routing.priority, -len(hits), name, hits))
    if not found:
        return None
    _, _, name, hits = min(found)
    same = [rival for rival in found if rival[:2] == min(found)[:2]]
    return Route(agents[name], "rule", hits[0], round(1 / len(same), 2))


def _hits(message: str, rules: Routing) -> list[str]:
    """The rules that match, as text for people."""
    text = message.casefold().strip()
    hits = [f"example {example!r}" for example in rules.examples if example.casefold().strip() == text]
    hits += [f"keyword {word!r}" for word in rules.keywords if _contains(text, word.casefold().strip())]
    hits += [f"pattern {pattern!r}" for pattern, compiled in rules.compiled if compiled.is_in(message)]
    return hits


def _contains(text: str, word: str) -> bool:
    """Whole words for scripts that have spaces between them, substrings for those that have none."""
    if not word or re.search(f"[{_UNSPACED}]", word):
        return bool(word) and word in text
    letter = rf"[^\W{_UNSPACED}]"
    return re.search(rf"(?<!{letter}){re.escape(word)}(?!{letter})", text) is not None


def default_route(agents: Mapping[str, Agent], default: str | None) -> Route:
    """What is left when nothing else says anything; raises AgentNotFound, or RequestError if there is no default."""
    if default is not None:
        return Route(_named(default, agents), "default", "routing.default_agent")
    if len(agents) == 1:
        (only,) = agents.values()
        return Route(only, "default", "the only agent")
    if _FALLBACK_AGENT in agents:
        reason = f"no rule matches; {_FALLBACK_AGENT!r} takes what is left"
        return Route(agents[_FALLBACK_AGENT], "default", reason, 0.5)
    if not agents:
        raise RequestError(NO_AGENTS)
    names = ", ".join(sorted(agents))
    raise RequestError(f"no agent's rules match this message; name one of: {names}, or set routing.default_agent")
