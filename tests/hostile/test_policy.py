"""On every path and under any policy, a denied call is never executed, and an `ask` call only after approval."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import Approve, Edit, Reject, RequestError, RunResult, Runtime, Tool, tool
from framework.llm.client import ModelRequest
from framework.testing import JsonStore, ScriptedModel, Turn, calls
from framework.types.plan import PlanDraft
from framework.types.spec import RISKS
from framework.types.state import Decision
from tests.support.cases import cases
from tests.support.policy_rules import CONDITIONS, NAMES, ORDER, RULES, TOOLS, Rules
from tests.support.projects import agent, write

Door = Literal["model", "direct", "sub-agent", "plan", "free step", "sub-agent's plan"]
DOORS: tuple[Door, ...] = ("model", "direct", "sub-agent", "plan", "free step", "sub-agent's plan")
TASK = "do it"


@dataclass
class Ledger:
    """Tools that record the arguments of their executed calls."""

    calls_made: list[tuple[str, str]] = field(default_factory=list)

    def tools(self, requested: Sequence[Tool]) -> list[Tool]:
        return [replace(one, function=self._counting(one.name).function) for one in requested]

    def _counting(self, name: str) -> Tool:
        @tool
        async def call(order: str = "1") -> str:
            """Count."""
            self.calls_made.append((name, order))
            return f"{name} did {order}"

        return call


@dataclass(frozen=True)
class Attack:
    """One call, requested by one path, with a person's decisions on its confirmations."""

    door: Door
    name: str
    order: str
    answers: tuple[str, ...]

    def model(self) -> ScriptedModel:
        return ScriptedModel(script=self._turn)

    def _turn(self, request: ModelRequest) -> Turn:
        given = {"order": self.order}
        if request.output is not None:
            free = {"id": "a", "description": TASK}
            step = free if self.door == "free step" else {**free, "tool": self.name, "parameters": given}
            return PlanDraft.model_validate({"goal": "g", "steps": [step]})
        last = request.messages[-1]
        if last.role != "user":
            return "done"
        if last.content == "go" and self.door.startswith("sub-agent"):
            return calls(("agent.clerk", {"message": TASK}))
        return calls((self.name, given))

    def decisions(self, result: RunResult, round_: int) -> dict[str, Decision]:
        meanings: dict[str, Decision] = {
            "approve": Approve(),
            "reject": Reject(),
            "edit": Edit(arguments={"order": "51"}),
        }
        answer = self.answers[round_ % len(self.answers)]
        return {question.id: meanings[answer] for question in result.pending if answer in meanings}


def text_of(rules: Rules) -> dict[str, str]:
    """Return the rules as text of an agent file."""

    def listed(pairs: tuple[tuple[str, str], ...]) -> str:
        return ", ".join(f'{{tool: "{pattern}", when: {when}, optional: true}}' for pattern, when in pairs)

    allowed = ", ".join(f'"{pattern}"' for pattern in rules.allow)
    return {
        "skill_policy": f"{{deny: [{listed(rules.deny)}], ask: [{listed(rules.ask)}], allow: [{allowed}]}}",
        "runtime_policy": f"{{risk_level: {rules.ceiling}, confirm: {{from: {rules.confirm_from}}}}}",
    }


async def run_attack(root: Path, attack: Attack, tools: list[Tool]) -> bool:
    """Run the attack and answer up to four rounds of confirmations; return whether a call was approved."""
    agreed = False
    models = {"scripted": attack.model()}
    async with Runtime.open(root, tools=tools, models=models, store=JsonStore(), watch=False) as runtime:
        if attack.door == "direct":
            with suppress(RequestError):  # it needs approval
                await runtime.call_tool("boss", attack.name, {"order": attack.order})
            return False
        result = await runtime.run("go", agent="boss")
        for round_ in range(4):
            if result.status != "paused":
                break
            decisions = attack.decisions(result, round_)
            agreed = agreed or any(isinstance(decision, (Approve, Edit)) for decision in decisions.values())
            result = await runtime.resume(result.run_id, decisions)
        assert result.status in ("completed", "stopped", "paused")
    return agreed


def verdict(boss: Rules, clerk: Rules, attack: Attack, requested: Tool, order: str) -> str:
    """Return the expected verdict on a call, computed independently of the engine."""
    if not attack.door.startswith("sub-agent"):
        return boss.expected(requested, order)
    # Its caller's deny and ask rules, ceiling and `confirm` bind a sub-agent.
    above = replace(boss, allow=("*",))
    return max(above.expected(requested, order), clerk.expected(requested, order), key=("allow", "ask", "deny").index)


NEAR = st.builds(
    Rules,
    deny=st.lists(st.tuples(st.sampled_from(["c", "?", "a.*"]), CONDITIONS), max_size=2).map(tuple),
    ask=st.sampled_from([(), (("*", "{}"),)]),
    allow=st.just(("*",)),
    ceiling=st.sampled_from(["medium", "critical"]),
    confirm_from=st.just("never"),
)
"""Rules that match most of the attacks below; arbitrary rules rarely do."""
ATTACKS = st.builds(
    Attack,
    door=st.sampled_from(DOORS),
    name=st.sampled_from(["c", *NAMES]),
    order=ORDER,
    answers=st.lists(st.sampled_from(["approve", "reject", "edit", "nothing"]), min_size=1, max_size=3).map(tuple),
)


@pytest.mark.hostile(6)
@pytest.mark.hostile(7)
@cases(30)
@given(boss=NEAR | RULES, clerk=NEAR | RULES, tools=TOOLS, attack=ATTACKS)
def test_llm06_no_path_executes_a_denied_call_or_an_unapproved_one(
    boss: Rules, clerk: Rules, tools: list[Tool], attack: Attack
) -> None:
    ledger, by_name = Ledger(), {one.name: one for one in tools}
    planned = {"boss": ("plan", "free step"), "clerk": ("sub-agent's plan",)}
    how = {name: "plan" if attack.door in doors else "react" for name, doors in planned.items()}
    with TemporaryDirectory() as folder:
        files = {
            "agents.d/boss.yaml": agent("boss", sub_agents="[clerk]", executor=how["boss"], **text_of(boss)),
            "agents.d/clerk.yaml": agent("clerk", executor=how["clerk"], **text_of(clerk)),
        }
        agreed = asyncio.run(run_attack(write(Path(folder), files), attack, ledger.tools(tools)))

    for name, order in ledger.calls_made:
        expected = verdict(boss, clerk, attack, by_name[name], order)
        assert expected != "deny"
        assert expected == "allow" or agreed
    assert len(ledger.calls_made) <= 1
    risky = any(RISKS.index(one.risk) >= RISKS.index("high") for one in tools)
    if attack.door in ("model", "direct") or (
        attack.door == "free step" and not risky and RISKS.index(boss.ceiling) < RISKS.index("high")
    ):  # else the plan may be rejected: built-in tools are risky, too
        expected = verdict(boss, clerk, attack, by_name[attack.name], attack.order)
        assert ((attack.name, attack.order) in ledger.calls_made) or expected != "allow"
    assert all(RISKS.index(by_name[name].risk) <= RISKS.index(boss.ceiling) for name, _ in ledger.calls_made)


@pytest.mark.hostile(5)
@pytest.mark.hostile(6)
@cases(15)
@given(
    tools=TOOLS,
    name=st.sampled_from(NAMES),
    spell=st.sampled_from([str.upper, lambda n: n.replace(".", "__"), lambda n: n + "\u200b", lambda n: " " + n]),
    door=st.sampled_from(DOORS),
)
def test_asi02_another_spelling_of_a_name_does_not_bypass_its_rules(
    tools: list[Tool], name: str, spell: object, door: Door
) -> None:
    assert callable(spell)
    spelt = spell(name)
    ledger = Ledger()
    # Providers see some of these spellings, and others are corrected to the name of an offered tool.
    trusting = Rules(((name, "{}"),), (), ("*",), "critical", "never")
    with TemporaryDirectory() as folder:
        how = "plan" if "plan" in door or "step" in door else "react"
        files = {
            "agents.d/boss.yaml": agent("boss", sub_agents="[clerk]", executor=how, **text_of(trusting)),
            "agents.d/clerk.yaml": agent("clerk", executor=how, **text_of(trusting)),
        }
        attack = Attack(door, spelt, "1", ("approve",))
        asyncio.run(run_attack(write(Path(folder), files), attack, ledger.tools(tools)))
    assert ledger.calls_made == []
