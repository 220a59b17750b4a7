"""What changed between two generations, and in which direction: each change widens, tightens, or is neutral.

Widening is whatever lets an agent do or use up more than before; what is not known to tighten counts as widening only
where permissions, limits or confirmation are concerned, and as neutral elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Any, get_args

from pydantic import SecretStr

from framework.config.settings import SETTINGS_FILE, Settings, common_folders
from framework.types.change import Change, ChangeEffect
from framework.types.spec import CONTENT_MODES, RISKS, AgentSpec, HookPlace

_NUMBER = re.compile(r"(>=|<=|>|<)\s*(\S+)\s*")
_NEVER = len(RISKS)
_MAX_PAIRED_RULES = 100
"""Rules that are compared one by one with each other."""


def diff_agents(before: Mapping[str, AgentSpec], after: Mapping[str, AgentSpec]) -> Iterator[Change]:
    """The changes of all agents, by name and then by key."""
    for name in sorted(before.keys() | after.keys()):
        if name not in before:
            yield Change(agent=name, key="", after=name, effect="widens")
        elif name not in after:
            yield Change(agent=name, key="", before=name, effect="tightens")
        else:
            yield from diff_agent(before[name], after[name])


def diff_settings(before: Settings, after: Settings) -> Iterator[Change]:
    """The changes of `agentsd.yaml`; secrets are told apart, but never shown."""
    if before == after:
        return
    for path, was, now in _leaves((), before.model_dump(), after.model_dump()):
        key = ".".join(path)
        if key in _SETTINGS_SETS:
            yield from _set_changes(SETTINGS_FILE, key, was or [], now or [], _SETTINGS_SETS[key])
        else:
            effect = _SETTINGS_EFFECTS.get(key, _wider if path[0] == "tools" else _neutral)(was, now)
            yield Change(agent=SETTINGS_FILE, key=key, before=_masked(was), after=_masked(now), effect=effect)


def diff_agent(before: AgentSpec, after: AgentSpec) -> Iterator[Change]:
    """The changes of one agent."""
    if before is after or before == after:
        return
    old, new = before.model_dump(mode="json", by_alias=True), after.model_dump(mode="json", by_alias=True)
    for path, was, now in _leaves((), old, new):
        key = ".".join(path)
        if key in LIST_EFFECTS:
            yield from _set_changes(before.name, key, was or [], now or [], LIST_EFFECTS[key])
        else:
            effect = VALUE_EFFECTS.get(key, _neutral)(was, now)
            yield Change(agent=before.name, key=key, before=was, after=now, effect=effect)


def _leaves(path: tuple[str, ...], was: Any, now: Any) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """The keys whose values differ, as deep as both sides are mappings."""
    if was == now:
        return
    if isinstance(was, dict) and isinstance(now, dict) and ".".join(path) not in VALUE_EFFECTS:
        for key in [*was, *(key for key in now if key not in was)]:
            yield from _leaves((*path, key), was.get(key), now.get(key))
    else:
        yield path, was, now


def _set_changes(
    agent: str, key: str, was: list[Any], now: list[Any], effects: tuple[ChangeEffect, ChangeEffect]
) -> Iterator[Change]:
    """Lists of rules and names: what went and what came, without regard to order."""
    adding, removing = effects
    old, new = ({json.dumps(item, sort_keys=True): item for item in items} for items in (was, now))
    gone, come = ([items[text] for text in items if text not in others] for items, others in ((old, new), (new, old)))
    for before, after in _rewritten(gone, come) if key in _RULES else ():
        gone.remove(before)
        come.remove(after)
        wider, narrower = covers(after, before), covers(before, after)
        effect: ChangeEffect = "neutral" if wider and narrower else adding if wider else removing
        yield Change(agent=agent, key=key, before=before, after=after, effect=effect)
    for item in gone:
        yield Change(agent=agent, key=key, before=item, effect=removing)
    for item in come:
        yield Change(agent=agent, key=key, after=item, effect=adding)


def _rewritten(gone: list[Any], come: list[Any]) -> list[tuple[Any, Any]]:
    """Rules that were replaced by one for more calls, or for fewer: each a single change."""
    pairs: list[tuple[Any, Any]] = []
    left = list(come)
    for before in gone[:_MAX_PAIRED_RULES]:
        after = next((rule for rule in left[:_MAX_PAIRED_RULES] if covers(rule, before) or covers(before, rule)), None)
        if after is not None:
            left.remove(after)
            pairs.append((before, after))
    return pairs


def _neutral(was: Any, now: Any) -> ChangeEffect:  # noqa: ARG001 - one signature for all
    return "neutral"


def _wider(was: Any, now: Any) -> ChangeEffect:  # noqa: ARG001 - one signature for all
    return "widens"


def _keys(was: tuple[SecretStr, ...], now: tuple[SecretStr, ...]) -> ChangeEffect:
    """Without any key, whoever is on this machine may ask."""
    return "widens" if not now or (was and {*now} - {*was}) else "tightens"


def _folders(was: tuple[str, ...] | None, now: tuple[str, ...] | None) -> ChangeEffect:
    """Another folder to write in widens, and so does no selection at all."""
    common = common_folders(was, now)
    return "tightens" if now is not None and common is not None and {*common} == {*now} else "widens"


def _masked(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return str(value)
    if isinstance(value, dict):
        return {key: _masked(item) for key, item in value.items()}
    return [_masked(item) for item in value] if isinstance(value, (tuple, list)) else value


def _limit(was: float | None, now: float | None) -> ChangeEffect:
    """More, or no limit, widens."""
    return "widens" if (float("inf") if now is None else now) > (float("inf") if was is None else was) else "tightens"


def _risk(was: str, now: str) -> ChangeEffect:
    """A higher level widens; for confirmation, `never` is the highest."""
    return "widens" if _rank(now) > _rank(was) else "tightens"


def _approval(was: Any, now: Any) -> ChangeEffect:
    return "widens" if _approval_rank(now) > _approval_rank(was) else "tightens"


def _strictness(was: bool, now: bool) -> ChangeEffect:  # noqa: ARG001 - one signature for all
    return "tightens" if now else "widens"


def _content(was: str | None, now: str | None) -> ChangeEffect:
    """More of what is said in more hands widens; an agent that sets nothing lowers nothing."""
    before, after = ((mode or CONTENT_MODES[-1]) for mode in (was, now))
    return "widens" if CONTENT_MODES.index(after) > CONTENT_MODES.index(before) else "tightens"


def _servers(was: dict[str, Any], now: dict[str, Any]) -> ChangeEffect:
    """More context is no right; a server whose changed tools are no longer refused widens."""
    loose = [name for name, policy in now.items() if policy["pin"] == "warn"]
    if any(was.get(name, {}).get("pin", "block") == "block" for name in loose):
        return "widens"
    return (
        "tightens" if any(policy["pin"] == "warn" and name not in loose for name, policy in was.items()) else "neutral"
    )


def _rank(risk: str) -> int:
    return _NEVER if risk == "never" else RISKS.index(risk)


def _approval_rank(approval: Any) -> int:
    if approval == "always":
        return -1
    return _NEVER if approval == "never" else _rank(approval["from"])


LIST_EFFECTS: Mapping[str, tuple[ChangeEffect, ChangeEffect]] = {
    "skill_policy.deny": ("tightens", "widens"),
    "skill_policy.ask": ("tightens", "widens"),
    "skill_policy.allow": ("widens", "tightens"),
    "skill_policy.files.deny": ("tightens", "widens"),
    "sub_agents": ("widens", "tightens"),
    **{f"hooks.{place}": ("tightens", "widens") for place in get_args(HookPlace)},
}
"""Lists: what adding to them and removing from them means."""
_RULES = frozenset(("skill_policy.deny", "skill_policy.ask"))
_SETTINGS_SETS: Mapping[str, tuple[ChangeEffect, ChangeEffect]] = dict.fromkeys(
    ("tools.unprotected", "tools.http.domains", "tools.http.methods", "tools.http.private_networks"),
    ("widens", "tightens"),
)
_SETTINGS_EFFECTS: Mapping[str, Callable[[Any, Any], ChangeEffect]] = {
    "tools.http.max_redirects": _limit,
    "tools.http.max_bytes": _limit,
    "tools.http.timeout": _limit,
    "tools.write_below": lambda was, now: _folders(was, now),
    "telemetry.content": lambda was, now: _content(was or "none", now or "none"),
    "server.api_keys": _keys,
}
_LIMITS = (
    "max_steps",
    "max_tool_calls",
    "max_total_tokens",
    "max_cost_usd",
    "timeout",
    "model_timeout",
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
    "runtime_policy.confirm.on_expiry": lambda _, now: "tightens" if now == "cancel" else "widens",
    "runtime_policy.strict_arguments": _strictness,
    "plan.approval": _approval,
    **{f"plan.{limit}": _limit for limit in ("max_plan_steps", "max_replans", "step_timeout", "step_retries")},
    "mcp_policy": _servers,
    "telemetry.content": _content,
}


def covers(wide: Mapping[str, Any], narrow: Mapping[str, Any]) -> bool:
    """Whether a rule, as data, applies to all calls of another one; False where that is not certain.

    The patterns must be equal: an ask rule also offers the tools it matches.
    """
    return wide["tool"] == narrow["tool"] and all(
        name in narrow["when"] and _holds_too(condition, narrow["when"][name])
        for name, condition in wide["when"].items()
    )


def _holds_too(wide: Any, narrow: Any) -> bool:
    """Whether a condition holds for all values that another one holds for."""
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
