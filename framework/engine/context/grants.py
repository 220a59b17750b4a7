"""Grants of a run: how an approval can be remembered, and which remembered approval answers a question.

A grant answers a question instead of a person. It is looked up after the policy has asked, so that a denial and the
highest risk always win, and it never applies to another agent: not to a sub-agent of the one that asked either. It is
void for good once the tool's definition, the file of the agent or of one of its callers, or the rights of the key with
which it was approved have changed, also if they change back.

The conditions of a grant are those of rules, read the other way round. A rule restricts, so a condition that cannot be
evaluated counts as met there. A grant permits, so here it counts as not met, and every item of a list must meet it.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from framework.config.agents.compile import Agent
from framework.config.api_keys import ApiKey
from framework.config.generations.generation import Generation
from framework.config.settings import Settings
from framework.engine.context.policy import Policy, Verdict
from framework.store.types import GrantQuery, RunQuery
from framework.tools.conditions import (
    COMPARISONS,
    NOT_AN_OBJECT,
    WORKING_FOLDER,
    Matcher,
    condition_fault,
    location_kind,
    matcher_for,
    policy_views,
    rule_matches,
    values_at,
    yaml_text,
)
from framework.tools.files import BaseFolder
from framework.tools.tool import Tool
from framework.tools.toolset import PlacedRule
from framework.types.budget import CallRate
from framework.types.errors import RequestError, ToolError
from framework.types.grant import (
    DEFAULT_AT_MOST,
    DEFAULT_TTL,
    GRANT_SCOPES,
    MAX_CONDITION_CHARS,
    MAX_CONDITIONS,
    Grant,
    GrantCondition,
    GrantScope,
    GrantState,
    GrantUsage,
    OfferedWidth,
    Remember,
    RememberOffer,
)
from framework.types.spec import RISKS, Rule
from framework.types.state import Confirmation, Reject, RunState
from framework.types.text import call_digest, content_digest, source_digest

if TYPE_CHECKING:
    from framework.store.run_links import StoredGrants
    from framework.store.store import Store


log = logging.getLogger(__name__)

FULL_ACCESS_KEY = "full-access"
"""Name of the keys that are plain text in `server.api_keys`."""
COUNTED_DAYS = 30
MAX_COUNTED_RUNS = 300
"""Number of runs in which calls are counted. It bounds the time: each run is loaded."""
_MAX_CHECKED = 10_000
"""Number of active grants, the newest ones, that are checked after an edit. All are checked when they are used."""
Views = Sequence[Mapping[str, Any]]
"""A call's arguments from `policy_views`."""


@dataclass(frozen=True, slots=True)
class GrantBook:
    """The remembered approvals as one root run and its sub-runs use them."""

    stored: StoredGrants | None
    """Those of the store; None for a run that is not stored, which uses none."""
    settings: Callable[[], Sequence[Settings]]
    """Returns the settings of the run's generation and the live ones. Both apply."""
    now: Callable[[], float]
    """Returns the time of the store, as Unix time."""
    counts: StoredGrants
    """Counts calls for the rules with `at_most`, also those of runs that are not stored."""

    settle: Callable[[], Awaitable[None]]
    """Waits until the grants are void which the edits so far have changed."""

    async def count(
        self, policy: Policy, root: RunState, tool: Tool, views: Views, *, is_approved: bool, counted: Sequence[str]
    ) -> Verdict | tuple[str, ...]:
        """Count an allowed call for the rules with `at_most`, if a person has approved it only for `deny` rules.

        Return the verdict of a rule that is used up, or the keys of those that the call is counted for. `counted` has
        these keys from before a pause: a call that continues is the same one.
        """
        rates: dict[str, CallRate] = {}
        rules: dict[str, PlacedRule] = {}
        for agent, placed in policy.counted_rules(tool, views):
            rule = placed.rule
            if rule.at_most is None or (is_approved and placed.kind == "ask"):
                continue
            rate = CallRate.parse(rule.at_most)
            about = [root.tenant, root.user, agent.name, placed.kind, rule.tool, rule.when, rate.per]
            key = f"rule {content_digest(json.dumps(about, sort_keys=True))}"
            if key in counted:
                continue
            if key not in rates or rate.count < rates[key].count:  # of the pinned and the live rule, the stricter one
                rates[key], rules[key] = rate, placed
        for kind in ("ask", "deny"):  # a call that a person is asked about now is counted once it is approved
            chosen = {key: rate for key, rate in rates.items() if rules[key].kind == kind}
            if chosen and (reached := await self.counts.count(chosen)) is not None:
                placed = rules[reached]
                beyond = f"more than {placed.rule.at_most}"
                reason = f"{beyond}: {placed.rule.reason}" if placed.rule.reason else beyond
                return Verdict("ask" if kind == "ask" else "deny", f"{kind} {placed.rule.tool}", placed.place, reason)
        return *counted, *rates

    def offer(self, policy: Policy, root: RunState, tool: Tool, views: Views) -> RememberOffer | None:
        """Return how the approval of a call can be remembered, or None if it cannot."""
        files = files_of(policy, tool)
        if self.stored is None or files is None or self._is_never_granted(tool, views, policy.base):
            return None
        settings = self.settings()
        scopes = tuple(scope for scope in GRANT_SCOPES if all(_offers(one, scope, root) for one in settings))
        if not scopes:
            return None
        return RememberOffer(
            widths=widths_for(tool, views[0], policy.base),
            scopes=scopes,
            max_ttl=min(one.grants.max_ttl for one in settings),
            agent=agent_key(policy),
            contract=tool.contract,
            files=files,
            sources={name: _source_of(live) for name in files if (live := policy.current(name))},
            names=tuple(sorted(chosen_names(tool, views[0]))),
            digest=digest_of(tool, views[0]),
        )

    async def use(self, policy: Policy, root: RunState, tool: Tool, views: Views) -> Grant | None:
        """Return a grant that covers a call, after its use was counted; None without one."""
        files = files_of(policy, tool)
        if self.stored is None or files is None or self._is_never_granted(tool, views, policy.base):
            return None
        await self.settle()
        query = GrantQuery(
            agent=agent_key(policy),
            tool=tool.name,
            active_at=self.now(),
            tenant=root.tenant,
            without_tenant=root.tenant is None,
            user=root.user,
            without_user=root.user is None,
        )
        found = [grant for grant in await self.stored.list(query) if grant.void is None]
        changed = {grant.id: changed_since(grant, policy.current, self.settings()[-1]) for grant in found}
        await self.stored.make_void({grant_id: reason for grant_id, reason in changed.items() if reason})
        for grant in found:
            is_same = not changed[grant.id] and grant.contract == tool.contract and grant.files == files
            if is_same and self._applies(grant, root) and grant_covers(grant, tool, views, policy.base):
                if await self.stored.use(grant):
                    return grant
                log.info("run %s: grant %s is used up for now", root.run_id, grant.id)
        return None

    def _applies(self, grant: Grant, root: RunState) -> bool:
        """Return whether a grant applies to a run, as far as that does not depend on the call."""
        ids = {"run": root.run_id, "conversation": root.conversation_id, "user": grant.scope_id}
        if ids[grant.scope] != grant.scope_id:
            return False
        return all(
            _offers(one, grant.scope, root)
            and self.now() < grant.created_at + one.grants.max_ttl
            and rights_of(grant.key, one) == grant.rights
            for one in self.settings()
        )

    def _is_never_granted(self, tool: Tool, views: Views, base: BaseFolder) -> bool:
        risk = RISKS.index(tool.risk)
        for never in (one for settings in self.settings() for one in settings.grants.never):
            if fnmatchcase(tool.name, never.tool) and (never.risk is None or risk >= RISKS.index(never.risk)):
                rule = Rule(tool=never.tool, when=never.when)
                if any(rule_matches(rule, view, tool, base) for view in views):
                    return True
        return tool.risk == "critical"


def state_of(grant: Grant, live: Generation, now: float) -> tuple[GrantState, str | None]:
    """Return the state of a grant with the live files, and why it is void."""
    if grant.revoked_at is not None or not grant.is_active(now):
        return "expired" if grant.revoked_at is None else "revoked", None
    reason = _why_void(grant, live.agents, live.settings)
    return "void" if reason else "active", reason


def _why_void(grant: Grant, agents: Mapping[str, Agent], settings: Settings) -> str | None:
    """Return why a grant is void with the live agents and settings, such as `the tool has changed`; None if not."""
    if changed := grant.void or changed_since(grant, agents.get, settings):
        return changed
    for name, digest in grant.files.items():
        agent = agents.get(name)
        if agent is None or agent.digest != digest:
            return f"what {agent.path} refers to has changed since" if agent else f"there is no agent {name!r}"
    tool = agents[grant.agent.rpartition("/")[2]].toolset.tools.get(grant.tool)
    if tool is None:
        return "there is no such tool now"
    if tool.risk == "critical":
        return "the tool's risk is critical"
    if rights_of(grant.key, settings) != grant.rights:
        return f"the key {grant.key!r} is not one of this server"
    if grant.scope not in settings.grants.offer:
        return "grants.offer no longer allows it"
    return None


def changed_since(grant: Grant, agent_of: Callable[[str], Agent | None], settings: Settings) -> str | None:
    """Return what has changed since a grant was made, so that it is void for good; None if nothing has.

    What is missing is no change: another process, or the same one a moment later, may have it.
    """
    for name, digest in grant.sources.items():
        if (agent := agent_of(name)) and _source_of(agent) != digest:
            return f"{agent.path} has changed since"
    caller = agent_of(grant.agent.rpartition("/")[2])
    tool = caller.toolset.tools.get(grant.tool) if caller else None
    if tool is not None and tool.contract != grant.contract:
        return "the tool has changed since"
    if settings.server.api_keys and rights_of(grant.key, settings) != grant.rights:
        return f"the key {grant.key!r} has other rights now"
    return None


def _source_of(agent: Agent) -> str:
    """Return the digest of the text of an agent's file; that of the agent if its file is invalid, but restricts it."""
    return agent.digest if agent.original else source_digest(agent.document.source)


async def end_changed_grants(store: Store, before: Generation, after: Generation) -> None:
    """Make the grants void for good that depend on a file, a tool or a key which an edit has changed or removed."""
    reasons = {}
    for grant in await store.grants.list(GrantQuery(active_at=store.now(), limit=_MAX_CHECKED)):
        removed = next((name for name in grant.files if name in before.agents and name not in after.agents), None)
        changed = (changed_since(grant, one.agents.get, one.settings) for one in (before, after))
        reason = f"agent {removed!r} was removed since" if removed else next(filter(None, changed), None)
        if reason and grant.void is None:
            reasons[grant.id] = reason
    await store.grants.make_void(reasons)


def agent_key(policy: Policy) -> str:
    """Return what identifies the agent of a grant: its name after those of its callers, as in `desk/billing`.

    While it answers a message that was handed over to it, the agents before it count as callers: they ask, too.
    """
    names = [agent.name for agent in (*policy.parents, *policy.earlier, policy.agent)]
    # A step of a plan is a sub-run of the same agent.
    return "/".join(name for place, name in enumerate(names) if place == 0 or name != names[place - 1])


def files_of(policy: Policy, tool: Tool) -> dict[str, str] | None:
    """Return the digests of the files of an agent and its callers; None if one, or the tool, has changed meanwhile."""
    files = {}
    for agent in (*policy.parents, *policy.earlier, policy.agent):
        live = policy.current(agent.name)
        if live is None or live.digest != agent.digest:
            return None
        files[agent.name] = agent.digest
    current = policy.current(policy.agent.name)
    known = current.toolset.tools.get(tool.name) if current else None
    is_same = known is not None and (known.contract, known.risk) == (tool.contract, tool.risk)
    return files if is_same else None


def rights_of(key: str, settings: Settings) -> str | None:
    """Return a digest of what a key of the server may do, empty for none; None if it can no longer decide."""
    if not key:
        return ""
    for entry in settings.server.api_keys:
        if not isinstance(entry, ApiKey):
            if key == FULL_ACCESS_KEY:
                return FULL_ACCESS_KEY
        elif entry.name == key and "decide" in entry.roles:
            return content_digest(json.dumps([entry.roles, entry.tenant, entry.user, entry.agents]))
    return None


async def count_matches(store: Store, grants: Sequence[Grant], tool: Tool) -> list[GrantUsage]:
    """Return how many of the calls that the runs of the owner made in the last 30 days each grant would have covered.

    The grants are of one agent, tool and owner, and need not be stored. Only the newest `MAX_COUNTED_RUNS` are read.
    """
    first = grants[0]
    owner = RunQuery.of_owner(first.tenant, first.user)
    root, since = first.agent.partition("/")[0], store.now() - COUNTED_DAYS * 86400
    query = replace(owner, agent=root, since=since, newest_first=True, limit=MAX_COUNTED_RUNS)
    calls: list[tuple[dict[str, Any], bool]] = []
    found = await store.runs(query)
    for info in found:
        state = await store.load_run(info.run_id)
        rejected = {key.partition("~")[0] for key, one in state.decisions.items() if isinstance(one, Reject)}
        calls += ((arguments, call_id in rejected) for call_id, arguments in _calls_of(state, "", first))
    counted = {"days": COUNTED_DAYS, "calls": len(calls), "is_complete": len(found) < MAX_COUNTED_RUNS}
    covered = [[is_no for arguments, is_no in calls if _covers(grant, tool, arguments)] for grant in grants]
    return [GrantUsage(matched=len(one), rejected=sum(one), **counted) for one in covered]


def _calls_of(state: RunState, above: str, grant: Grant) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield id and arguments of the calls of the grant's tool by its agent, in a run and its sub-runs."""
    is_same = not above or above.rpartition("/")[2] != state.agent
    agent = "/".join(part for part in (above, state.agent if is_same else "") if part)
    if agent == grant.agent:
        for record in state.calls.values():
            if record.call.tool == grant.tool:
                yield "/".join((*state.path, record.call.id)), record.call.arguments
    for child in state.children.values():
        yield from _calls_of(child, agent, grant)


def _covers(grant: Grant, tool: Tool, arguments: Mapping[str, Any]) -> bool:
    """Return whether a grant covers a call with these arguments, in the form in which they are stored."""
    try:
        return grant_covers(grant, tool, policy_views(tool, arguments, tool.bind(arguments)))
    except ToolError:  # they do not fit the tool as it is now
        return False


def new_grant(
    state: RunState,
    asked: Confirmation,
    remember: Remember,
    tool: Tool | None,
    settings: Settings,
    *,
    by: str | None,
    key: str,
    now: float,
) -> Grant:
    """Return the grant of an approval; raises RequestError if it cannot be remembered so.

    The tool and the settings are those of now. `key` is the name of the API key of who decides, empty without one.
    """
    offer = asked.remember
    if offer is None or tool is None or tool.contract != offer.contract:
        raise RequestError(f"{asked.id} cannot be remembered: approve it without `remember`")
    scopes = [scope for scope in offer.scopes if scope in settings.grants.offer]
    if remember.scope not in scopes:
        possible = ", ".join(scopes) or "nothing"
        raise RequestError(f"{asked.id} cannot be remembered for {remember.scope}: possible: {possible}")
    longest = min(offer.max_ttl, settings.grants.max_ttl)
    if remember.ttl is not None and remember.ttl > longest:
        raise RequestError(f"{asked.id} cannot be remembered for {remember.ttl:.0f} s: at most {longest:.0f} s")
    rights = rights_of(key, settings)
    if rights is None:  # of an app around the routes, which has its own clients
        key, rights = "", ""
    scope_ids = {"run": state.run_id, "conversation": state.conversation_id or "", "user": ""}
    grant = Grant(
        id=f"grant_{content_digest(f'{state.run_id} {asked.id}')[:12]}",
        agent=offer.agent,
        tool=asked.tool,
        width=remember.width,
        when=_conditions(asked, offer, remember, tool),
        arguments=asked.arguments,
        names=offer.names if remember.width == "arguments" else (),
        digest=offer.digest if remember.width == "call" else "",
        scope=remember.scope,
        scope_id=scope_ids[remember.scope],
        tenant=state.tenant,
        user=state.user,
        at_most=remember.at_most or (None if remember.width == "call" else DEFAULT_AT_MOST),
        contract=offer.contract,
        files=offer.files,
        sources=offer.sources,
        run_id=state.run_id,
        confirmation_id=asked.id,
        rule=asked.rule,
        by=by,
        key=key,
        rights=rights,
        created_at=now,
        expires_at=now + min(remember.ttl or DEFAULT_TTL, longest),
    )
    if not grant_covers(grant, tool, policy_views(tool, asked.arguments)):
        raise RequestError(f"{asked.id}: the conditions to remember do not cover the call itself: change `when`")
    return grant


def _conditions(asked: Confirmation, offer: RememberOffer, remember: Remember, tool: Tool) -> dict[str, Any]:
    """Return the conditions of a grant: those of the person, or the suggested ones; raises RequestError."""
    if remember.width != "arguments":
        if remember.when is not None:
            raise RequestError(f"{asked.id}: `when` belongs to the width `arguments`, not {remember.width!r}")
        return {}
    suggested = (one.when for one in offer.widths if one.width == "arguments")
    when = next(suggested, None) if remember.when is None else remember.when
    if when is None:
        raise RequestError(f"{asked.id} cannot be remembered by its arguments: use another width, or write `when`")
    if not when:
        raise RequestError(f"{asked.id}: `when` is empty: name an argument, or use the width `tool`")
    if fault := fault_in(when, tool):
        raise RequestError(f"{asked.id}: {fault}")
    return dict(when)


def _offers(settings: Settings, scope: GrantScope, root: RunState) -> bool:
    """Return whether approvals can be remembered in a scope of a run."""
    if scope not in settings.grants.offer:
        return False
    if scope == "conversation":
        return root.conversation_id is not None
    # Without a name, everybody who uses the server's keys would be one user.
    return scope == "run" or root.user is not None or not settings.server.api_keys


# --- calls that a grant covers


_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
"""A number in a text whose value everybody reads in the same way."""
_ID_PREFIX = re.compile(r"[A-Za-z][A-Za-z_.]*[-_/:]")
_MAX_TEXT_CHARS = 200


def grant_covers(
    grant: Grant, tool: Tool, views: Sequence[Mapping[str, Any]], base: BaseFolder = WORKING_FOLDER
) -> bool:
    """Return whether a grant covers a call by its arguments, in the views of `policy_views`: as written, as converted.

    Paths in arguments are relative to `base`.
    """
    if grant.tool != tool.name:
        return False
    if grant.width == "call":
        return grant.digest == digest_of(tool, views[0])
    if grant.width == "tool":
        return True
    if not chosen_names(tool, views[0]) <= {*grant.names, *grant.when}:
        return False
    return meets(grant.when, tool, views, base)


def meets(
    when: Mapping[str, Sequence[GrantCondition]],
    tool: Tool,
    views: Sequence[Mapping[str, Any]],
    base: BaseFolder = WORKING_FOLDER,
) -> bool:
    """Return whether every value of every named argument meets all of its conditions, and each argument has a value."""
    for name, conditions in when.items():
        values = [value for view in views for value in values_at(view, name)]
        match = matcher_for(tool, name, base)
        if not values or not all(_surely(one, value, match) for value in values for one in conditions):
            return False
    return True


def digest_of(tool: Tool, view: Mapping[str, Any]) -> str:
    """Return the digest of a call with its default values; `80.0` and `80` are the same."""
    return call_digest(tool.name, _plain(view))


def chosen_names(tool: Tool, view: Mapping[str, Any]) -> set[str]:
    """Return the dotted names of the arguments of a call that differ from the tool's defaults."""
    defaults = policy_views(tool, {})[0]
    return {*argument_names({key: item for key, item in view.items() if key not in defaults or item != defaults[key]})}


def argument_names(value: Any, name: str = "") -> Iterator[str]:
    """Yield the dotted names of all values in arguments; lists are searched item by item."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from argument_names(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)) and value:
        for item in value:
            yield from argument_names(item, name)
    elif name:
        yield name


def widths_for(tool: Tool, view: Mapping[str, Any], base: BaseFolder = WORKING_FOLDER) -> tuple[OfferedWidth, ...]:
    """Return the widths in which the approval of a call can be remembered, from the narrowest to the widest.

    `view` has the call's arguments with defaults; paths in them are relative to `base`.
    """
    when: dict[str, tuple[GrantCondition, ...]] = {}
    order = [*tool.definition.parameters.get("properties", ()), *view]
    for name in dict.fromkeys(argument_names({key: view[key] for key in order if key in view})):
        when[name] = _value_conditions(name, [*values_at(view, name)], tool)
    widths = [OfferedWidth(width="call")]
    is_short = len(when) <= MAX_CONDITIONS and all(len(str(one[0])) <= MAX_CONDITION_CHARS for one in when.values())
    if when and is_short and meets(when, tool, [view], base):
        widths.append(OfferedWidth(width="arguments", when=when))
    return (*widths, OfferedWidth(width="tool"))


def fault_in(when: Mapping[str, Sequence[GrantCondition]], tool: Tool) -> str | None:
    """Return why a condition of a grant cannot be what its writer means; None if it can."""
    for name, conditions in when.items():
        for condition in conditions:
            if not (isinstance(condition, str) and condition.startswith(">= ")) and (
                fault := condition_fault(tool, name, condition)
            ):
                return fault
    return None


def _surely(condition: GrantCondition, value: Any, match: Matcher) -> bool:
    if isinstance(value, (Mapping, list, tuple)) or value is NOT_AN_OBJECT:
        return False
    if not isinstance(condition, str):
        return yaml_text(value) == yaml_text(condition)
    sign = next((sign for sign in COMPARISONS if condition.startswith(sign)), None)
    if sign is not None:
        number, bound = _exact(value), _bound(condition.removeprefix(sign))
        return number is not None and bound is not None and bool(COMPARISONS[sign](number, bound))
    if condition.startswith("!="):
        return match(yaml_text(value), condition.removeprefix("!=").strip()) is False
    return match(yaml_text(value), condition) is True


def _exact(value: Any) -> Decimal | None:
    """Return a number without rounding, also one in a text; None for anything else."""
    if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, (int, float)):
        return Decimal(value)
    if isinstance(value, str) and len(value) <= _MAX_TEXT_CHARS and _NUMBER.fullmatch(value):
        return Decimal(value)
    return None


def _bound(text: str) -> Decimal | None:
    """Return the number of a comparison; that of `20.1` is the number that an argument 20.1 has."""
    try:
        bound = Decimal(text.strip())
        return Decimal(float(text)) if bound != bound.to_integral_value() else bound
    except (InvalidOperation, ValueError, OverflowError):  # not a number, or infinite
        return None


def _plain(value: Any) -> Any:
    """Return arguments with whole floats as integers."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _value_conditions(name: str, values: Sequence[Any], tool: Tool) -> tuple[GrantCondition, ...]:
    """Suggest conditions that the values of an argument meet."""
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if numbers and len(numbers) == len(values):
        least, most = min(numbers), max(numbers)
        return (
            (">= 0", f"<= {yaml_text(most)}")
            if least >= 0
            else (f">= {yaml_text(least)}", f"<= {yaml_text(max(most, 0))}")
        )
    texts = {_pattern(name, value, tool) for value in values}
    return tuple(texts) if len(texts) == 1 else ("*",)


def _pattern(name: str, value: Any, tool: Tool) -> GrantCondition:
    """Suggest a pattern: the folder of a path or URL, the prefix of an id, any free text, else the value itself."""
    if not isinstance(value, str):
        return bool(value) if isinstance(value, bool) else yaml_text(value)
    if location_kind(tool, name) is not None and "/" in (value.partition("://")[2] or value):
        return f"{_literal(value.rpartition('/')[0])}/*"
    if (prefix := _ID_PREFIX.match(value)) and any(char.isdigit() for char in value[prefix.end() :]):
        return f"{_literal(prefix[0])}*"
    return "*" if any(char.isspace() for char in value) else _literal(value)


def _literal(text: str) -> str:
    """Return the pattern that exactly this text matches."""
    escaped = re.sub(r"([*?\[])", r"[\1]", text)
    is_sign = escaped.startswith(("!=", *COMPARISONS))
    return f"[{escaped[0]}]{escaped[1:]}" if is_sign and escaped[0] != "!" else escaped
