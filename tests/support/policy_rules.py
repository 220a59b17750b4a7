"""Agents with policies, and generated policy rules with an independent evaluation of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from hypothesis import strategies as st

from framework import Tool, tool
from framework.config.agents.compile import Agent
from framework.config.agents.toolbox import ExternalTools
from framework.config.generations.builder import GenerationBuilder
from framework.config.generations.generation import empty_generation
from framework.config.generations.reload_effects import SettingsFile
from framework.config.settings import Settings
from framework.config.snapshot import Snapshot
from framework.types.spec import RISKS, Risk
from tests.support.projects import agent


@tool(risk="low")
def look(order: str = "1") -> str:
    """Look up an order."""
    return order


def shaped(name: str, risk: Risk = "medium", *, confirm: bool = False) -> Tool:
    """Return a tool with a full name, as in a plugin."""
    return replace(look.named(name, "plugin"), risk=risk, confirm=confirm)


ORDERS = [shaped("orders.look", "low"), shaped("orders.refund"), shaped("orders.delete", "high"), shaped("bank.pay")]


def compiled(text: str, tools: list[Tool] | None = None, name: str = "clerk") -> Agent:
    """Compile an agent from its file's text, with an agent `helper` next to it."""
    files = {f"agents.d/{name}.yaml": text, "agents.d/helper.yaml": agent("helper", model="offline")}
    builder = GenerationBuilder(
        ORDERS if tools is None else tools, ["react"], ["offline"], SettingsFile(Settings(), fixed=True)
    )
    snapshot = Snapshot({path: source.encode() for path, source in files.items()}, (), "")
    return builder.build(snapshot, empty_generation(Settings()), ExternalTools()).agents[name]


def clerk(policy: str, runtime_policy: str = "{}", tools: list[Tool] | None = None, **keys: str) -> Agent:
    """Compile an agent whose `skill_policy` is on line 6 of its file, and its `runtime_policy` on line 7."""
    text = agent("clerk", model="offline", skill_policy=policy, runtime_policy=runtime_policy, **keys)
    return compiled(text, tools)


NAMES = ("a.read", "a.write", "b.drop", "b.read", "c")
PATTERNS = st.sampled_from([*NAMES, "*", "a.*", "*.read", "?", "[ab].*", "nothing*"])
CONDITIONS = st.sampled_from(["{}", '{order: "> 50"}', '{order: "5*"}'])


@dataclass(frozen=True)
class Rules:
    """An agent's rules, as test data."""

    deny: tuple[tuple[str, str], ...]
    ask: tuple[tuple[str, str], ...]
    allow: tuple[str, ...]
    ceiling: Risk
    confirm_from: str

    def agent(self, tools: list[Tool]) -> Agent:
        def rules(pairs: tuple[tuple[str, str], ...]) -> str:
            return ", ".join(f'{{tool: "{pattern}", when: {when}, optional: true}}' for pattern, when in pairs)

        allowed = ", ".join(f'"{pattern}"' for pattern in self.allow)
        policy = f"{{deny: [{rules(self.deny)}], ask: [{rules(self.ask)}], allow: [{allowed}]}}"
        return clerk(policy, f"{{risk_level: {self.ceiling}, confirm: {{from: {self.confirm_from}}}}}", tools)

    def expected(self, candidate: Tool, order: str) -> str:
        """Return the verdict by the order of the rules, implemented independently."""
        if self._says(self.deny, candidate.name, order) or RISKS.index(candidate.risk) > RISKS.index(self.ceiling):
            return "deny"
        listed = any(fnmatchcase(candidate.name, p) for p in self.allow)
        if not listed and not self._says(self.ask, candidate.name, order):
            return "deny"
        risky = self.confirm_from != "never" and RISKS.index(candidate.risk) >= [*RISKS].index(self.confirm_from)  # type: ignore[arg-type]  # not "never" here
        return "ask" if self._says(self.ask, candidate.name, order) or candidate.confirm or risky else "allow"

    def _says(self, rules: tuple[tuple[str, str], ...], name: str, order: str) -> bool:
        met = {"{}": True, '{order: "> 50"}': float(order) > 50, '{order: "5*"}': order.startswith("5")}
        return any(fnmatchcase(name, pattern) and met.get(when, False) for pattern, when in rules)


RULES = st.builds(
    Rules,
    deny=st.lists(st.tuples(PATTERNS, CONDITIONS), max_size=2).map(tuple),
    ask=st.lists(st.tuples(PATTERNS, CONDITIONS), max_size=2).map(tuple),
    allow=st.lists(PATTERNS, max_size=3, unique=True).map(tuple),
    ceiling=st.sampled_from(RISKS),
    confirm_from=st.sampled_from([*RISKS, "never"]),
)
TOOLS = st.tuples(*(st.builds(shaped, st.just(n), st.sampled_from(RISKS), confirm=st.booleans()) for n in NAMES)).map(
    list
)
ORDER = st.sampled_from(["1", "50", "51", "500"])
