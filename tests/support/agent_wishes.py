"""Agents in the newer and the older spelling of their files, generated."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from framework.config.yaml.agent_keys import LIMITS
from framework.types.spec import RISKS
from tests.support.policy_rules import NAMES, PATTERNS

HEAD = "description: d\nmodel: offline\ninstructions: i\n"
VALUES: dict[str, Any] = {
    "steps": 7,
    "tool_calls": None,
    "tokens": 90_000,
    "cost_usd": 0.5,
    "timeout": "5m",
    "model_timeout": "90s",
    "model_total_timeout": "4m",
    "first_token_timeout": "10s",
    "tool_timeout": 0.5,
    "parallel_tools": 1,
    "repeated_calls": 2,
    "corrections": 0,
    "observation_chars": 1000,
    "prices": "unknown_ok",
    "budgets": ["team"],
}
"""A value of each limit that is not its default."""


@dataclass(frozen=True)
class Wish:
    """What an agent file says, to be written in both spellings."""

    allow: tuple[str, ...]
    ask: tuple[tuple[str, str], ...]
    deny: tuple[tuple[str, str], ...]
    files: tuple[str, ...]
    max_risk: str | None
    approve_from: str | None
    expires: str | None
    strict: bool
    limits: tuple[str, ...]
    plan: str | None
    mode: str | None
    agents: bool

    def policy(self) -> dict[str, Any]:
        def rules(pairs: tuple[tuple[str, str], ...]) -> list[Any]:
            return [{"tool": tool, "when": {"order": when} if when else {}, "optional": True} for tool, when in pairs]

        files = {"files": {"deny": [*self.files]}} if self.files else {}
        return {"allow": [*self.allow], "ask": rules(self.ask), "deny": rules(self.deny), **files}

    def new(self) -> dict[str, Any]:
        only_allow = not (self.ask or self.deny or self.files)
        approval = {"risk": self.approve_from, "expires": self.expires}
        given = {key: value for key, value in approval.items() if value}
        keys: dict[str, Any] = {
            "tools": [*self.allow] if only_allow else self.policy(),
            "max_risk": self.max_risk,
            "approve_from": self.approve_from if not self.expires else given,
            "strict_arguments": self.strict or None,
            "limits": {key: VALUES[key] for key in self.limits} or None,
            "plan": self.plan and {"approve": self.plan},
            "mode": self.mode,
            "agents": ["helper"] if self.agents else None,
        }
        return {key: value for key, value in keys.items() if value is not None}

    def old(self) -> dict[str, Any]:
        allowed = [name for name in dict.fromkeys(self.allow) if name in NAMES]
        asked = [name for name in dict.fromkeys(tool for tool, _ in self.ask) if name in NAMES and name not in allowed]
        confirm = {"from": self.approve_from, "expires": self.expires}
        runtime: dict[str, Any] = {
            "risk_level": self.max_risk,
            "confirm": {key: value for key, value in confirm.items() if value} or None,
            "strict_arguments": self.strict or None,
        }
        runtime = {key: value for key, value in runtime.items() if value is not None}
        runtime |= {str(LIMITS[key][-1]): VALUES[key] for key in self.limits if key != "budgets"}
        plan = self.plan and {"approval": {"from": self.plan} if self.plan in RISKS else self.plan}
        keys: dict[str, Any] = {
            "version": 1,
            "name": "clerk",
            "skill_policy": {**self.policy(), "any_risk": allowed, "any_risk_if_asked": asked},
            "runtime_policy": runtime or None,
            "plan": plan,
            "executor": self.mode,
            "sub_agents": ["helper"] if self.agents else None,
            "budgets": ["team"] if "budgets" in self.limits else None,
        }
        return {key: value for key, value in keys.items() if value is not None}

    def text(self, keys: dict[str, Any]) -> str:
        return HEAD + "".join(f"{key}: {json.dumps(value)}\n" for key, value in keys.items())


RULE_PAIRS = st.lists(st.tuples(PATTERNS, st.sampled_from(["", "> 50", "5*"])), max_size=2).map(tuple)
WISHES = st.builds(
    Wish,
    allow=st.lists(PATTERNS, max_size=3, unique=True).map(tuple),
    ask=RULE_PAIRS,
    deny=RULE_PAIRS,
    files=st.sampled_from([(), ("data/*secret*",)]),
    max_risk=st.sampled_from([None, *RISKS]),
    approve_from=st.sampled_from([None, *RISKS, "never"]),
    expires=st.sampled_from([None, "15m"]),
    strict=st.booleans(),
    limits=st.lists(st.sampled_from(sorted(VALUES.keys() - {"budgets", "cost_usd"})), unique=True).map(tuple),
    plan=st.sampled_from([None, "always", "never", *RISKS]),
    mode=st.sampled_from([None, "react"]),
    agents=st.booleans(),
)
