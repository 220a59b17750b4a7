"""Checks the rules of an agent: each must match a tool, and its conditions the arguments of that tool.

A `deny` rule that matches nothing is an error, because its writer relies on it. Whether the tools of a server match is
checked when the server has told them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase

from framework.config.yaml.document import Document, KeyPath
from framework.tools.conditions import CONDITION_FORMS, condition_fault, has_argument, takes_text, yaml_text
from framework.tools.tool import Tool
from framework.types.problem import Problem
from framework.types.spec import GLOB_SIGNS, AgentSpec, Rule, is_glob
from framework.types.text import did_you_mean

_OPTIONAL_HINT = "if a server may offer the tool later, write {{tool: {}, optional: true}}"


def rule_problems(
    spec: AgentSpec, document: Document, tools: Mapping[str, Tool | None], unavailable: Collection[str]
) -> Iterator[Problem]:
    """Yield a problem for each deny or ask rule that matches no tool, or whose conditions fit no call.

    Args:
        spec: the agent.
        document: its file.
        tools: all tools that a rule may name, by name; None for one whose arguments are not known.
        unavailable: sources whose tools are not known.
    """
    for kind, rules in (("deny", spec.skill_policy.deny), ("ask", spec.skill_policy.ask)):
        for index, rule in enumerate(rules):
            path: KeyPath = ("skill_policy", kind, index)
            matching = _matching(rule.tool, tools)
            if matching:
                yield from _condition_problems(rule, path, document, [tool for tool in matching if tool])
            elif not rule.optional and not _may_appear(rule.tool, unavailable):
                message = f"the {kind} rule {rule.tool!r} matches no tool{did_you_mean(rule.tool, sorted(tools))}"
                yield document.problem((*path, "tool"), message, hint=_OPTIONAL_HINT.format(rule.tool))


def _matching(pattern: str, tools: Mapping[str, Tool | None]) -> list[Tool | None]:
    if not is_glob(pattern):
        return [tools[pattern]] if pattern in tools else []
    return [tool for name, tool in tools.items() if fnmatchcase(name, pattern)]


def _may_appear(pattern: str, unavailable: Collection[str]) -> bool:
    """Return whether a source whose tools are not known may have a tool that the pattern matches."""
    start = pattern[: next((at for at, sign in enumerate(pattern) if sign in GLOB_SIGNS), len(pattern))]
    names = (f"{source}." for source in unavailable)
    return any(start.startswith(name) or (is_glob(pattern) and name.startswith(start)) for name in names)


def _condition_problems(rule: Rule, path: KeyPath, document: Document, tools: list[Tool]) -> Iterator[Problem]:
    """Yield a problem for each condition that is a mistake for all of the tools that a rule matches."""
    if not rule.when or not tools:
        return
    fitting = [tool for tool in tools if all(has_argument(tool, name) for name in rule.when)]
    if not fitting:
        yield document.problem((*path, "when"), _missing_argument(rule, tools), at_key=True)
        return
    for name, condition in rule.when.items():
        where = (*path, "when", name)
        if not isinstance(condition, (str, bool)) and any(takes_text(tool, name) for tool in fitting):
            written, compared = document.written(where), yaml_text(condition)
            if written != compared:
                message = f"the condition on {name!r} of {fitting[0].name} compares texts with {compared!r}"
                yield document.problem(where, f"{message}; put it in quotes: '{written}'")
                continue
        faults: list[str] = []
        for tool in fitting:
            if (fault := condition_fault(tool, name, condition)) is None:
                break
            faults.append(fault)
        else:
            yield document.problem(where, faults[0], hint=CONDITION_FORMS)


def _missing_argument(rule: Rule, tools: list[Tool]) -> str:
    choices = sorted({name for tool in tools for name in tool.definition.parameters.get("properties", {})})
    missing = next((name for name in rule.when if not any(has_argument(tool, name) for tool in tools)), None)
    if missing is None:
        return f"no tool that {rule.tool!r} matches has all arguments of these conditions"
    which = f"{tools[0].name} has no" if len(tools) == 1 else f"no tool that {rule.tool!r} matches has an"
    return f"{which} argument {missing!r}{did_you_mean(missing, choices)}"
