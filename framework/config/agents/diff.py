"""Compares two generations; each change widens, tightens, or is neutral.

A change widens if it lets an agent do or consume more than before. A change that is not known to tighten counts as
widening if it concerns permissions, limits or confirmation, and as neutral otherwise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import isfinite
from typing import Any, get_args

from pydantic import SecretStr

from framework.config.api_keys import ApiKey, permits_more
from framework.config.overlay import SETTINGS_FILE
from framework.config.settings import Settings, common_folders
from framework.config.yaml.agent_keys import written_path
from framework.types.budget import BUDGET_LIMITS
from framework.types.problem import Change, ChangeEffect
from framework.types.spec import CONTENT_MODES, MEMORY_SCOPES, MEMORY_WRITES, RISKS, AgentSpec, HookPlace

_ASK, _LIFT_IF_ASKED = "skill_policy.ask", "skill_policy.any_risk_if_asked"
_NUMBER = re.compile(r"(>=|<=|>|<)\s*(\S+)\s*")
_NEVER = len(RISKS)
_NAMED = 2
"""Length of the path of a setting with a name of the project's choice, such as a budget."""
_MAX_PAIRED_RULES = 100
"""Limit of removed and of added rules that are compared pairwise."""


def diff_agents(before: Mapping[str, AgentSpec], after: Mapping[str, AgentSpec]) -> Iterator[Change]:
    """Yield the changes of all agents, sorted by name; those of one agent in the order of its keys."""
    changed = [name for name in before.keys() | after.keys() if before.get(name) is not after.get(name)]
    for name in sorted(changed):
        if name not in before:
            yield Change(agent=name, key="", after=name, effect="widens")
        elif name not in after:
            yield Change(agent=name, key="", before=name, effect="tightens")
        else:
            yield from diff_agent(before[name], after[name])


def diff_settings(before: Settings, after: Settings) -> Iterator[Change]:
    """Yield the changes of `agentsd.yaml`. Secrets are compared, but masked in the result."""
    if before == after:
        return
    for path, old, new in _leaves((), before.model_dump(), after.model_dump()):
        key = ".".join(path)
        if key in _SETTINGS_SETS:
            yield from _set_changes(SETTINGS_FILE, key, old or [], new or [], _SETTINGS_SETS[key])
        else:
            effect = _settings_effect(path)(old, new)
            own = {"agent": SETTINGS_FILE, "key": key, "file_key": key}
            yield Change(**own, before=_masked(old), after=_masked(new), effect=effect)


def diff_agent(before: AgentSpec, after: AgentSpec) -> Iterator[Change]:
    """Yield the changes of one agent, one for each line that its author would write."""
    if before is after or before == after:
        return
    changes = list(_spec_changes(before, after))
    lifted = {*before.skill_policy.any_risk} & {*after.skill_policy.any_risk}
    lifts = {(one.before, one.after) for one in changes if one.key == _LIFT_IF_ASKED}
    asked = {_tools(one) for one in changes if one.key == _ASK}
    for change in changes:
        if change.key == _ASK and _tools(change) in lifts and lifted.isdisjoint(_tools(change)):
            yield change.model_copy(update={"effect": "widens", "also_tightens": True})
        elif change.key != _LIFT_IF_ASKED or (change.before, change.after) not in asked:
            yield change


def _tools(change: Change) -> tuple[str | None, str | None]:
    """Return the tools of a rule before and after its change."""
    return change.before and change.before["tool"], change.after and change.after["tool"]


def _spec_changes(before: AgentSpec, after: AgentSpec) -> Iterator[Change]:
    old_data, new_data = (_with_steps_by_id(spec.model_dump(mode="json", by_alias=True)) for spec in (before, after))
    allowed: list[tuple[Any, Any]] = []
    for path, old, new in _leaves((), old_data, new_data):
        key = ".".join(path)
        if key in LIST_EFFECTS:
            found = [*_set_changes(before.name, key, old or [], new or [], LIST_EFFECTS[key])]
            if key == "skill_policy.allow":
                allowed = [(change.before, change.after) for change in found]
            if key == "skill_policy.any_risk":  # said already by the change of `allow`
                found = [change for change in found if (change.before, change.after) not in allowed]
            yield from found
        else:
            effect = VALUE_EFFECTS.get(key, _neutral)(old, new)
            yield Change(agent=before.name, key=key, file_key=_file_key(key), before=old, after=new, effect=effect)


def _with_steps_by_id(data: dict[str, Any]) -> dict[str, Any]:
    """Return the data of a spec with the steps of its plan by id, each with the steps that it follows."""
    steps = data["plan"]["steps"]
    before = (None, *(step["id"] for step in steps))
    by_id = {}
    for step, previous in zip(steps, before, strict=False):
        follows = step["depends_on"] if step["depends_on"] is not None else [previous] if previous else []
        by_id[step["id"]] = {**step, "depends_on": follows}
    return {**data, "plan": {**data["plan"], "steps": by_id}}


def _leaves(path: tuple[str, ...], old: Any, new: Any) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield the keys whose values differ, descending as long as both values are mappings."""
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict) and ".".join(path) not in VALUE_EFFECTS:
        for key in [*old, *(key for key in new if key not in old)]:
            yield from _leaves((*path, key), old.get(key), new.get(key))
    else:
        yield path, old, new


def _set_changes(
    agent: str, key: str, old: list[Any], new: list[Any], effects: tuple[ChangeEffect, ChangeEffect]
) -> Iterator[Change]:
    """Yield the items that were removed from and added to a list of rules or names. Their order is ignored."""
    adding, removing = effects
    changed = partial(Change, agent=agent, key=key, file_key=key if agent == SETTINGS_FILE else _file_key(key))
    old_items, new_items = ({json.dumps(item, sort_keys=True): item for item in items} for items in (old, new))
    removed = [item for text, item in old_items.items() if text not in new_items]
    added = [item for text, item in new_items.items() if text not in old_items]
    for before, after in _rewritten(removed, added) if key in _RULES else ():
        removed.remove(before)
        added.remove(after)
        wider, narrower = covers(after, before), covers(before, after)
        effect: ChangeEffect = "neutral" if wider and narrower else adding if wider else removing
        yield changed(before=before, after=after, effect=effect)
    for item in removed:
        yield changed(before=item, effect=removing)
    for item in added:
        yield changed(after=item, effect=adding)


def _file_key(key: str) -> str:
    return ".".join(map(str, written_path(tuple(key.split(".")))))


def _rewritten(removed: list[Any], added: list[Any]) -> list[tuple[Any, Any]]:
    """Return pairs of rules where the new one applies to more calls than the old one, or to fewer."""
    pairs: list[tuple[Any, Any]] = []
    remaining = list(added)
    for before in removed[:_MAX_PAIRED_RULES]:
        after = next(
            (rule for rule in remaining[:_MAX_PAIRED_RULES] if covers(rule, before) or covers(before, rule)), None
        )
        if after is not None:
            remaining.remove(after)
            pairs.append((before, after))
    return pairs


def _neutral(old: Any, new: Any) -> ChangeEffect:  # noqa: ARG001 - all effect functions share a signature
    return "neutral"


def _wider(old: Any, new: Any) -> ChangeEffect:  # noqa: ARG001 - all effect functions share a signature
    return "widens"


def _keys(old: tuple[Any, ...], new: tuple[Any, ...]) -> ChangeEffect:
    """Return `widens` for more rights, and for no keys: then every program on this machine may send requests."""
    before, after = (
        [ApiKey.model_validate(key) if isinstance(key, dict) else key for key in keys] for keys in (old, new)
    )
    return "widens" if not new or (old and permits_more(before, after)) else "tightens"


def _folders(old: tuple[str, ...] | None, new: tuple[str, ...] | None) -> ChangeEffect:
    """Return `widens` for another writable folder, and for no restriction (None)."""
    common = common_folders(old, new)
    return "tightens" if new is not None and common is not None and {*common} == {*new} else "widens"


def _settings_effect(path: tuple[str, ...]) -> Callable[[Any, Any], ChangeEffect]:
    if path[0] == "budgets":
        return _limit if path[-1] in BUDGET_LIMITS and len(path) > _NAMED else _budget
    return _SETTINGS_EFFECTS.get(".".join(path), _wider if path[0] == "tools" else _neutral)


def _budget(old: Any, new: Any) -> ChangeEffect:
    """Return `widens` unless a budget is new: without it, or with other counters, runs can use more."""
    return "widens" if old is not None and old != new else "neutral"


def _masked(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return str(value)
    if isinstance(value, dict):
        return {key: _masked(item) for key, item in value.items()}
    return [_masked(item) for item in value] if isinstance(value, (tuple, list)) else value


def _limit(old: float | None, new: float | None) -> ChangeEffect:
    """Return `widens` for a higher limit or for none."""
    return "widens" if (float("inf") if new is None else new) > (float("inf") if old is None else old) else "tightens"


def _risk(old: str, new: str) -> ChangeEffect:
    """Return `widens` for a higher level. For confirmation, `never` is the highest."""
    return "widens" if _rank(new) > _rank(old) else "tightens"


def _approval(old: Any, new: Any) -> ChangeEffect:
    return "widens" if _approval_rank(new) > _approval_rank(old) else "tightens"


def _strictness(old: bool, new: bool) -> ChangeEffect:  # noqa: ARG001 - all effect functions share a signature
    return "tightens" if new else "widens"


def _content(old: str | None, new: str | None) -> ChangeEffect:
    """Return `widens` for more content in traces. None counts as the highest mode: it lowers nothing."""
    before, after = ((mode or CONTENT_MODES[-1]) for mode in (old, new))
    return "widens" if CONTENT_MODES.index(after) > CONTENT_MODES.index(before) else "tightens"


def _servers(old: dict[str, Any], new: dict[str, Any]) -> ChangeEffect:
    """Return `widens` if changed tools of a server are no longer refused. Context from a server is neutral."""
    unpinned = [name for name, policy in new.items() if policy["pin"] == "warn"]
    if any(old.get(name, {}).get("pin", "block") == "block" for name in unpinned):
        return "widens"
    return (
        "tightens"
        if any(policy["pin"] == "warn" and name not in unpinned for name, policy in old.items())
        else "neutral"
    )


def _rank(risk: str) -> int:
    return _NEVER if risk == "never" else RISKS.index(risk)


def _approval_rank(approval: Any) -> int:
    if approval == "always":
        return -1
    return _NEVER if approval == "never" else _rank(approval["from"])


LIST_EFFECTS: Mapping[str, tuple[ChangeEffect, ChangeEffect]] = {
    "skill_policy.deny": ("tightens", "widens"),
    _ASK: ("tightens", "widens"),
    "skill_policy.allow": ("widens", "tightens"),
    "skill_policy.files.deny": ("tightens", "widens"),
    "skill_policy.any_risk": ("widens", "tightens"),
    _LIFT_IF_ASKED: ("widens", "tightens"),
    "skills.allow": ("widens", "tightens"),
    "skills.deny": ("tightens", "widens"),
    "skills.preload": ("widens", "tightens"),
    "sub_agents": ("widens", "tightens"),
    "handoffs": ("widens", "tightens"),
    "budgets": ("tightens", "widens"),
    **{f"hooks.{place}": ("tightens", "widens") for place in get_args(HookPlace)},
}
"""Keys of lists: the effect of adding an item, and of removing one."""
_RULES = frozenset(("skill_policy.deny", _ASK))
_SETTINGS_SETS: Mapping[str, tuple[ChangeEffect, ChangeEffect]] = dict.fromkeys(
    (
        "tools.unprotected",
        "tools.http.domains",
        "tools.http.methods",
        "tools.http.private_networks",
        "tools.sandbox.read",
        "tools.sandbox.env",
        "server.cors_origins",
        "server.a2a_push_hosts",
    ),
    ("widens", "tightens"),
)
_SETTINGS_EFFECTS: Mapping[str, Callable[[Any, Any], ChangeEffect]] = {
    "tools.http.max_redirects": _limit,
    "tools.http.max_bytes": _limit,
    "tools.http.timeout": _limit,
    "tools.sandbox.program": lambda _, new: "tightens" if new == "none" else "widens",
    "tools.sandbox.write": lambda _, new: "tightens" if new is None else "widens",
    "tools.sandbox.network": lambda _, new: "widens" if new else "tightens",
    **{f"tools.sandbox.{limit}": _limit for limit in ("timeout", "memory_mb", "processes", "disk_mb")},
    "tools.write_below": lambda old, new: _folders(old, new),
    "telemetry.content": lambda old, new: _content(old or "none", new or "none"),
    "server.api_keys": _keys,
    "server.allow_edit": lambda _, new: "widens" if new else "tightens",
}
_SCRIPTS = ("never", "ask", "allow")
_LIMITS = (
    "max_steps",
    "max_tool_calls",
    "max_total_tokens",
    "max_cost_usd",
    "timeout",
    "model_timeout",
    "model_total_timeout",
    "first_token_timeout",
    "tool_timeout",
    "max_parallel_tools",
    "max_repeated_calls",
    "max_corrections",
)
VALUE_EFFECTS: Mapping[str, Callable[[Any, Any], ChangeEffect]] = {
    **{f"runtime_policy.{limit}": _limit for limit in _LIMITS},
    "runtime_policy.risk_level": _risk,
    "runtime_policy.confirm.from": _risk,
    "runtime_policy.confirm.expires": _limit,
    "runtime_policy.confirm.on_expiry": lambda _, new: "tightens" if new == "cancel" else "widens",
    "runtime_policy.strict_arguments": _strictness,
    "runtime_policy.cost": lambda old, new: _strictness(old == "known", new == "known"),
    "plan.approval": _approval,
    "skills.scripts": lambda old, new: "widens" if _SCRIPTS.index(new) > _SCRIPTS.index(old) else "tightens",
    "memory.scope": lambda old, new: "widens" if MEMORY_SCOPES.index(new) > MEMORY_SCOPES.index(old) else "tightens",
    "memory.write": lambda old, new: "widens" if MEMORY_WRITES.index(new) > MEMORY_WRITES.index(old) else "tightens",
    "memory.max": _limit,
    "memory.ttl": _limit,
    **{f"plan.{limit}": _limit for limit in ("max_plan_steps", "max_replans", "step_timeout", "step_retries")},
    "mcp_policy": _servers,
    "telemetry.content": _content,
}


def covers(wide: Mapping[str, Any], narrow: Mapping[str, Any]) -> bool:
    """Return whether a rule applies to every call that another one applies to; False if that is not certain.

    The tool patterns must be equal, because an ask rule also offers the tools it matches.
    """
    if wide.get("at_most") not in (None, narrow.get("at_most")):
        return False
    return wide["tool"] == narrow["tool"] and all(
        name in narrow["when"] and _condition_covers(condition, narrow["when"][name])
        for name, condition in wide["when"].items()
    )


def _condition_covers(wide: Any, narrow: Any) -> bool:
    """Return whether a condition is true for every value for which another one is true."""
    if type(wide) is type(narrow) and wide == narrow:
        return True
    bounds = _bound(wide), _bound(narrow)
    if bounds[0] is None or bounds[1] is None:
        return False
    (sign, bound), (other_sign, other) = bounds[0], bounds[1]
    if sign[0] != other_sign[0]:
        return False
    if bound == other:
        return sign.endswith("=") or not other_sign.endswith("=")
    return bound < other if sign[0] == ">" else bound > other


def _bound(condition: Any) -> tuple[str, float] | None:
    match = _NUMBER.fullmatch(condition) if isinstance(condition, str) else None
    try:
        number = float(match[2]) if match else None
    except ValueError:
        return None
    return (match[1], number) if match and number is not None and isfinite(number) else None
