"""Verdicts of the policy, by evaluating all combinations of rules."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from examples.reference.markdown import table
from framework import Runtime, tool
from framework.engine.context.policy import agent_verdict

_OPENING = """\
Which verdict a tool call gets. [Tools and policies](../tools.md) explains
how rules are written.
"""
_BELOW = """
*no* means that there is no such rule, or that the rule has a condition (`when`) which the call does
not meet. The verdict is that of the first of these that applies:

1. A matching **deny** rule denies.
2. A tool whose risk is **above `risk_level`** is denied, and not offered to the model.
3. A tool that no **allow** or **ask** rule names is denied, and not offered to the model.
4. A matching **ask** rule asks.
5. A tool that only **ask** rules name is denied if the call meets none of their conditions,
   whatever its risk.
6. A tool with **`confirm=True`** asks.
7. A risk of **`confirm.from`** or higher asks.
8. The call is allowed.

A call is evaluated for the version of the agent that the run uses, for the version that is live
now, and for every agent that called this one; the strictest verdict applies.
"""
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "deny rule": ("yes", "not met", "no"),
    "`risk_level`": ("low", "medium"),
    "allow rule": ("no", "yes"),
    "ask rule": ("yes", "not met", "no"),
    "`@tool(confirm=True)`": ("no", "yes"),
    "`confirm.from`": ("high", "medium"),
}
"""What can differ between two calls of a tool of risk medium, with all values."""
_RULES: Mapping[str, str] = {"yes": "work", "not met": '{tool: work, when: {amount: "> 50"}}', "no": ""}
_AGENT = """\
version: 1
name: {name}
description: Has one combination of rules.
model: offline
instructions: Work.
skill_policy: {{allow: [{allow}], ask: [{ask}], deny: [{deny}]}}
runtime_policy: {{risk_level: {level}, confirm: {{from: {from_}}}}}
"""
_WORDS = {"allow": "allowed", "ask": "**asks**", "deny": "denied"}


def policy_page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Verdicts of the policy\n"
    yield _OPENING
    yield "## Truth table\n"
    verdicts = asyncio.run(policy_verdicts())
    yield f"Computed from the policy itself: all {len(verdicts)} combinations, for a tool of risk `medium`.\n"
    yield from table((*_COLUMNS, "verdict"), merged_rows(verdicts))
    yield _BELOW


def merged_rows(verdicts: Mapping[tuple[str, ...], str], chosen: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a table of verdicts. A cell is `any` where the verdict is the same for all values.

    Args:
        verdicts: the verdict of each combination of values, one value a column.
        chosen: the cells of the columns before those in `verdicts`.
    """
    if len(found := set(verdicts.values())) == 1:
        yield (*chosen, *["any"] * len(next(iter(verdicts))), *found)
        return
    below: dict[str, dict[tuple[str, ...], str]] = {}
    for (value, *others), verdict in verdicts.items():
        below.setdefault(value, {})[tuple(others)] = verdict
    if all(rest == below[value] for rest in below.values()):
        yield from merged_rows(below[value], (*chosen, "any"))
        return
    if below.get("not met") == below.get("no"):
        below.pop("not met", None)
    for value, rest in below.items():
        yield from merged_rows(rest, (*chosen, value))


async def policy_verdicts() -> dict[tuple[str, ...], str]:
    """Return the verdict on a call for each combination of the columns' values."""
    combinations = list(product(*_COLUMNS.values()))
    with TemporaryDirectory() as folder:
        for number, (deny, level, allow, ask, _, from_) in enumerate(combinations):
            rules = {"deny": _RULES[deny], "allow": _RULES[allow], "ask": _RULES[ask]}
            file = Path(folder) / "agents.d" / f"a{number}.yaml"
            file.parent.mkdir(exist_ok=True)
            file.write_text(_AGENT.format(name=f"a{number}", level=level, from_=from_, **rules), "utf-8")
        async with Runtime.open(folder, tools=[_work], watch=False) as runtime:
            agents = runtime.catalog.current.agents
            tools = {"no": _work, "yes": replace(_work, confirm=True)}
            verdicts = (
                agent_verdict(agents[f"a{number}"], tools[combination[4]], {"amount": 10})
                for number, combination in enumerate(combinations)
            )
            words = [_WORDS[verdict.kind] for verdict in verdicts]
    return dict(zip(combinations, words, strict=True))


@tool(name="work", risk="medium")
def _work(amount: int) -> str:
    """Work."""
    return f"done {amount}"
