"""What a file that cannot be used still restricts: its rules and limits apply to the last good version of its agent.

An edit that takes rights away must not wait for the mending of a template, or of a key that has nothing to do with
rights. Only what restricts is taken; whatever the file would permit in addition waits until all of it can be used.
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

from framework.config.agents.compile import Agent, assemble
from framework.config.agents.diff import LIST_EFFECTS, VALUE_EFFECTS
from framework.config.files.snapshot import source_digest
from framework.config.yaml.document import Document, DocumentError, KeyPath, PackedMarks, read_document
from framework.config.yaml.partial import JsonObject, get_dotted, merge_valid
from framework.types.problem import Problem
from framework.types.spec import AgentSpec, SkillPolicy

_PERMISSION_SECTIONS = tuple(dict.fromkeys(key.partition(".")[0] for key in (*LIST_EFFECTS, *VALUE_EFFECTS)))
"""The keys of an agent file that say what the agent may do or use up."""
_ALLOW, _MCP_POLICY = "skill_policy.allow", "mcp_policy"
_ADDING = frozenset(key for key, (adding, _) in LIST_EFFECTS.items() if adding == "tightens")
_ONE_SIDED = "the last good version and the file as saved do not both offer it"


@dataclass(frozen=True, slots=True)
class SavedPermissions:
    """The rights in a file as it was saved, as far as they can be read."""

    spec: AgentSpec
    """The last good version, with these rights instead of its own."""
    document: Document
    unread: tuple[KeyPath, ...] = ()
    """What is invalid."""

    def indices(self, key: str, count: int) -> list[int]:
        """Where the items of a list stand in the file; invalid ones are not part of the list."""
        path = tuple(key.split("."))
        skipped = {where[-1] for where in self.unread if where[:-1] == path}
        return [index for index in range(count + len(skipped)) if index not in skipped]


def read_permissions(path: str, source: bytes, last_good: AgentSpec) -> SavedPermissions | None:
    """Read the rights in a file that is invalid somewhere; None if it is no YAML at all."""
    try:
        document = read_document(path, source)
    except DocumentError:
        return None
    if document.data.get("name", last_good.name) != last_good.name:
        return SavedPermissions(last_good, document)  # it is another agent's
    rights = {key: value for key, value in document.data.items() if key in _PERMISSION_SECTIONS}
    data, unread = merge_valid(AgentSpec, last_good.model_dump(mode="json", by_alias=True), rights, _ADDING)
    unknown = (key for key in document.data.keys() - AgentSpec.model_fields.keys())
    unread += [(key,) for key in unknown if get_close_matches(key, _PERMISSION_SECTIONS, n=1)]
    return SavedPermissions(AgentSpec.model_validate(data), document, tuple(unread))


def tighten_agent(last_good: Agent, saved: SavedPermissions) -> Agent:
    """The last good version of an agent with what its file restricts; the very same object if that is nothing."""
    was = last_good.spec.model_dump(mode="json", by_alias=True)
    now = saved.spec.model_dump(mode="json", by_alias=True)
    kept, origins = deepcopy(was), dict[KeyPath, KeyPath]()
    for key in LIST_EFFECTS:
        if key in _ADDING:
            _add_restrictions(kept, key, get_dotted(now, key), origins, saved)
        elif key != _ALLOW:
            _set_at_key(kept, key, [item for item in get_dotted(was, key) if item in get_dotted(now, key)])
    for key, effect in VALUE_EFFECTS.items():
        before, after = get_dotted(was, key), get_dotted(now, key)
        if key != _MCP_POLICY and before != after and effect(before, after) == "tightens":
            _set_at_key(kept, key, after)
            origins[tuple(key.split("."))] = tuple(key.split("."))
    for name, policy in kept[_MCP_POLICY].items():
        policy["pin"] = "block" if now[_MCP_POLICY].get(name, {}).get("pin") != "warn" else policy["pin"]
    _drop_missing_hooks(kept, last_good)
    _intersect_tools(kept, last_good, saved.spec.skill_policy, origins)
    if kept == was:
        return last_good
    checked = AgentSpec.model_validate(kept)
    spec = last_good.spec.model_copy(update={section: getattr(checked, section) for section in _PERMISSION_SECTIONS})
    digest = source_digest(last_good.digest, json.dumps(kept, sort_keys=True, default=str))
    return _restricted_agent(last_good, spec, _merge_marks(last_good.document, saved.document, origins), digest)


def _restricted_agent(last_good: Agent, spec: AgentSpec, document: Document, digest: str) -> Agent:
    """An agent in its last good version, under a spec that permits less."""
    agent = assemble(spec, document, digest, last_good.context)
    return replace(agent, warnings=last_good.warnings, original=last_good)


def permission_warnings(agent: Agent, saved: SavedPermissions | None, path: str) -> Iterator[Problem]:
    """Warnings about a file that cannot be used: what of its rights is live, and what is not."""
    stays = f"the last good version of {agent.name!r} stays in force"
    if saved is None:
        message = f"the rules and limits in this file are NOT live: they cannot be read; {stays}"
        yield Problem(path=path, message=message, severity="warning")
        return
    for where in saved.unread:
        message = f"{'.'.join(map(str, where))} is NOT live: it cannot be read; {stays}"
        yield saved.document.problem(where, message, at_key=True).model_copy(update={"severity": "warning"})
    if agent.original is not None:
        message = f"of this file only what restricts {agent.name!r} is live; otherwise {stays}"
        yield Problem(path=path, message=message, severity="warning")


# --- restricting


def _add_restrictions(
    kept: JsonObject, key: str, items: list[Any], origins: dict[KeyPath, KeyPath], saved: SavedPermissions
) -> None:
    """Add what restricts by being there."""
    path: KeyPath = tuple(key.split("."))
    own: list[Any] = get_dotted(kept, key)
    known = {json.dumps(item, sort_keys=True) for item in own}
    for index, item in zip(saved.indices(key, len(items)), items, strict=False):
        if json.dumps(item, sort_keys=True) not in known:
            origins[(*path, len(own))] = (*path, index)
            own.append(item)


def _drop_missing_hooks(kept: JsonObject, last_good: Agent) -> None:
    """A hook that the last good version's plugins do not have cannot be called."""
    there = last_good.context.toolbox.extensions
    for place, names in kept["hooks"].items():
        kept["hooks"][place] = [name for name in names if name in there]


def _intersect_tools(kept: JsonObject, last_good: Agent, saved: SkillPolicy, origins: dict[KeyPath, KeyPath]) -> None:
    """Allow only what both versions allow; deny what one of them asks about and the other does not offer."""
    policy, own = kept["skill_policy"], last_good.spec.skill_policy
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
    """A pattern that matches this very name."""
    return re.sub(r"[*?\[]", r"[\g<0>]", name)


def _merge_marks(last_good: Document, saved: Document, origins: Mapping[KeyPath, KeyPath]) -> Document:
    """The last good document, in which what was added stands where the saved one has it."""
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
