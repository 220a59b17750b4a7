"""SQL for what runs share: slots of limited agents and models, offers of ready runs, counters of budgets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from typing import Any

import sqlalchemy as sa

from framework.store.database import Database, now_in
from framework.store.processes import notify
from framework.store.schema import (
    CLAIM_ORDER,
    budget_counters,
    conversation_key,
    conversations,
    has_status,
    insert_into,
    is_claimed_or_running,
    is_next,
    runs,
    slots,
)
from framework.store.types import Allowed, OfferedRun, Offers, Signal
from framework.types.budget import BudgetUse, CounterKey
from framework.types.errors import RunBlocked

OFFERED_COLUMNS = (runs.c.id, runs.c.queue, runs.c.agent, runs.c.priority)
"""The columns of `RunOffers.offer`."""
REOFFER_SECONDS = 5.0
"""A run that still needs a process this long after it was offered is offered again."""
RELEASED: Mapping[str, Any] = {"owner": None, "process": None}
"""The columns of a run that no process holds."""
UNCOUNTED = sa.case((runs.c.attempts > 0, runs.c.attempts - 1), else_=0)
"""The attempts of a run whose process releases it: only those that ended with their process count."""


class RunOffers:
    """Offers runs through the store's `Offers`. Without them, a signal has processes look for runs."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._offers: Offers | None = None
        self._make_next_ready = _make_next_ready(database.dialect.name)

    def offer_through(self, offers: Offers) -> None:
        """Set what delivers the offers."""
        self._offers = offers

    @property
    def offered_at(self) -> sa.ColumnElement[Any]:
        """Value of the column of a run that is offered: when that was, or null if nothing delivers offers."""
        return sa.null() if self._offers is None else self._database.now

    def offer(self, connection: sa.Connection, rows: Iterable[Any]) -> list[OfferedRun]:
        """Offer the runs of these rows, and return them."""
        offered = [OfferedRun(*row) for row in rows]
        if not offered:
            return []
        if self._offers is not None:
            self._offers.offer(connection.connection.dbapi_connection, offered)
        elif not self._database.is_sqlite:
            notify(connection, Signal("ready"))
        return offered

    def release(self, connection: sa.Connection, condition: sa.ColumnElement[bool], **columns: Any) -> list[OfferedRun]:
        """Release the runs in progress and the claimed runs that match, offer those that can start or be resumed."""
        ready = sa.and_(has_status("queued"), is_next(), runs.c.blocked_by.is_(None))
        values = {**RELEASED, "ready": ready, "offered_at": self.offered_at, **columns}
        returned = (*OFFERED_COLUMNS, runs.c.status, runs.c.ready)
        rows = connection.execute(sa.update(runs).where(condition).values(values).returning(*returned)).all()
        return self.offer(connection, (row[:4] for row in rows if row.ready or row.status == "running"))

    def release_dead(self, connection: sa.Connection, dead: Collection[str]) -> list[OfferedRun]:
        """Release all runs of processes that have ended, and offer them.

        A process that held a single run ended because of it, as far as can be known. All runs of a process are
        released together, so that the last one does not look as if it had been alone.
        """
        held = sa.select(runs.c.no, runs.c.process).where(is_claimed_or_running(), runs.c.process.in_(dead))
        rows = connection.execute(held.order_by(runs.c.no).with_for_update()).all()
        if not rows:
            return []
        number = Counter(row.process for row in rows)
        alone = [row.no for row in rows if number[row.process] == 1]
        columns = {
            "attempts": sa.case(
                (has_status("queued"), runs.c.attempts + 1), else_=runs.c.attempts
            ),  # `acquire` counts others
            "crashes": runs.c.crashes + sa.case((runs.c.no.in_(alone), 1), else_=0),
        }
        return self.release(
            connection, runs.c.no.in_([row.no for row in rows]), offered_at=self._database.now, **columns
        )

    def make_next_ready(self, connection: sa.Connection, conversation: str) -> None:
        """Make the first queued run of a conversation ready, and offer it, if no run of that is open any more."""
        row = {"conversation": conversation, "offering": self._offers is not None}
        if (offered := connection.execute(self._make_next_ready, row).one_or_none()) is not None:
            self.offer(connection, [offered])


@cache
def _make_next_ready(dialect: str) -> sa.Executable:
    key = sa.bindparam("conversation", type_=sa.Text)
    waiting = runs.alias()
    first = sa.select(sa.func.min(waiting.c.no)).where(
        waiting.c.conversation_id == key, waiting.c.no > 0, waiting.c.status == sa.literal_column("'queued'")
    )
    is_open = sa.exists().where(conversations.c.id == key, conversations.c.open_run.is_not(None))
    is_free = sa.and_(runs.c.owner.is_(None), runs.c.blocked_by.is_(None), ~is_open)
    offered_at = sa.case((sa.bindparam("offering", type_=sa.Boolean), now_in(dialect)))
    update = sa.update(runs).where(runs.c.no == first.scalar_subquery(), has_status("queued"), is_free)
    return update.values(ready=sa.true(), offered_at=offered_at).returning(*OFFERED_COLUMNS)


_IS_HELD = sa.exists().where(runs.c.id == slots.c.run_id, has_status("running"), runs.c.process == slots.c.process)
_IS_RELEASED = sa.and_(has_status("running"), runs.c.process.is_(None))
_IS_OPEN = sa.or_(has_status("queued"), _IS_RELEASED)
_CHECKED_LIMITS = 50
"""Number of limits that one sweep checks."""


def acquire_slots(
    connection: sa.Connection, offers: RunOffers, limits: Mapping[str, int], process: str, run_id: str
) -> None:
    """Take a slot of each limit for a run of a process.

    Raises:
        RunBlocked: a limit is reached. The caller rolls back, and lets the run wait with `block_run`.
    """
    _lock(connection, limits)
    for key, allowed in sorted(limits.items()):
        free = _count_free(connection, key, allowed)
        if free <= 0:
            raise RunBlocked(f"run {run_id} waits: {allowed} runs of {key} are in progress", key)
        row = {"key": key, "n": _free_number(connection, key), "process": process, "run_id": run_id}
        connection.execute(sa.insert(slots).values(row))
        if free > 1:  # the limit was raised, or slots of a dead process became free: others may start too
            wake_first(connection, offers, key)


def free_slots(connection: sa.Connection, offers: RunOffers, keys: Collection[str], run_id: str) -> None:
    """Free the slots of a run, and wake the first run that waits for each."""
    _lock(connection, keys)
    connection.execute(sa.delete(slots).where(slots.c.key.in_(keys), slots.c.run_id == run_id))
    for key in sorted(keys):
        wake_first(connection, offers, key)


def block_run(
    connection: sa.Connection,
    offers: RunOffers,
    database: Database,
    condition: sa.ColumnElement[bool],
    limits: Mapping[str, int],
) -> None:
    """Release the run that matches, and let it wait for the first limit that is reached; offer it if none is."""
    _lock(connection, limits)
    free = {key: _count_free(connection, key, allowed) > 0 for key, allowed in sorted(limits.items())}
    reached = next((key for key, is_free in free.items() if not is_free), None)
    if reached is None:
        offers.release(connection, condition)
        return
    values = {**RELEASED, "ready": False, "blocked_by": reached, "offered_at": database.now}
    connection.execute(sa.update(runs).where(condition).values(values))
    for key in [key for key, is_free in free.items() if is_free]:  # the run does not use the slot it was woken for
        wake_first(connection, offers, key)


def wake_first(connection: sa.Connection, offers: RunOffers, key: str) -> None:
    """Offer the first run that waits for a limit. Runs that have started before come first."""
    for waiting in _waiting(key):
        row = connection.execute(waiting.limit(1).with_for_update(skip_locked=True)).one_or_none()
        if row is not None:
            wake(connection, offers, [row.no])
            return


def wake(connection: sa.Connection, offers: RunOffers, numbers: Collection[int]) -> list[OfferedRun]:
    """Offer runs that wait for a limit, and return them."""
    if not numbers:  # SQLite would read all queued runs
        return []
    values: dict[str, Any] = {"blocked_by": None, "ready": has_status("queued"), "offered_at": offers.offered_at}
    waiting = sa.update(runs).where(runs.c.no.in_(numbers), runs.c.blocked_by.is_not(None), _IS_OPEN)
    return offers.offer(connection, connection.execute(waiting.values(values).returning(*OFFERED_COLUMNS)))


def select_unblocked(
    connection: sa.Connection, database: Database, allowed: Allowed, after: str
) -> tuple[list[int], str]:
    """Return the first run that waits for each limit that has had a free slot for some seconds, if any.

    That is the case if a process ended with its slots, or if the limit was raised or removed: nobody was woken then.
    The run that starts wakes the next one. `after` is the second value of the call before.

    Returns:
        The numbers of the runs, and the key after which the next call continues.
    """
    found: list[int] = []
    for _ in range(_CHECKED_LIMITS):
        key = connection.execute(_next_key(after)).one().key
        if key is None:
            return found, ""
        after = key
        used = sa.select(sa.func.count()).where(slots.c.key == key, _IS_HELD)
        if (number := allowed(key)) is None or connection.execute(used).scalar_one() < number:
            found += _first_late(connection, database, key)
    return found, after


def _first_late(connection: sa.Connection, database: Database, key: str) -> list[int]:
    """Return the first run that waits for a limit, unless it started to wait just now."""
    is_late = (runs.c.offered_at < database.now - REOFFER_SECONDS).label("is_late")
    for waiting in _waiting(key):
        if (row := connection.execute(waiting.add_columns(is_late).limit(1)).one_or_none()) is not None:
            return [row.no] if row.is_late else []
    return []


def _count_free(connection: sa.Connection, key: str, allowed: int) -> int:
    """Return how many slots of a limit are free. Below 0: the limit was lowered while runs held more."""
    used = sa.select(sa.func.count()).where(slots.c.key == key)
    if (free := allowed - int(connection.execute(used).scalar_one())) > 0:
        return free
    connection.execute(sa.delete(slots).where(slots.c.key == key, ~_IS_HELD))
    return allowed - int(connection.execute(used).scalar_one())


def _next_key(after: str) -> sa.Select[tuple[str | None]]:
    """Return the query for the key that follows another, of the limits that runs wait for."""
    follows = sa.select(sa.func.min(runs.c.blocked_by).label("key")).where(runs.c.blocked_by > after)
    first = sa.union_all(follows.where(has_status("queued")), follows.where(_IS_RELEASED)).subquery()
    return sa.select(sa.func.min(first.c.key).label("key"))


def _waiting(key: str) -> tuple[sa.Select[tuple[int]], sa.Select[tuple[int]]]:
    """Return the queries for the runs that wait for a limit, in order: runs that started before, and queued ones."""
    waits = sa.select(runs.c.no).where(runs.c.blocked_by == key)
    return waits.where(_IS_RELEASED).order_by(runs.c.no), waits.where(has_status("queued")).order_by(*CLAIM_ORDER)


def _free_number(connection: sa.Connection, key: str) -> int:
    """Return the lowest number of a slot that nobody holds."""
    other = slots.alias()
    after = sa.select((slots.c.n + 1).label("n")).where(slots.c.key == key)
    candidates = sa.union_all(sa.select(sa.literal(1).label("n")), after).subquery()
    is_held = sa.exists().where(other.c.key == key, other.c.n == candidates.c.n)
    return int(connection.execute(sa.select(sa.func.min(candidates.c.n)).where(~is_held)).scalar_one())


def _lock(connection: sa.Connection, keys: Collection[str]) -> None:
    """Let other transactions that lock one of these keys wait until this one ends."""
    if keys and connection.dialect.name == "postgresql":
        numbers = sorted({int.from_bytes(sha256(key.encode()).digest()[:8], signed=True) for key in keys})
        connection.execute(sa.select(*(sa.func.pg_advisory_xact_lock(number) for number in numbers)))


_KEY = [column.name for column in budget_counters.primary_key]
_USE = [budget_counters.c[name] for name in (*_KEY, "tokens", "cost_usd")]


class CounterStatements:
    """The statements of counters for one kind of database."""

    def __init__(self, dialect: str) -> None:
        insert = insert_into(budget_counters, dialect)
        sums = {name: budget_counters.c[name] + insert.excluded[name] for name in ("tokens", "cost_usd")}
        upsert = insert.on_conflict_do_update(index_elements=_KEY, set_=sums)
        select = sa.select(*_USE).where(*(budget_counters.c[name] == sa.bindparam(name) for name in _KEY))
        self._add, self._load = upsert, select

    def add(self, connection: sa.Connection, uses: Sequence[BudgetUse]) -> None:
        """Add each use to its counter, in the order of their keys: two transactions then never wait for each other."""
        connection.execute(self._add, [_row(use) for use in sorted(uses, key=lambda use: use.key)])

    def load(self, connection: sa.Connection, keys: Collection[CounterKey]) -> list[BudgetUse]:
        """Return the counters with these keys that exist."""
        rows = (connection.execute(self._load, dict(zip(_KEY, key, strict=True))).one_or_none() for key in keys)
        return [_use(*row) for row in rows if row is not None]


def load_counters(connection: sa.Connection) -> list[BudgetUse]:
    """Return all counters."""
    return [_use(*row) for row in connection.execute(sa.select(*_USE).order_by(*_USE[:3]))]


def delete_ended_counters(connection: sa.Connection, before: float) -> None:
    """Delete the counters of periods that ended before a Unix time."""
    connection.execute(sa.delete(budget_counters).where(budget_counters.c.ends_at < before))


def delete_counters(connection: sa.Connection, kind: str, ids: Collection[str]) -> None:
    """Delete the counters that belong to these runs, or to the conversations with these keys."""
    owners = [f"{kind}:{one}" for one in ids]
    connection.execute(sa.delete(budget_counters).where(budget_counters.c.owner.in_(owners)))


def _row(use: BudgetUse) -> dict[str, object]:
    row = dict[str, object](zip(_KEY, use.key, strict=True), tokens=use.tokens, cost_usd=use.cost_usd)
    ends_at = use.resets_at and use.resets_at.timestamp()
    return {**row, "owner": use.owner and _owner(*use.owner), "ends_at": ends_at}


def _owner(kind: str, one: str, tenant: str | None, user: str | None) -> str:
    return f"{kind}:{one if kind == 'run' else conversation_key(one, tenant, user)}"


def _use(budget: str, scope: str, period: str, tokens: int, cost_usd: float) -> BudgetUse:
    return BudgetUse(budget=budget, scope=scope, period=period, tokens=tokens, cost_usd=cost_usd)
