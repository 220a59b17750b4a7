"""SQL for triggers: what each has started, up to when, and whether it is paused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from framework.store.schema import insert_into, runs, triggers
from framework.types.errors import IdempotencyConflict, TriggerBusy, TriggerPaused
from framework.types.state import TriggerUse
from framework.types.text import storable

_MAX_NOTE_CHARS = 1000


@dataclass(frozen=True, slots=True)
class TriggerState:
    """What a store knows of a trigger."""

    name: str
    schedule: str
    """The schedule that `handled_until` belongs to; empty once the trigger was removed."""
    handled_until: float
    """Times of the schedule up to this one start no run any more."""
    paused_at: float | None = None
    paused_by: str | None = None
    last_run: str | None = None
    """Id of the last run that it started."""
    last_at: float | None = None
    """When it last started a run, or should have."""
    note: str | None = None
    """Why it did not start a run then."""


_COLUMNS = tuple(triggers.c[name] for name in TriggerState.__dataclass_fields__)


def load_triggers(connection: sa.Connection) -> Mapping[str, TriggerState]:
    """Return the state of all triggers, by name."""
    rows = connection.execute(sa.select(*_COLUMNS).order_by(triggers.c.name))
    return {row.name: TriggerState(*row) for row in rows}


def register(connection: sa.Connection, name: str, schedule: str, now: float) -> TriggerState:
    """Add a trigger, or note its new schedule: times before `now` are not those of it. Return its state."""
    insert = insert_into(triggers, connection.dialect.name).values(name=name, schedule=schedule, handled_until=now)
    handled = sa.case((triggers.c.handled_until > now, triggers.c.handled_until), else_=now)
    upsert = insert.on_conflict_do_update(
        index_elements=["name"],
        set_={"schedule": schedule, "handled_until": handled},
        where=triggers.c.schedule != schedule,
    )
    connection.execute(upsert)
    return TriggerState(*connection.execute(sa.select(*_COLUMNS).where(triggers.c.name == name)).one())


def forget_schedule(connection: sa.Connection, name: str) -> None:
    """Note that a trigger was removed. It stays paused, in case that it is added again."""
    connection.execute(sa.update(triggers).where(triggers.c.name == name).values(schedule=""))


def pause(connection: sa.Connection, name: str, by: str | None, now: float, *, is_paused: bool) -> bool:
    """Pause or resume a trigger; return whether that changed anything. Times of a pause start no run afterwards."""
    insert = insert_into(triggers, connection.dialect.name).values(name=name, schedule="", handled_until=now)
    connection.execute(insert.on_conflict_do_nothing(index_elements=["name"]))
    update = sa.update(triggers).where(triggers.c.name == name)
    if is_paused:
        values = {"paused_at": now, "paused_by": by}
        return connection.execute(update.where(triggers.c.paused_at.is_(None)).values(values)).rowcount > 0
    resumed = update.where(triggers.c.paused_at.is_not(None))
    return connection.execute(resumed.values(paused_at=None, paused_by=None, handled_until=now)).rowcount > 0


def note_use(connection: sa.Connection, use: TriggerUse, run_id: str, now: float) -> None:
    """Note that a trigger starts a run.

    Raises:
        IdempotencyConflict: the time of its schedule has been handled.
        TriggerPaused: it is paused.
        TriggerBusy: its last run has one of the statuses with which it starts no other.
    """
    insert = insert_into(triggers, connection.dialect.name).values(name=use.name, schedule="", handled_until=0.0)
    connection.execute(insert.on_conflict_do_nothing(index_elements=["name"]))
    row = connection.execute(sa.select(*_COLUMNS).where(triggers.c.name == use.name).with_for_update()).one()
    state = TriggerState(*row)
    if state.paused_at is not None and not use.by_hand:
        raise TriggerPaused(f"trigger {use.name} is paused: `agentsd triggers resume {use.name}`")
    if use.tick is not None and use.tick <= state.handled_until:
        raise IdempotencyConflict(f"trigger {use.name}: its run for this time was started before, or skipped")
    if state.last_run is not None and (status := _status(connection, state.last_run)) in use.not_while:
        raise TriggerBusy(f"trigger {use.name}: its run {state.last_run} has not ended ({status})")
    values = {"last_run": run_id, "last_at": now, "note": None}
    if use.tick is not None:
        values["handled_until"] = use.tick
    connection.execute(sa.update(triggers).where(triggers.c.name == use.name).values(values))


def skip(connection: sa.Connection, name: str, tick: float | None, note: str, now: float) -> None:
    """Note why a trigger starts no run now or, with a time of its schedule, for times up to that one."""
    update = sa.update(triggers).where(triggers.c.name == name)
    values: dict[str, object] = {"last_at": now, "note": storable(note[:_MAX_NOTE_CHARS])}
    if tick is not None:
        update = update.where(triggers.c.handled_until < tick)
        values["handled_until"] = tick
    connection.execute(update.values(values))


def _status(connection: sa.Connection, run_id: str) -> str | None:
    return connection.execute(sa.select(runs.c.status).where(runs.c.id == run_id)).scalar_one_or_none()
