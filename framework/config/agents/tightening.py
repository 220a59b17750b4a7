"""Applies the restrictions of an invalid file to the last good version of its agent.

An edit that removes permissions must not wait until an unrelated error in the same file, or in a template, is fixed.
Only restrictions take effect; additional permissions in the file wait until the whole file is valid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from framework.config.agents.compile import Agent, build_agent
from framework.config.agents.diff import LIST_EFFECTS, VALUE_EFFECTS
from framework.config.agents.link_context import ParsedAgent
from framework.config.files.snapshot import source_digest
from framework.config.yaml.agent_keys import TOP_LEVEL, path_in_file, read_agent_keys
from framework.config.yaml.document import Document, DocumentError, KeyPath, PackedMarks, read_document
from framework.config.yaml.parse import ParseError
from framework.config.yaml.partial import JsonObject, get_dotted, merge_valid
from framework.types.problem import Problem
from framework.types.spec import AgentSpec, SkillPolicy

_PERMISSION_SECTIONS = tuple(dict.fromkeys(key.partition(".")[0] for key in (*LIST_EFFECTS, *VALUE_EFFECTS)))
"""The top-level keys of an agent file that control what the agent may do and consume."""
_PERMISSION_KEYS = (*_PERMISSION_SECTIONS, *TOP_LEVEL)
_ALLOW, _MCP_POLICY, _BUDGETS = "skill_policy.allow", "mcp_policy", "budgets"
_ANY_RISK = ("skill_policy.any_risk", "skill_policy.any_risk_if_asked")
_ADDING = frozenset(key for key, (adding, _) in LIST_EFFECTS.items() if adding == "tightens")
_ONE_SIDED = "it is not offered by both the last good version and the saved file"


@dataclass(frozen=True, slots=True)
class SavedPermissions:
    """The readable permissions of a saved file."""

    spec: AgentSpec
    """The spec of the last good version with the permissions of the saved file."""
    document: Document
    unread: tuple[KeyPath, ...] = ()
    """The paths of invalid values."""

    def indices(self, key: str, count: int) -> list[int]:
        """Return the positions in the file of the `count` valid items of a list."""
        path = tuple(key.split("."))
        skipped = {where[-1] for where in self.unread if where[:-1] == path}
        return [index for index in range(count + len(skipped)) if index not in skipped]


def read_permissions(path: str, source: bytes, last_good: AgentSpec) -> SavedPermissions | None:
    """Read the permissions in an invalid file. Return None if it is not YAML."""
    try:
        keys = read_agent_keys(read_document(path, source))
    except DocumentError:
        return None
    document = keys.document
    if document.data.get("name", last_good.name) != last_good.name:
        return SavedPermissions(last_good, document)  # the file now defines another agent
    permissions = {key: value for key, value in document.data.items() if key in _PERMISSION_SECTIONS}
    data, unread = merge_valid(AgentSpec, last_good.model_dump(mode="json", by_alias=True), permissions, _ADDING)
    unknown = (key for key in document.data.keys() - AgentSpec.model_fields.keys())
    unread += [*keys.unread, *((key,) for key in unknown if get_close_matches(key, _PERMISSION_KEYS, n=1))]
    return SavedPermissions(AgentSpec.model_validate(data), document, tuple(unread))


def tighten_agent(last_good: Agent, saved: SavedPermissions) -> Agent:
    """Return the last good version with the restrictions of its saved file; the same object without restrictions."""
    before = last_good.spec.model_dump(mode="json", by_alias=True)
    after = saved.spec.model_dump(mode="json", by_alias=True)
    data, origins = deepcopy(before), dict[KeyPath, KeyPath]()
    for key in LIST_EFFECTS:
        if key in _ADDING:
            _add_restrictions(data, key, get_dotted(after, key), origins, saved)
        elif key not in (_ALLOW, *_ANY_RISK):
            _set_at_key(data, key, [item for item in get_dotted(before, key) if item in get_dotted(after, key)])
    for key, effect in VALUE_EFFECTS.items():
        old, new = get_dotted(before, key), get_dotted(after, key)
        if key != _MCP_POLICY and old != new and effect(old, new) == "tightens":
            _set_at_key(data, key, new)
            origins[tuple(key.split("."))] = tuple(key.split("."))
    for name, policy in data[_MCP_POLICY].items():
        policy["pin"] = "block" if after[_MCP_POLICY].get(name, {}).get("pin") != "warn" else policy["pin"]
    data["skill_policy"] |= _lifted(before["skill_policy"], after["skill_policy"])
    _drop_missing_hooks(data, last_good)
    data[_BUDGETS] = [name for name in data[_BUDGETS] if name in (*before[_BUDGETS], *last_good.context.budgets)]
    _intersect_tools(data, last_good, saved.spec.skill_policy, origins)
    if data == before:
        return last_good
    checked = AgentSpec.model_validate(data)
    spec = last_good.spec.model_copy(update={section: getattr(checked, section) for section in _PERMISSION_SECTIONS})
    digest = source_digest(last_good.digest, json.dumps(data, sort_keys=True, default=str))
    return _restricted_agent(last_good, spec, _merge_marks(last_good.document, saved.document, origins), digest)


def _restricted_agent(last_good: Agent, spec: AgentSpec, document: Document, digest: str) -> Agent:
    """Return the last good version of an agent with a stricter spec."""
    agent = build_agent(spec, document, digest, last_good.context)
    return replace(agent, warnings=last_good.warnings, original=last_good)


def permission_warnings(agent: Agent, saved: SavedPermissions | None, path: str) -> Iterator[Problem]:
    """Yield warnings about an invalid file: which of its permissions are in effect, and which are not."""
    fallback = f"the last good version of {agent.name!r} stays in effect"
    if saved is None:
        message = f"the rules and limits in this file are NOT in effect: the file cannot be read; {fallback}"
        yield Problem(path=path, message=message, severity="warning")
        return
    for where in saved.unread:
        message = (
            f"{'.'.join(map(str, path_in_file(saved.document, where)))} is NOT in effect: it is invalid; {fallback}"
        )
        yield saved.document.problem(where, message, at_key=True).model_copy(update={"severity": "warning"})
    if agent.original is not None:
        message = f"only the restrictions in this file are in effect; otherwise {fallback}"
        yield Problem(path=path, message=message, severity="warning")


# --- restricting


def _add_restrictions(
    data: JsonObject, key: str, items: list[Any], origins: dict[KeyPath, KeyPath], saved: SavedPermissions
) -> None:
    """Append the items of a list in which every item restricts, such as deny rules."""
    path: KeyPath = tuple(key.split("."))
    own: list[Any] = get_dotted(data, key)
    existing = {json.dumps(item, sort_keys=True) for item in own}
    for index, item in zip(saved.indices(key, len(items)), items, strict=False):
        if json.dumps(item, sort_keys=True) not in existing:
            origins[(*path, len(own))] = (*path, index)
            own.append(item)


def _lifted(before: JsonObject, after: JsonObject) -> JsonObject:
    """Return the tools of any risk that both versions have: only in calls that an ask rule matches, if one says so."""
    always, both = (
        [name for name in dict.fromkeys(all_of(before)) if name in all_of(after)]
        for all_of in (
            lambda policy: policy["any_risk"],
            lambda policy: [*policy["any_risk"], *policy["any_risk_if_asked"]],
        )
    )
    return {"any_risk": always, "any_risk_if_asked": [name for name in both if name not in always]}


def _drop_missing_hooks(data: JsonObject, last_good: Agent) -> None:
    """Remove hooks that the plugins of the last good version do not define: they cannot be called."""
    extensions = last_good.context.toolbox.extensions
    for place, names in data["hooks"].items():
        data["hooks"][place] = [name for name in names if name in extensions]


def _intersect_tools(data: JsonObject, last_good: Agent, saved: SkillPolicy, origins: dict[KeyPath, KeyPath]) -> None:
    """Allow only tools that both versions allow. Deny those that one asks about and the other does not offer."""
    policy, own = data["skill_policy"], last_good.spec.skill_policy
    asks = [[rule.tool for rule in rules] for rules in (own.ask, saved.ask)]
    if own.allow == saved.allow and asks[0] == asks[1]:
        return
    tools = [name for name, tool in last_good.toolset.tools.items() if tool.source != "agent"]
    if own.allow != saved.allow:
        both = [name for name in tools if _matches(name, own.allow) and _matches(name, saved.allow)]
        policy["allow"] = [_literal(name) for name in both]
        origins |= {("skill_policy", "allow", index): ("skill_policy", "allow") for index in range(len(both))}
    for name in tools:
        offering = [_matches(name, (*version.allow, *ask)) for version, ask in zip((own, saved), asks, strict=True)]
        if offering[0] != offering[1] and _matches(name, (*asks[0], *asks[1])):
            origins["skill_policy", "deny", len(policy["deny"])] = ("skill_policy", "allow")
            policy["deny"].append({"tool": _literal(name), "when": {}, "reason": _ONE_SIDED})


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _literal(name: str) -> str:
    """Return a pattern that matches only this name."""
    return re.sub(r"[*?\[]", r"[\g<0>]", name)


def _merge_marks(last_good: Document, saved: Document, origins: Mapping[KeyPath, KeyPath]) -> Document:
    """Return the last good document, where each added item has its position in the saved document."""
    marks = dict(last_good.marks)
    for path, origin in origins.items():
        marks[path] = saved.marks[next(p for p in (origin[:n] for n in range(len(origin), -1, -1)) if p in saved.marks)]
    elsewhere = {} if saved.path == last_good.path else dict.fromkeys(origins, saved.path)
    return replace(last_good, marks=PackedMarks(marks), elsewhere=elsewhere)


def _set_at_key(data: JsonObject, key: str, value: Any) -> None:
    *above, last = key.split(".")
    for part in above:
        data = data[part]
    data[last] = value


def saved_permissions(parsed: ParsedAgent, last_good: Agent) -> SavedPermissions:
    """Return the permissions in a file; those of `last_good` if the file now defines another agent."""
    return SavedPermissions(parsed.spec if parsed.spec.name == last_good.name else last_good.spec, parsed.document)


def restrict_agents(
    live: Mapping[str, Agent],
    parsed: Mapping[str, ParsedAgent | ParseError],
    sources: Mapping[str, bytes],
    reasons: tuple[Problem, ...],
) -> tuple[dict[str, Agent], list[Problem]]:
    """Return the live agents with the restrictions of a rejected edit, and warnings about its files.

    Args:
        live: the agents by name.
        parsed: the agent files by path.
        sources: the bytes of the agent files by path. Unreadable files are missing here, but present in `parsed`.
        reasons: why the edit is rejected; empty if the rest of it only waits.
    """
    by_name = {result.spec.name: result for result in parsed.values() if isinstance(result, ParsedAgent)}
    agents: dict[str, Agent] = {}
    warnings: list[Problem] = []
    for name, agent in live.items():
        last_good, result = agent.last_good, parsed.get(agent.path, by_name.get(name))
        if result is None:
            continue  # its file was removed
        agents[name] = agent
        if isinstance(result, ParsedAgent):
            permissions: SavedPermissions | None = saved_permissions(result, last_good)
        else:
            source = sources.get(agent.path)
            permissions = read_permissions(agent.path, source, last_good.spec) if source is not None else None
        if permissions is None or permissions.spec != last_good.spec:
            stricter = tighten_agent(last_good, permissions) if permissions else last_good
            is_new = stricter.digest != agent.digest or (reasons and not agent.stale)
            if stricter.original and is_new:
                agents[name] = replace(stricter, stale=reasons or agent.stale)
            warnings.extend(permission_warnings(agents[name], permissions, agent.path))
    return agents, warnings
