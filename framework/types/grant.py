"""Grants: approvals that are remembered, so that later calls of the same kind are not asked about again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema

from framework.types.budget import AtMost
from framework.types.frozen import Duration, Frozen
from framework.types.spec import Risk, ToolPattern

Width = Literal["call", "arguments", "tool"]
"""What a grant covers: exactly the approved call, calls whose arguments meet conditions, or every call of the tool."""
GrantScope = Literal["run", "conversation", "user"]
"""Where a grant applies: in the run, in its conversation, or in all runs of its user."""
GrantState = Literal["active", "expired", "revoked", "void"]
GRANT_SCOPES: tuple[GrantScope, ...] = ("run", "conversation", "user")
DEFAULT_TTL = 7 * 86400.0
"""How long a grant lasts if the approval does not say, in seconds; never longer than `grants.max_ttl`."""
DEFAULT_AT_MOST = "10/day"
"""How often a grant that covers more than one call can be used if the approval does not say."""
MAX_CONDITIONS = 50
MAX_CONDITION_CHARS = 2000


GrantCondition = str | int | float | bool
_Condition = Annotated[str, StringConstraints(max_length=MAX_CONDITION_CHARS)] | int | float | bool


def _listed(value: Any) -> Any:
    return value if isinstance(value, (list, tuple)) else [value]


_ITEM = {"anyOf": [{"type": "string", "maxLength": MAX_CONDITION_CHARS}, {"type": "number"}, {"type": "boolean"}]}
GrantConditions = Annotated[
    tuple[_Condition, ...],
    BeforeValidator(_listed),
    Field(min_length=1, max_length=4),
    # One schema for what is read and what is written, so that OpenAPI has one of each model that contains it.
    WithJsonSchema({"anyOf": [*_ITEM["anyOf"], {"type": "array", "items": _ITEM, "minItems": 1, "maxItems": 4}]}),
]
"""One condition on an argument as in a rule's `when`, or several that must all be met, such as `[">= 0", "<= 20"]`."""
When = Annotated[dict[str, GrantConditions], Field(max_length=MAX_CONDITIONS)]


class Remember(Frozen):
    """How long, where and for which calls an approval is remembered."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    width: Width = "call"
    """`call`: exactly this call. `arguments`: calls that meet the conditions on arguments. `tool`: all calls."""
    scope: Annotated[GrantScope, Field(alias="for")] = "run"
    """`run`, `conversation` or `user`."""
    ttl: Duration | None = None
    """How long, such as `12h` or `7d`. Default: 7 days; never longer than `grants.max_ttl`."""
    when: When | None = None
    """With `arguments`: conditions instead of the suggested ones, by argument, such as `{amount: "<= 20"}`."""
    at_most: AtMost | None = None
    """Number of uses per period, such as `10/day`. Default: `10/day`, unless it covers exactly one call."""


class OfferedWidth(Frozen):
    """A width in which an approval can be remembered."""

    width: Width
    when: When = {}
    """Suggested conditions, which the person may edit."""


class RememberOffer(Frozen):
    """How the approval of a call can be remembered, and what the grant is bound to."""

    widths: tuple[OfferedWidth, ...]
    """Which later calls it may cover."""
    scopes: tuple[GrantScope, ...]
    """Where it may apply: in the run, in the conversation, or for the user."""
    max_ttl: float
    """Longest time to live, in seconds."""
    agent: str
    """The agent that calls the tool; a sub-agent after its callers, as in `desk/billing`."""
    contract: str
    """Digest of the tool's definition."""
    files: dict[str, str]
    """Digest of the agent and of its callers, with all that their files refer to, by name of the agent."""
    sources: dict[str, str] = {}
    """Digest of the text of their files."""
    names: tuple[str, ...]
    """Dotted names of the arguments of the call that differ from the tool's defaults."""
    digest: str
    """Digest of the call with its default values."""


class GrantFacts(Frozen):
    """What a person sees of an approval that is remembered."""

    id: str
    agent: str
    """The agent that may call the tool; a sub-agent after its callers, as in `desk/billing`."""
    tool: str
    width: Width
    when: When = {}
    """Conditions on the arguments of a call that must all be met."""
    arguments: dict[str, Any] = {}
    """Arguments of the call that was approved."""
    scope: GrantScope
    scope_id: str = ""
    """Id of the run or of the conversation; empty for a user."""
    tenant: str | None = None
    user: str | None = None
    at_most: str | None = None
    """Number of uses per period, such as `10/day`."""
    rule: str
    """The rule that asked, with its `file:line`."""
    run_id: str
    """The run in which the call was approved."""
    by: str | None
    """Who approved it."""
    revoked_by: str | None = None
    uses: int = 0


class Grant(GrantFacts):
    """An approval that is remembered, with what it is bound to."""

    names: tuple[str, ...] = ()
    """Dotted names of arguments that no condition names and that may have any value: those of the approved call. All
    others must have the tool's default."""
    digest: str = ""
    """Digest of the only call that is covered, if the width is `call`."""
    contract: str
    files: dict[str, str]
    sources: dict[str, str] = {}
    confirmation_id: str
    key: str = ""
    """Name of the API key of who approved it; empty if there was none."""
    rights: str = ""
    """Digest of what that key could do then."""
    created_at: float
    """Unix time, like the other times."""
    expires_at: float
    revoked_at: float | None = None
    last_used_at: float | None = None
    void: str | None = None
    """What has changed since, so that it is void for good, such as `the tool has changed since`."""

    def is_active(self, now: float) -> bool:
        """Return whether it has neither expired nor been revoked."""
        return self.revoked_at is None and now < self.expires_at

    def covers_text(self) -> str:
        """Return what it covers, such as `orders.refund when amount >= 0 and amount <= 20`."""
        return covers_text(self.tool, self.width, self.when)

    def origin(self) -> str:
        """Return where it comes from: who approved which call, and when."""
        when = datetime.fromtimestamp(self.created_at, UTC)
        return f"approved by {self.by or 'nobody named'} on {when:%Y-%m-%d %H:%M} UTC in run {self.run_id}"

    def scope_text(self) -> str:
        """Return where it applies, such as `conversation c1`."""
        return f"{self.scope} {self.scope_id or self.user or ''}".strip()


def covers_text(tool: str, width: Width, when: Mapping[str, tuple[GrantCondition, ...]]) -> str:
    """Return what a grant covers in words."""
    if width == "call":
        return f"exactly this call of {tool}"
    if not when:
        return f"every call of {tool}"
    texts = {
        name: [one if isinstance(one, str) else json.dumps(one) for one in listed] for name, listed in when.items()
    }
    conditions = (f"{name} {text}" for name, listed in texts.items() for text in listed)
    return f"{tool} when {' and '.join(conditions)}"


class NeverGranted(Frozen):
    """Calls that a person is always asked about, if a rule asks."""

    tool: ToolPattern = "*"
    """Name of a tool, or a glob."""
    when: dict[str, str | int | float | bool] = {}
    """GrantConditions on arguments, as in rules."""
    risk: Risk | None = None
    """Only tools of this risk or higher."""


class GrantSettings(Frozen):
    """How approvals can be remembered. Calls of tools with the risk `critical` are always asked about."""

    offer: tuple[GrantScope, ...] = GRANT_SCOPES
    """Where a remembered approval may apply: `run`, `conversation`, `user`; `[]`: approvals are not remembered."""
    max_ttl: Duration = Field(default=30 * 86400.0, validate_default=False)
    """How long at most."""
    never: tuple[NeverGranted, ...] = ()
    """Calls that a person is always asked about, such as `{tool: "*", when: {amount: "> 500"}}` or `{risk: high}`."""

    def narrowed_by(self, other: GrantSettings) -> GrantSettings:
        """Return settings by which an approval can be remembered only if both allow it."""
        return GrantSettings(
            offer=tuple(scope for scope in self.offer if scope in other.offer),
            max_ttl=min(self.max_ttl, other.max_ttl),
            never=(*self.never, *(one for one in other.never if one not in self.never)),
        )


class GrantUsage(Frozen):
    """What a grant would have matched in a period."""

    days: int
    """Length of the period."""
    calls: int
    """Number of calls of the tool that the agent made for the owner of the run."""
    matched: int
    """Number of them that the grant would have covered."""
    rejected: int = 0
    """Number of those that a person rejected."""
    is_complete: bool = True
    """Whether all runs of the period were read; otherwise the newest 300."""

    def text(self) -> str:
        """Return it in words, such as `31 of 42 calls in 30 days, 1 of them rejected`."""
        newest = "" if self.is_complete else "the newest "
        rejected = f", {self.rejected} of them rejected" if self.rejected else ""
        return f"{self.matched} of {newest}{self.calls} calls in {self.days} days{rejected}"
