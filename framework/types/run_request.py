"""A request for a run as the caller sent it, stored until a process executes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any
from uuid import uuid4

from pydantic import Field

from framework.types.frozen import Frozen
from framework.types.messages import Message
from framework.types.report import Status
from framework.types.state import RunState
from framework.types.trace import TraceContext

MAX_PRIORITY = 100
"""Highest priority of a run; the lowest is its negative."""
QUEUE_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
"""Pattern of the names of queues."""
Priority = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]


class RunRequest(Frozen):
    """A run to execute: its message and options as they came. No agent is chosen yet, and no model called."""

    run_id: str = Field(default_factory=lambda: f"run_{uuid4().hex}")
    message: Message
    """The user's message. The files in it are in the store."""
    options: dict[str, Any] = {}
    """The other options of the run as JSON data, by name."""
    conversation_id: str | None = None
    user: str | None = None
    tenant: str | None = None
    queue: bool = False
    """Whether the run may wait for the open run of its conversation, and for those that wait already."""
    priority: Priority = 0
    """Of the runs that can start, those with a higher priority start first."""
    queue_name: Annotated[str, Field(pattern=f"^{QUEUE_NAME}$")] | None = None
    """Queue whose workers execute the run. Default: workers of its agent."""
    trace_context: TraceContext | None = None
    """Trace that the request belongs to, if any."""
    attempts: int = 0
    """Number of processes that claimed the run and ended before it started. Set by `Store.claim`."""

    def queued_state(self) -> RunState:
        """Return the state of the run while it waits."""
        return RunState(
            run_id=self.run_id,
            agent=self.options.get("agent") or "",
            conversation_id=self.conversation_id,
            user=self.user,
            tenant=self.tenant,
            metadata=self.options.get("metadata") or {},
            status="queued",
            messages=[self.message],
        )


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """Where a request waits until its run starts."""

    wait: bool = False
    """In a busy conversation, wait for the open run and for those that wait already."""
    priority: int = 0
    queue_name: str | None = None


FIRST_COME = QueuePlace()


@dataclass(frozen=True, slots=True)
class TriggerUse:
    """A run that a trigger starts. It is saved together with what the trigger has done."""

    name: str
    tick: float | None = None
    """The time for which a cron trigger starts it. A time up to the last one that was handled starts no run."""
    not_while: tuple[Status, ...] = ()
    """Statuses of the trigger's last run with which it is refused."""
    by_hand: bool = False
    """Whether a person starts it, also while the trigger is paused."""


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A caller's key for a request: a repetition of the request returns the same run for 24 hours."""

    scope: str
    """Who sent the key, such as a tenant or the name of an API key. Equal keys in two scopes are different keys."""
    key: str
    digest: str
    """Digest of the request. Another request with the same key is rejected."""
    seconds: float = 24 * 3600.0
    """How long the key is valid after its request was saved."""
    trigger: TriggerUse | None = None
    """The trigger that sends the request."""
