"""What outlives runs: triggers that start them, remembered approvals, receivers of pushes, results of test cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

import sqlalchemy as sa

from framework.store.database import Database
from framework.store.schema import call_counts, case_results, grants, insert_into, is_owned, pushes, runs, triggers
from framework.store.types import CaseResult, GrantQuery
from framework.types.budget import CallRate
from framework.types.errors import IdempotencyConflict, RequestError, TriggerBusy, TriggerPaused
from framework.types.events import dump_json
from framework.types.grant import Grant
from framework.types.state import TriggerUse
from framework.types.text import storable, to_sql_text

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


class StoredTriggers:
    """The triggers of a store, which all of its processes share."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> Mapping[str, TriggerState]:
        """Return what each trigger has started, by name, also of triggers that were removed."""
        select = sa.select(*_COLUMNS).order_by(triggers.c.name)
        rows = await self._database.read(lambda connection: connection.execute(select).all())
        return {row.name: TriggerState(*row) for row in rows}

    async def register(self, name: str, schedule: str) -> TriggerState:
        """Add a trigger, or note its new schedule, and return its state. Times before now are not those of it."""
        now = self._database.clock()
        handled = sa.case((triggers.c.handled_until > now, triggers.c.handled_until), else_=now)

        def work(connection: sa.Connection) -> TriggerState:
            insert = insert_into(triggers, connection.dialect.name)
            upsert = insert.values(name=name, schedule=schedule, handled_until=now).on_conflict_do_update(
                index_elements=["name"],
                set_={"schedule": schedule, "handled_until": handled},
                where=triggers.c.schedule != schedule,
            )
            connection.execute(upsert)
            return TriggerState(*connection.execute(sa.select(*_COLUMNS).where(triggers.c.name == name)).one())

        return await self._database.write(work)

    async def forget_schedule(self, name: str) -> None:
        """Note that a trigger was removed. It stays paused, in case that it is added again."""
        update = sa.update(triggers).where(triggers.c.name == name).values(schedule="")
        await self._database.write(lambda connection: connection.execute(update))

    async def skip(self, name: str, tick: float | None, note: str) -> None:
        """Note why a trigger starts no run now or, with `tick`, for the times of its schedule up to that one."""
        update = sa.update(triggers).where(triggers.c.name == name)
        values: dict[str, object] = {"last_at": self._database.clock(), "note": storable(note[:_MAX_NOTE_CHARS])}
        if tick is not None:
            update = update.where(triggers.c.handled_until < tick)
            values["handled_until"] = tick
        await self._database.write(lambda connection: connection.execute(update.values(values)))

    async def pause(self, name: str, *, is_paused: bool, by: str | None = None) -> bool:
        """Pause or resume a trigger; return whether that changed anything. Times of a pause start no run afterwards."""
        now = self._database.clock()
        update = sa.update(triggers).where(triggers.c.name == name)
        if is_paused:
            update = update.where(triggers.c.paused_at.is_(None)).values(paused_at=now, paused_by=by)
        else:
            resumed = {"paused_at": None, "paused_by": None, "handled_until": now}
            update = update.where(triggers.c.paused_at.is_not(None)).values(resumed)

        def work(connection: sa.Connection) -> bool:
            _insert_trigger(connection, name, now)
            return connection.execute(update).rowcount > 0

        return await self._database.write(work, is_request=True)


def note_use(connection: sa.Connection, use: TriggerUse, run_id: str, now: float) -> None:
    """Note that a trigger starts a run.

    Raises:
        IdempotencyConflict: the time of its schedule has been handled.
        TriggerPaused: it is paused.
        TriggerBusy: its last run has one of the statuses with which it starts no other.
    """
    _insert_trigger(connection, use.name, 0.0)
    row = connection.execute(sa.select(*_COLUMNS).where(triggers.c.name == use.name).with_for_update()).one()
    state = TriggerState(*row)
    if state.paused_at is not None and not use.by_hand:
        raise TriggerPaused(f"trigger {use.name} is paused: `agentsd triggers resume {use.name}`")
    if use.tick is not None and use.tick <= state.handled_until:
        raise IdempotencyConflict(f"trigger {use.name}: its run for this time was started before, or skipped")
    if state.last_run is not None:
        last = sa.select(runs.c.status).where(runs.c.id == state.last_run)
        if (status := connection.execute(last).scalar_one_or_none()) in use.not_while:
            raise TriggerBusy(f"trigger {use.name}: its run {state.last_run} has not ended ({status})")
    values = {"last_run": run_id, "last_at": now, "note": None}
    if use.tick is not None:
        values["handled_until"] = use.tick
    connection.execute(sa.update(triggers).where(triggers.c.name == use.name).values(values))


def _insert_trigger(connection: sa.Connection, name: str, now: float) -> None:
    """Insert a trigger that no process has registered yet."""
    insert = insert_into(triggers, connection.dialect.name).values(name=name, schedule="", handled_until=now)
    connection.execute(insert.on_conflict_do_nothing(index_elements=["name"]))


MAX_PUSHES = 10
"""Number of receivers of one run."""
_CLAIM_SECONDS = 20.0
"""Time for one attempt, of at most 15 seconds. If the process ends meanwhile, another one repeats it."""


@dataclass(frozen=True, slots=True)
class DuePush:
    """A run that has paused or ended, and a receiver that this process is to notify."""

    run_id: str
    id: str
    body: str
    """Where and how to send it, as the caller of `save` wrote it."""
    version: int
    """Version of the run."""
    updated_at: float
    """When the run had this version."""
    attempts: int
    """Number of attempts to send this version, the present one included."""
    is_last: bool
    """Whether the run has ended."""


class StoredPushes:
    """The receivers of push notifications in a store. Each is notified at least once of a state that lasts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save(self, run_id: str, push_id: str, body: str) -> None:
        """Add a receiver of a run, or replace the one with this id; raises RequestError if there are too many."""
        row = {"body": storable(body), "delivered": 0, "attempts": 0, "due_at": 0.0}

        def work(connection: sa.Connection) -> None:
            key = storable(push_id)
            others = sa.select(sa.func.count()).where(pushes.c.run_id == run_id, pushes.c.id != key)
            if connection.execute(others).scalar_one() >= MAX_PUSHES:
                raise RequestError(f"the run has {MAX_PUSHES} receivers of push notifications: delete one of them")
            insert = insert_into(pushes, connection.dialect.name).values(run_id=run_id, id=key, **row)
            connection.execute(insert.on_conflict_do_update(index_elements=["run_id", "id"], set_=row))

        await self._database.write(work, is_request=True)

    async def list(self, run_id: str) -> Mapping[str, str]:
        """Return the bodies of a run's receivers, by id."""
        select = sa.select(pushes.c.id, pushes.c.body).where(pushes.c.run_id == run_id).order_by(pushes.c.id)
        rows = await self._database.read(lambda connection: connection.execute(select).all())
        return {row.id: row.body for row in rows}

    async def delete(self, run_id: str, push_id: str) -> None:
        """Delete a receiver. One that does not exist is no error."""
        delete = sa.delete(pushes).where(pushes.c.run_id == run_id, pushes.c.id == storable(push_id))
        await self._database.write(lambda connection: connection.execute(delete).rowcount, is_request=True)

    async def claim(self, limit: int) -> Sequence[DuePush]:
        """Return receivers to notify now, which no other process notifies meanwhile; first those that failed least."""
        now = self._database.clock()
        select = sa.select(pushes, runs.c.version, runs.c.updated_at, runs.c.status).join(
            runs, runs.c.id == pushes.c.run_id
        )
        is_due = (pushes.c.due_at <= now, runs.c.version > pushes.c.delivered)
        select = select.where(*is_due, runs.c.status.not_in(("queued", "running")))
        select = select.order_by(pushes.c.attempts, pushes.c.due_at, pushes.c.run_id).limit(limit)
        found = await self._database.read(lambda connection: connection.execute(select).all())
        if not found:
            return ()

        def work(connection: sa.Connection) -> Sequence[DuePush]:
            claimed = []
            for row in found:
                values = {"attempts": row.attempts + 1, "due_at": now + _CLAIM_SECONDS}
                is_same = (pushes.c.attempts == row.attempts, pushes.c.delivered == row.delivered)
                update = sa.update(pushes).where(pushes.c.run_id == row.run_id, pushes.c.id == row.id, *is_same)
                if connection.execute(update.values(values)).rowcount:
                    is_last = row.status != "paused"
                    claimed.append(
                        DuePush(row.run_id, row.id, row.body, row.version, row.updated_at, row.attempts + 1, is_last)
                    )
            return claimed

        return await self._database.write(work)

    async def settle(self, push: DuePush, retry_seconds: float | None) -> None:
        """Save the outcome of an attempt. `retry_seconds` is the time until the next one; None: there is none."""
        if retry_seconds is None:
            values = {"delivered": push.version, "attempts": 0, "due_at": None if push.is_last else 0.0}
        else:
            values = {"due_at": self._database.clock() + retry_seconds}
        is_same = (pushes.c.attempts == push.attempts, pushes.c.delivered < push.version)
        update = sa.update(pushes).where(pushes.c.run_id == push.run_id, pushes.c.id == push.id, *is_same)
        await self._database.write(lambda connection: connection.execute(update.values(values)).rowcount)


_KEPT_RESULT_SECONDS = 180 * 86400.0
"""How long the result of a test case is kept."""


def delete_old_case_results(connection: sa.Connection, now: float) -> None:
    """Delete results that are older than histories show."""
    connection.execute(sa.delete(case_results).where(case_results.c.at < now - _KEPT_RESULT_SECONDS))


def delete_case_results_of(connection: sa.Connection, run_ids: Sequence[str]) -> None:
    """Delete the results of stored runs: why one failed quotes it."""
    connection.execute(sa.delete(case_results).where(case_results.c.id.in_(run_ids)))


class StoredCaseResults:
    """The results of cases in a store, which all of its processes share."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, results: Sequence[CaseResult]) -> None:
        """Save results, as of now. That of a stored run replaces its earlier one."""
        now = self._database.clock()
        rows = [
            {
                "id": storable(one.run_id or uuid4().hex),
                "agent": one.agent,
                "at": now,
                "body": to_sql_text(dump_json(one, exclude={"at"})),
            }
            for one in results
        ]

        def insert(connection: sa.Connection) -> None:
            added = insert_into(case_results, connection.dialect.name)
            values = {name: added.excluded[name] for name in ("agent", "at", "body")}
            connection.execute(added.on_conflict_do_update(index_elements=["id"], set_=values), rows)

        if rows:
            await self._database.write(insert)

    async def latest(self, agent: str, limit: int = 1000) -> Sequence[CaseResult]:
        """Return the newest results of an agent's cases, the newest first."""
        columns = (case_results.c.body, case_results.c.at)
        select = sa.select(*columns).where(case_results.c.agent == agent)
        select = select.order_by(case_results.c.at.desc(), case_results.c.id).limit(limit)

        def select_results(connection: sa.Connection) -> list[CaseResult]:
            found = connection.execute(select)
            read = ((CaseResult.model_validate_json(body), datetime.fromtimestamp(at, UTC)) for body, at in found)
            return [result.model_copy(update={"at": at}) for result, at in read]

        return await self._database.read(select_results)


_STATE = ("revoked_at", "revoked_by", "uses", "last_used_at")
_KEPT_SECONDS = 30 * 86400.0
"""How long a grant is listed after it has expired."""


def insert_grants(connection: sa.Connection, new: Sequence[Grant]) -> None:
    """Insert grants. One whose id exists is left as it is, also if it was revoked."""
    for grant in new:
        row = {
            "id": grant.id,
            "tenant": to_sql_text(grant.tenant),
            "user_id": to_sql_text(grant.user),
            "agent": grant.agent,
            "tool": to_sql_text(grant.tool),
            "body": to_sql_text(grant.model_dump_json(exclude={*_STATE})),
            "created_at": grant.created_at,
            "expires_at": grant.expires_at,
        }
        insert = insert_into(grants, connection.dialect.name).values(row)
        connection.execute(insert.on_conflict_do_nothing(index_elements=["id"]))


def select_grants(connection: sa.Connection, query: GrantQuery) -> list[Grant]:
    """Return the grants that match, the newest first."""
    columns = (grants.c.body, *(grants.c[name] for name in _STATE))
    select = sa.select(*columns).order_by(grants.c.created_at.desc(), grants.c.id).limit(query.limit)
    equal = {"id": query.id, "tool": query.tool, "agent": query.agent}
    select = select.where(*(grants.c[name] == to_sql_text(value) for name, value in equal.items() if value is not None))
    select = select.where(*is_owned(query, grants))
    if query.among is not None:
        chain = sa.literal("/") + grants.c.agent + sa.literal("/")
        select = select.where(chain.contains(f"/{to_sql_text(query.among)}/", autoescape=True))
    if query.active_at is not None:
        select = select.where(grants.c.revoked_at.is_(None), grants.c.expires_at > query.active_at)
    found = []
    for body, *state in connection.execute(select):
        grant = Grant.model_validate_json(body)
        found.append(grant.model_copy(update=dict(zip(_STATE, state, strict=True))))
    return found


def count_calls(connection: sa.Connection, rates: Mapping[str, CallRate], now: float) -> str | None:
    """Count a call for each rate, all or none. Return the key of a rate that is used up; None if the call is counted.

    Keys are locked in their order, so that two transactions never wait for each other.
    """
    counted: list[tuple[str, str]] = []
    for key, rate in sorted(rates.items()):
        period, ends_at = rate.period(now)
        insert = insert_into(call_counts, connection.dialect.name).values(
            key=key, period=period, calls=1, ends_at=ends_at
        )
        counting = insert.on_conflict_do_update(
            index_elements=["key", "period"],
            set_={"calls": call_counts.c.calls + 1},
            where=call_counts.c.calls < rate.count,
        ).returning(call_counts.c.calls)
        if connection.execute(counting).one_or_none() is None:
            for one in counted:
                is_row = (call_counts.c.key == one[0], call_counts.c.period == one[1])
                connection.execute(sa.update(call_counts).where(*is_row).values(calls=call_counts.c.calls - 1))
            return key
        counted.append((key, period))
    return None


def delete_old_grants(connection: sa.Connection, now: float) -> None:
    """Delete grants that expired long ago, and counts of periods that have ended."""
    connection.execute(sa.delete(grants).where(grants.c.expires_at < now - _KEPT_SECONDS))
    connection.execute(sa.delete(call_counts).where(call_counts.c.ends_at < now))


class StoredGrants:
    """The grants of a store, which all of its processes share."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(self, query: GrantQuery) -> Sequence[Grant]:
        """Return the grants that match, the newest first."""
        return await self._database.read(lambda connection: select_grants(connection, query))

    async def revoke(self, grant_id: str, by: str | None) -> bool:
        """Revoke a grant at once, in all processes, unless it was revoked before. Return whether there is one."""
        values = {"revoked_at": self._database.clock(), "revoked_by": to_sql_text(by)}

        def revoke(connection: sa.Connection) -> bool:
            is_grant = grants.c.id == grant_id
            connection.execute(sa.update(grants).where(is_grant, grants.c.revoked_at.is_(None)).values(values))
            return connection.execute(sa.select(grants.c.id).where(is_grant)).one_or_none() is not None

        return await self._database.write(revoke, is_request=True)

    async def make_void(self, reasons: Mapping[str, str]) -> None:
        """Make grants void for good, in all processes, with what has changed since, by id."""

        def make_void(connection: sa.Connection) -> None:
            for grant_id, reason in reasons.items():
                for grant in select_grants(connection, GrantQuery(id=grant_id)):
                    body = grant.model_copy(update={"void": grant.void or reason}).model_dump_json(exclude={*_STATE})
                    connection.execute(sa.update(grants).where(grants.c.id == grant_id).values(body=to_sql_text(body)))

        if reasons:
            await self._database.write(make_void)

    async def use(self, grant: Grant) -> bool:
        """Count a use. Return False, and count nothing, if it is not active or `at_most` is used up."""
        rate = CallRate.parse(grant.at_most) if grant.at_most else None

        def use(connection: sa.Connection) -> bool:
            now, is_grant = self._database.clock(), grants.c.id == grant.id
            is_active = (is_grant, grants.c.revoked_at.is_(None), grants.c.expires_at > now)
            values = {"uses": grants.c.uses + 1, "last_used_at": now}
            # The update locks the grant, so that a revocation is either seen here or comes after this use.
            if connection.execute(sa.update(grants).where(*is_active).values(values)).rowcount != 1:
                return False
            if rate is None or not count_calls(connection, {f"grant {grant.id}": rate}, now):
                return True
            connection.execute(sa.update(grants).where(is_grant).values(uses=grants.c.uses - 1))
            return False

        return await self._database.write(use)

    async def count(self, rates: Mapping[str, CallRate]) -> str | None:
        """Count a call for each rate, all or none. Return the key of a rate that is used up, or None."""
        return await self._database.write(lambda c: count_calls(c, rates, self._database.clock()))
