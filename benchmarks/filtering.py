"""Selecting an agent's tools: matched for every model call, built once per generation, and looked up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fnmatch import fnmatchcase

from benchmarks.harness import Row, Table, best
from framework import Tool, tool
from framework.tools.toolset import Toolset, index_tools
from framework.types.spec import Rule, SkillPolicy

LIMIT_US = 100
POLICY = SkillPolicy(
    deny=tuple(Rule(tool=f"*.{verb}_*") for verb in ("delete", "drop", "purge")),
    ask=(Rule(tool="pay.*"), Rule(tool="*.send_*")),
    allow=("files.*", "orders.*", "docs.*", "mail.*", "pay.*", "*.read_*"),
)
GROUPS = ("files", "orders", "docs", "mail", "pay", "admin", "cloud", "build")
VERBS = ("read", "list", "write", "delete", "send", "find")


@tool(risk="low")
def sample(path: str, limit: int = 10, *, recursive: bool = False) -> str:
    """Return the arguments as text.

    Args:
        path: a folder.
        limit: maximum number of entries.
        recursive: whether to include subfolders.
    """
    return f"{path} {limit} {recursive}"


def tools(count: int) -> dict[str, Tool]:
    """Return `count` tools, in groups and with verbs that the policy distinguishes."""
    names = (f"{GROUPS[n % len(GROUPS)]}.{VERBS[n // len(GROUPS) % len(VERBS)]}_{n}" for n in range(count))
    return index_tools(sample.named(name, "plugin") for name in names)


def naive(registry: dict[str, Tool]) -> int:
    """Match every glob and build every schema, as if nothing were cached. Return the size of the JSON."""
    denied = [rule.tool for rule in POLICY.deny]
    allowed = [*POLICY.allow, *(rule.tool for rule in POLICY.ask)]
    payload = [
        {"name": one.name, "description": one.definition.description, "parameters": one.arguments.schema}
        for one in registry.values()
        if not any(fnmatchcase(one.name, glob) for glob in denied)
        and any(fnmatchcase(one.name, glob) for glob in allowed)
    ]
    return len(json.dumps(payload))


def measure(count: int, rounds: int) -> Table:
    """Measure with `count` tools."""
    registry = tools(count)
    toolset = Toolset(registry, POLICY, risk_level="medium")
    name = toolset.definitions[-1].name
    each_call = best(lambda: naive(registry), rounds=min(rounds, 3))
    build = best(lambda: Toolset(registry, POLICY, risk_level="medium"), rounds=rounds)
    lookup = best(lambda: (toolset.definitions, toolset.offered.get(name), toolset.rules_for(name)), rounds=rounds)
    rows = [
        Row("match globs and build schemas, each call", each_call, 1),
        Row("build, uncached (once per generation)", build, build / each_call),
        Row("look up (each call)", lookup, lookup / each_call),
    ]
    if count == 100:
        rows.append(Row.limited("the build, beside its limit", build, LIMIT_US))
    return Table(f"Filtering {count:,} tools, {len(toolset.offered):,} offered", "µs", rows)


def tables(*, quick: bool) -> Iterator[Table]:
    """Measure each number of tools."""
    for count in (100, 1000) if quick else (100, 1000, 10_000):
        yield measure(count, 3 if quick else 7)
