"""Starts the runs of triggers: at the times of cron expressions, for deliveries of webhooks, and by hand.

All processes of a store do the same. Which of them starts a run is decided where the run is saved: a time, or an id of
a delivery, is noted in the same transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4
from zoneinfo import ZoneInfo

from framework.config.triggers import TRIGGER, LoadedTrigger, Missed, Overlap
from framework.engine.runtime.runtime import Runtime
from framework.store.types import OPEN_STATUSES
from framework.types.errors import (
    AgentsdError,
    IdempotencyConflict,
    QueueFull,
    RequestError,
    StoreError,
    TriggerBusy,
    TriggerNotFound,
    TriggerPaused,
)
from framework.types.frozen import Frozen
from framework.types.state import IdempotencyKey, TriggerUse
from framework.types.text import did_you_mean

if TYPE_CHECKING:
    from framework.store.run_links import TriggerState

log = logging.getLogger(__name__)

LATE_SECONDS = 60.0
"""A time that was due this long ago was missed."""
DEDUPE_SECONDS = 7 * 24 * 3600.0
"""How long the repetition of a delivery starts no run."""


class TriggerReport(Frozen):
    """A trigger of the project, and what it does next."""

    name: str
    description: str
    path: str
    """Its file."""
    stale: bool
    """Whether the file is invalid, so that its last good version applies."""
    agent: str
    user: str
    """Owner of its runs."""
    tenant: str | None
    kind: Literal["cron", "webhook"]
    when: str
    """When it starts runs, in words."""
    cron: str | None
    timezone: str | None
    missed: Missed | None
    overlap: Overlap
    next_at: datetime | None
    """Next time of its cron expression; null for a webhook, and while it is paused."""
    last_at: datetime | None
    """When it last started a run, or did not because of `note`."""
    last_run: str | None
    """Id of the last run that it started."""
    note: str | None
    """Why it started no run at `last_at`."""
    paused_at: datetime | None
    paused_by: str | None


@dataclass(slots=True)
class _Known:
    """What this process knows of the schedule of a trigger."""

    schedule: str
    next_at: float | None
    refused: str | None = None
    """Why its run cannot start now; it is tried again each second."""


class Triggers:
    """The triggers of a runtime's project."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._store = runtime, runtime.store
        self._known: dict[str, _Known] = {}

    def find(self, name: str) -> LoadedTrigger:
        """Return a trigger of the live generation; raises TriggerNotFound."""
        triggers = self._runtime.catalog.current.triggers
        if name in triggers:
            return triggers[name]
        advice = f"; triggers: {', '.join(sorted(triggers))}" if triggers else "; triggers are files in triggers.d/"
        raise TriggerNotFound(f"there is no trigger {name!r}{did_you_mean(name, sorted(triggers)) or advice}")

    async def tick(self) -> None:
        """Start the runs that are due. Call it every second; raises StoreError."""
        triggers = self._runtime.catalog.current.triggers
        for name in [name for name in self._known if name not in triggers]:
            await self._store.triggers.forget_schedule(name)
            del self._known[name]
        for trigger in triggers.values():
            await self._tick(trigger, self._store.now())

    async def _tick(self, trigger: LoadedTrigger, now: float) -> None:
        known = self._known.get(trigger.name)
        if known is None or known.schedule != trigger.schedule:
            registered = await self._store.triggers.register(trigger.name, trigger.schedule)
            known = self._known[trigger.name] = _Known(trigger.schedule, trigger.next_time(registered.handled_until))
        if known.next_at is None or now < known.next_at:
            return
        state = (await self._store.triggers.all()).get(trigger.name)
        due = trigger.last_time(now)
        if state and due is not None and due > state.handled_until and state.paused_at is None:
            try:
                await self._start_due(trigger, due, now, known.refused)
            except QueueFull as error:
                if known.refused is None:
                    log.warning("trigger %s: %s; its run starts once there is a place", trigger.name, error.message)
                known.refused = error.message
                return
        known.refused = None
        known.next_at = trigger.next_time(max(now, state.handled_until if state else now))

    async def _start_due(self, trigger: LoadedTrigger, due: float, now: float, refused: str | None) -> None:
        """Start the run for a time, unless it was missed, because of `refused`, or overlaps the last one."""
        zone = ZoneInfo(trigger.spec.timezone)
        words = datetime.fromtimestamp(due, zone).isoformat(timespec="minutes")
        if now - due > LATE_SECONDS and trigger.spec.missed == "skip":
            await self._skip(trigger, due, f"missed {words}: {refused or 'no process was alive for a minute'}")
            return
        not_while = {"skip": OPEN_STATUSES, "queue": ("queued",), "allow": ()}[trigger.spec.overlapping]
        use = TriggerUse(trigger.name, due, tuple(not_while))
        try:
            message = trigger.message({"time": datetime.fromtimestamp(due, zone)})
            run_id = await self._submit(trigger, message, words, use)
        except (IdempotencyConflict, TriggerPaused):  # another process was faster
            return
        except (StoreError, QueueFull):  # again in a second
            raise
        except AgentsdError as error:
            await self._skip(trigger, due, f"skipped {words}: {error.message}")
        else:
            log.info("trigger %s: run %s for %s", trigger.name, run_id, words)

    async def _skip(self, trigger: LoadedTrigger, tick: float | None, note: str) -> None:
        log.warning("trigger %s: %s", trigger.name, note)
        await self._store.triggers.skip(trigger.name, tick, note)

    async def deliver(self, trigger: LoadedTrigger, variables: Mapping[str, Any], delivery: str) -> str:
        """Start the run of a delivery, and return its id. A repetition within seven days returns the same id.

        Args:
            trigger: the webhook.
            variables: `body`, `header`, `digest` and `time` of the request.
            delivery: the id of the delivery.

        Raises:
            RequestError: the message cannot be made, or the run cannot start (TriggerBusy, TriggerPaused, QueueFull).
            StoreError: the run could not be saved.
        """
        message = trigger.message(variables)
        use = TriggerUse(trigger.name, None, OPEN_STATUSES if trigger.spec.overlapping == "skip" else ())
        try:
            return await self._submit(trigger, message, delivery, use)
        except (TriggerBusy, RequestError) as error:
            if not isinstance(error, TriggerPaused):
                await self._skip(trigger, None, f"delivery refused: {error.message}")
            raise

    async def run(self, trigger: LoadedTrigger, body: Any = None) -> str:
        """Start a run now, also if the trigger is paused, and return its id.

        Args:
            trigger: the trigger.
            body: the body of a request, for a webhook.

        Raises:
            RequestError: the message cannot be made, or the run cannot start.
        """
        now = self._store.now()
        time = datetime.fromtimestamp(now, ZoneInfo(trigger.spec.timezone))
        variables: dict[str, Any] = {"time": time}
        if trigger.spec.webhook is not None:
            if body is None:
                raise RequestError(f"trigger {trigger.name} is a webhook: a run by hand needs the body of a request")
            variables |= {"body": body, "header": {}, "digest": ""}
        message = trigger.message(variables)
        return await self._submit(trigger, message, None, TriggerUse(trigger.name, by_hand=True))

    async def _submit(self, trigger: LoadedTrigger, message: str, key: str | None, use: TriggerUse) -> str:
        scope = f"{TRIGGER}:{trigger.name}"
        idempotency = IdempotencyKey(scope, key or f"by hand {uuid4().hex}", "", DEDUPE_SECONDS, use)
        submitted = await self._runtime.submit(
            message,
            agent=trigger.spec.agent,
            inputs=trigger.spec.inputs or None,
            user=trigger.user,
            tenant=trigger.spec.tenant,
            metadata={TRIGGER: trigger.name, **({"delivery": key} if key else {})},
            idempotency=idempotency,
        )
        return submitted.run_id

    async def pause(self, trigger: LoadedTrigger, by: str | None = None) -> None:
        """Pause a trigger in all processes of the store: it starts no run until `resume`."""
        await self._store.triggers.pause(trigger.name, is_paused=True, by=by)

    async def resume(self, trigger: LoadedTrigger) -> None:
        """End the pause of a trigger. Times of its schedule during the pause start no run."""
        await self._store.triggers.pause(trigger.name, is_paused=False)

    async def reports(self) -> tuple[TriggerReport, ...]:
        """Return all triggers, sorted by name."""
        triggers = self._runtime.catalog.current.triggers
        return trigger_reports(triggers, await self._store.triggers.all() if triggers else {}, self._store.now())


def trigger_reports(
    triggers: Mapping[str, LoadedTrigger], states: Mapping[str, TriggerState], now: float
) -> tuple[TriggerReport, ...]:
    """Return reports of triggers, sorted by name.

    Args:
        triggers: the triggers, by name.
        states: what the store knows of them, by name.
        now: the time of the store.
    """
    return tuple(_report(trigger, states.get(name), now) for name, trigger in sorted(triggers.items()))


def _report(trigger: LoadedTrigger, state: TriggerState | None, now: float) -> TriggerReport:
    spec, paused_at = trigger.spec, state.paused_at if state else None
    after = max(now, state.handled_until) if state else now
    return TriggerReport(
        name=trigger.name,
        description=spec.description,
        path=trigger.path,
        stale=trigger.stale,
        agent=spec.agent,
        user=trigger.user,
        tenant=spec.tenant,
        kind="webhook" if spec.webhook else "cron",
        when=trigger.words,
        cron=spec.cron,
        timezone=spec.timezone if spec.cron else None,
        missed=spec.missed if spec.cron else None,
        overlap=spec.overlapping,
        next_at=None if paused_at is not None else _date(trigger.next_time(after)),
        last_at=_date(state.last_at if state else None),
        last_run=state.last_run if state else None,
        note=state.note if state else None,
        paused_at=_date(paused_at),
        paused_by=state.paused_by if state else None,
    )


def _date(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
