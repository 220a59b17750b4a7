"""Choosing an agent's tools: matched anew for every model call, built once a generation, and looked up."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase

from benchmarks.measure import Row, best, table
from framework import Tool, tool
from framework.tools.toolset import Toolset, index_tools
from framework.types.spec import Rule, SkillPolicy

TARGET_US = 1000
POLICY = SkillPolicy(
    deny=tuple(Rule(tool=f"*.{verb}_*") for verb in ("delete", "drop", "purge")),
    ask=(Rule(tool="pay.*"), Rule(tool="*.send_*")),
    allow=("files.*", "orders.*", "docs.*", "mail.*", "pay.*", "*.read_*"),
)
GROUPS = ("files", "orders", "docs", "mail", "pay", "admin", "cloud", "build")
VERBS = ("read", "list", "write", "delete", "send", "find")


@tool(risk="low")
def sample(path: str, limit: int = 10, *, recursive: bool = False) -> str:
    """Stand for any tool.

    Args:
        path: where.
        limit: how many.
        recursive: below it too.
    """
    return f"{path} {limit} {recursive}"


def tools(count: int) -> dict[str, Tool]:
    """So many tools, in groups and with verbs that the policy tells apart."""
    names = (f"{GROUPS[n % len(GROUPS)]}.{VERBS[n // len(GROUPS) % len(VERBS)]}_{n}" for n in range(count))
    return index_tools(sample.named(name, "plugin") for name in names)


def naive(known: dict[str, Tool]) -> int:
    """Match every glob and make every schema, as if nothing was known from the call before."""
    denied = [rule.tool for rule in POLICY.deny]
    wanted = [*POLICY.allow, *(rule.tool for rule in POLICY.ask)]
    payload = [
        {"name": one.name, "description": one.definition.description, "parameters": one.arguments.schema}
        for one in known.values()
        if not any(fnmatchcase(one.name, glob) for glob in denied)
        and any(fnmatchcase(one.name, glob) for glob in wanted)
    ]
    return len(json.dumps(payload))


def measure(count: int, rounds: int) -> float:
    """Print one size's table.

    Returns:
        Microseconds that building the toolset took.
    """
    known = tools(count)
    toolset = Toolset(known, POLICY, risk_level="medium")
    asked = toolset.definitions[-1].name
    each_call = best(lambda: naive(known), rounds=min(rounds, 3))
    build = best(lambda: Toolset(known, POLICY, risk_level="medium"), rounds=rounds)
    lookup = best(lambda: (toolset.definitions, toolset.offered.get(asked), toolset.rules_for(asked)), rounds=rounds)
    rows = [
        Row("globs and schemas for every call", each_call, 1),
        Row("built, uncached (once a generation)", build, build / each_call),
        Row("looked up (every call)", lookup, lookup / each_call),
    ]
    table(f"Filtering {count:,} tools, {len(toolset.offered):,} offered", "µs", rows)
    return build


def main(*, quick: bool) -> None:
    """Print the tables of this part."""
    sizes = (100, 1000) if quick else (100, 1000, 10_000)
    built = {count: measure(count, 3 if quick else 7) for count in sizes}
    met = "met" if built[100] < TARGET_US else "NOT met"
    print(f"\nfiltering 100 tools uncached < 1 ms: {met} ({built[100]:.0f} µs)")
