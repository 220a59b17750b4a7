"""Verdicts of the policy, by evaluating all combinations of rules."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from examples.reference.markdown import table
from framework import Runtime, Tool, tool
from framework.engine.context.policy import Verdict, agent_verdict

_OPENING = """\
After this page you know which verdict a tool call gets. [Tools and policies](../tools.md) explains
how rules are written.
"""
_BELOW = """
An empty cell of a rule means that no such rule matches the call. The verdict is that of the first
of these that applies:

1. A matching **deny** rule denies.
2. A tool whose risk is **above `risk_level`** is denied, and not offered to the model.
3. A tool that no **allow** or **ask** rule matches is denied, and not offered to the model.
4. A matching **ask** rule asks.
5. A tool with **`confirm=True`** asks.
6. A risk of **`confirm.from`** or higher asks.
7. The call is allowed.

A call is evaluated for the version of the agent that the run uses, for the version that is live
now, and for every agent that called this one; the strictest verdict applies.
"""
_AGENT = """\
version: 1
name: {name}
description: Has one combination of rules.
model: offline
instructions: Work.
skill_policy: {{allow: [{allow}], ask: [{ask}], deny: [{deny}]}}
runtime_policy: {{risk_level: {level}, confirm: {{from: {confirm}}}}}
"""
_WORDS = {"allow": "allowed", "ask": "**asks**", "deny": "denied"}


def policy_page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Verdicts of the policy\n"
    yield _OPENING
    yield "## Truth table\n"
    yield "Computed from the policy itself, for a tool of risk `medium`.\n"
    heads = (
        "deny rule",
        "`risk_level`",
        "allow rule",
        "ask rule",
        "`@tool(confirm=True)`",
        "`confirm.from`",
        "verdict",
    )
    yield from table(heads, asyncio.run(_rows()))
    yield _BELOW


@tool(name="work", risk="medium")
def _work() -> str:
    """Work."""
    return "done"


@tool(name="work", risk="medium", confirm=True)
def _confirmed() -> str:
    """Work."""
    return "done"


async def _rows() -> list[tuple[str, ...]]:
    """Evaluate the tool for an agent of each combination. Rows that differ in nothing that matters are one row."""
    asked = {False: _work, True: _confirmed}
    rows = []
    for deny, high, allow, ask, confirm, low in product((True, False), (False, True), *[(False, True)] * 4):
        level, from_ = ("medium", "low")[not high], ("medium" if low else "high")
        verdict = await _verdict(asked[confirm], deny, allow, ask, level, from_)
        words = ("yes" if deny else "", level, *("yes" if one else "" for one in (allow, ask, confirm)), from_)
        rows.append((*words, _WORDS[verdict.kind]))
    return list(dict.fromkeys(_shortened(row) for row in rows))


def _shortened(row: tuple[str, ...]) -> tuple[str, ...]:
    """Replace by `any` what comes after the rule that decides."""
    deny, level, allow, ask, confirm, from_, verdict = row
    if deny:
        return (deny, *["any"] * 5, verdict)
    if level == "low":
        return (deny, level, *["any"] * 4, verdict)
    if ask:
        return (deny, level, "any", ask, "any", "any", verdict)
    if not allow:
        return (deny, level, allow, ask, "any", "any", verdict)
    return (deny, level, allow, ask, confirm, "any" if confirm else from_, verdict)


async def _verdict(work: Tool, deny: bool, allow: bool, ask: bool, level: str, confirm: str) -> Verdict:
    rules = {"deny": deny, "allow": allow, "ask": ask}
    text = _AGENT.format(
        name="one", level=level, confirm=confirm, **{name: "work" if given else "" for name, given in rules.items()}
    )
    with TemporaryDirectory() as folder:
        file = Path(folder) / "one.yaml"
        file.write_text(text, "utf-8")
        async with Runtime.open(file, tools=[work], watch=False) as runtime:
            agent = runtime.catalog.current.agents["one"]
            found = runtime.catalog.current.tools["work"]
            return agent_verdict(agent, found, {})
