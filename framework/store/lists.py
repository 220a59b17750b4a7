"""SQL for lists and counts of runs: filters, pages, what waits where and why, and the processes of the fleet."""

from __future__ import annotations

import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
import sqlalchemy as sa

from framework.store.database import Database
from framework.store.processes import RunLeases, find_dead, is_leased, list_processes
from framework.store.runs import UNMEASURED, figure, known_cost
from framework.store.schema import (
    RELEASED_ORDER,
    contains_text,
    conversation_id_of,
    conversation_key,
    decisions,
    events,
    has_status,
    id_in_key,
    is_claimed_or_running,
    is_owned,
    packed,
    processes,
    runs,
    runs_containing,
    starts_with_key,
)
from framework.store.types import (
    SEARCHED_RUNS,
    DecidedCall,
    DecidedCalls,
    ProcessInfo,
    QueueSize,
    RunInfo,
    RunQuery,
    WorkScope,
)
from framework.types.errors import RequestError
from framework.types.report import Backlog, Fleet, FleetProcess, HandedOnRun, ProcessDetails, Status, WaitingRuns
from framework.types.state import EXPIRED, Rating
from framework.types.text import storable, to_sql_text

_LISTED = [column for column in runs.c if column.name not in ("head", "state", "request", *UNMEASURED)]

_MAX_ORPHANS = 10_000
_UNINDEXED_NUMBER = runs.c.no + sa.literal_column("0")
"""The order of a conversation's runs. PostgreSQL expects many runs for the range of keys that conversations with
an id have; to find the first ones, it would then read all runs in the order of the index of their numbers.
"""


def list_runs(connection: sa.Connection, database: Database, leases: RunLeases, query: RunQuery) -> list[RunInfo]:
    """Return the matching runs, by default oldest first; raises RequestError if `before` names no such run."""
    dialect = connection.dialect.name
    figures = known_cost(dialect).label("cost_usd"), figure("elapsed_ms", dialect).label("elapsed_ms")
    columns = (*_LISTED, *figures, processes.c.lease_boot, is_leased(database))
    select = sa.select(*columns).outerjoin_from(runs, processes, runs.c.process == processes.c.id)
    order = runs.c.no if query.conversation_id is None else _UNINDEXED_NUMBER
    select = select.order_by(order.desc() if query.newest_first else order)
    select = select.where(*conditions(query, dialect))
    if query.before is not None:
        position = sa.select(runs.c.no).where(runs.c.id == to_sql_text(query.before), *owner_conditions(query))
        number = connection.execute(position).scalar_one_or_none()
        if number is None:
            problem = f"before: this list has no run {query.before!r}; start again without it"
            raise RequestError(problem, param="before")
        select = select.where(runs.c.no < number)
    if query.orphaned:
        orphans = _find_orphans(connection, database, leases)
        select = select.where(has_status("running"), runs.c.no.in_(orphans))
    return [
        _run_info(row, held=leases.is_held(row.owner, row.lease_boot, leased=bool(row.leased)))
        for row in connection.execute(select.limit(query.limit))
    ]


def _find_orphans(connection: sa.Connection, database: Database, leases: RunLeases) -> list[int]:
    """Return the numbers of the runs in progress that no process executes, at most `_MAX_ORPHANS`.

    Each statement reads a partial index in its order, so runs in progress elsewhere are not read.
    """
    select = sa.select(runs.c.no).limit(_MAX_ORPHANS)
    released = select.where(has_status("running"), runs.c.process.is_(None), runs.c.blocked_by.is_(None))
    held = select.where(is_claimed_or_running()).order_by(runs.c.process)
    found = list(connection.execute(released.order_by(*RELEASED_ORDER)).scalars())
    if dead := find_dead(connection, database, leases):
        found += connection.execute(held.where(runs.c.process.in_(dead))).scalars()
    is_left = sa.and_(runs.c.process == leases.name, runs.c.owner.not_in(sorted(leases.alive())))
    found += connection.execute(held.where(is_left)).scalars()
    return sorted(found)[:_MAX_ORPHANS]


def count_runs(connection: sa.Connection, query: RunQuery) -> int:
    """Return the number of matching runs."""
    count = sa.select(sa.func.count()).select_from(runs)
    found = connection.execute(count.where(*conditions(query, connection.dialect.name)))
    return int(found.scalar_one())


def count_waiting(connection: sa.Connection) -> dict[Status, int]:
    """Return the numbers of queued and of paused runs, each from its partial index."""
    count = sa.select(sa.func.count()).select_from(runs)
    statuses: tuple[Status, ...] = ("queued", "paused")
    return {status: connection.execute(count.where(has_status(status))).scalar_one() for status in statuses}


def queue_size(connection: sa.Connection) -> QueueSize:
    """Return the size of the queue, from a partial index, and the number of the last run."""
    waiting = sa.select(sa.func.count()).where(has_status("queued")).scalar_subquery()
    last = sa.select(sa.func.coalesce(sa.func.max(runs.c.no), 0)).scalar_subquery()
    row = connection.execute(sa.select(waiting.label("waiting"), last.label("added"))).one()
    return QueueSize(row.waiting, row.added)


def conditions(query: RunQuery, dialect: str) -> Iterator[sa.ColumnElement[bool]]:
    """Yield the conditions of a query on the columns of runs, without its position and limit."""
    yield from owner_conditions(query)
    yield from _conditions(query, dialect)


def owner_conditions(query: RunQuery) -> Iterator[sa.ColumnElement[bool]]:
    """Yield the conditions on the owner and the agent of runs."""
    yield from is_owned(query, runs)
    if query.agents is not None:
        yield runs.c.agent.in_([to_sql_text(agent) for agent in query.agents])


def _conditions(query: RunQuery, dialect: str) -> Iterator[sa.ColumnElement[bool]]:
    if query.run_id is None and query.conversation_id is None:
        yield runs.c.copied_from.is_(None)
    if query.statuses:
        yield sa.or_(*(has_status(status) for status in sorted(query.statuses)))
    if query.expired_at is not None:
        yield sa.and_(has_status("paused"), runs.c.expires_at <= query.expired_at)
    if query.min_attempts:
        yield runs.c.attempts >= query.min_attempts
    if query.max_attempts is not None:
        yield runs.c.attempts <= query.max_attempts
    if query.run_id is not None:
        yield runs.c.id == to_sql_text(query.run_id)
    if query.agent is not None:
        yield runs.c.agent == to_sql_text(query.agent)
    yield from _contents(query, dialect)
    if query.conversation_id is not None:
        yield _is_in_conversation(query.conversation_id, query, dialect)


def _is_in_conversation(conversation_id: str, query: RunQuery, dialect: str) -> sa.ColumnElement[bool]:
    """Return the condition that a run is one of a conversation with this id, of any owner that the query does not name.

    A run has the tenant and user of its conversation.
    """
    if (query.tenant or query.without_tenant) and (query.user or query.without_user):
        return runs.c.conversation_id == conversation_key(conversation_id, query.tenant, query.user)
    return starts_with_key(runs.c.conversation_id, conversation_key(conversation_id, query.tenant, None), dialect)


def _contents(query: RunQuery, dialect: str) -> Iterator[sa.ColumnElement[bool]]:
    if query.generation is not None:
        yield runs.c.generation == query.generation
    if query.digest is not None:
        yield runs.c.digest.startswith(storable(query.digest), autoescape=True)
    if query.rating is not None:
        yield runs.c.rating == query.rating
    if query.text is not None:
        yield contains_text(query.text, runs.c.message)
    if query.search is not None:
        conversation_id = id_in_key(runs.c.conversation_id, dialect)
        is_found = contains_text(query.search, runs.c.message, runs.c.agent, runs.c.id, conversation_id)
        yield sa.or_(is_found, runs.c.id.in_(runs_containing(query.search, dialect)))
    if query.text is not None or query.search is not None:
        yield runs.c.no > sa.select(sa.func.max(runs.c.no) - SEARCHED_RUNS).scalar_subquery()
    if query.since is not None:
        yield runs.c.created_at >= query.since
    if query.until is not None:
        yield runs.c.created_at < query.until


def _run_info(row: Any, *, held: bool) -> RunInfo:
    return RunInfo(
        run_id=row.id,
        status=row.status,
        finish_reason=row.finish_reason,
        agent=row.agent,
        generation=row.generation,
        digest=row.digest,
        message=row.message,
        created_at=row.created_at,
        updated_at=row.updated_at,
        conversation_id=row.conversation_id and conversation_id_of(row.conversation_id),
        turn=row.turn or 0,
        user=row.user_id,
        tenant=row.tenant,
        trace_id=row.trace_id,
        steps=row.steps,
        tokens=row.tokens,
        cost_usd=row.cost_usd,
        elapsed_ms=row.elapsed_ms,
        expires_at=row.expires_at,
        held=held,
        attempts=row.attempts,
        crashes=row.crashes,
        priority=row.priority,
        waits_for=None if held else _waits_for(row),
        refusals=None if row.refusals is None else json.loads(row.refusals),
        rating=None if row.rating is None else _rating(row),
        copied_from=row.copied_from,
    )


def _rating(row: Any) -> Rating:
    at = datetime.fromtimestamp(row.rated_at, UTC)
    return Rating(value=row.rating, comment=row.rating_comment or "", by=row.rated_by, at=at)


def _waits_for(row: Any) -> str | None:
    if row.blocked_by is not None and row.status in ("queued", "running"):
        return str(row.blocked_by)
    if row.status != "queued":
        return None
    if row.ready or row.owner is not None:  # the process that has claimed it ended
        return "capacity"
    return "conversation" if row.refusals is None else "handed_on"


MAX_WAITING_GROUPS = 200
"""Number of groups of waiting runs in a report."""
MAX_HANDED_ON = 100
"""Number of runs in a report that processes released for others."""
_WAITING_STATUSES: tuple[Status, ...] = ("queued", "running")

_REASON = sa.case(
    (runs.c.blocked_by.is_not(None), "limit"),
    (runs.c.refusals.is_not(None), "handed_on"),
    (has_status("running"), "released"),
    (runs.c.ready, "capacity"),
    else_="conversation",
)


def select_backlog(connection: sa.Connection, query: RunQuery, now: float) -> Backlog:
    """Return the matching runs that have not ended by `now`. Partial indexes find them, however many have ended."""
    matches = list(conditions(query, connection.dialect.name))
    count = sa.select(sa.func.count()).select_from(runs).where(*matches)
    is_executed = sa.and_(is_claimed_or_running(), runs.c.process.is_not(None))
    return Backlog(
        waiting=_waiting(connection, matches, now),
        handed_on=_handed_on(connection, matches),
        paused=connection.execute(count.where(has_status("paused"))).scalar_one(),
        running=connection.execute(count.where(is_executed)).scalar_one(),
    )


def _waiting(connection: sa.Connection, matches: list[sa.ColumnElement[bool]], now: float) -> tuple[WaitingRuns, ...]:
    """Count the runs that no process holds, by queue, agent and reason; the largest groups first."""
    columns = (runs.c.queue, runs.c.agent, _REASON.label("reason"), runs.c.blocked_by.label("limit"), runs.c.created_at)
    free = sa.select(*columns).where(runs.c.process.is_(None), *matches)
    found = sa.union_all(*(free.where(has_status(status)) for status in _WAITING_STATUSES)).subquery()
    group = (found.c.queue, found.c.agent, found.c.reason, found.c.limit)
    number, oldest = sa.func.count().label("number"), sa.func.min(found.c.created_at).label("oldest")
    groups = (
        sa.select(*group, number, oldest).group_by(*group).order_by(number.desc(), oldest).limit(MAX_WAITING_GROUPS)
    )
    return tuple(
        WaitingRuns(
            queue=row.queue,
            agent=row.agent or None,
            count=row.number,
            oldest_seconds=round(max(0.0, now - row.oldest), 1),
            reason=row.reason,
            limit=row.limit,
        )
        for row in connection.execute(groups)
    )


def _handed_on(connection: sa.Connection, matches: list[sa.ColumnElement[bool]]) -> tuple[HandedOnRun, ...]:
    """Return the runs that processes released for others, oldest first."""
    waits = sa.select(runs.c.no, runs.c.id, runs.c.refusals).where(
        runs.c.refusals.is_not(None), runs.c.process.is_(None), *matches
    )
    found = sa.union_all(*(waits.where(has_status(status)) for status in _WAITING_STATUSES)).subquery()
    rows = connection.execute(sa.select(found.c.id, found.c.refusals).order_by(found.c.no).limit(MAX_HANDED_ON))
    return tuple(HandedOnRun(run_id=row.id, reasons=json.loads(row.refusals)) for row in rows)


def select_fleet(
    connection: sa.Connection, database: Database, leases: RunLeases, query: RunQuery, now: float
) -> Fleet:
    """Return the processes that report themselves, and the matching runs that have not ended by `now`."""
    reported = (_fleet_process(one) for one in list_processes(connection, database, leases) if one.info)
    found = sorted(reported, key=lambda one: (not one.alive, one.name))
    backlog = select_backlog(connection, query, now)
    waiting = tuple(_with_worker_checked(group, found) for group in backlog.waiting)
    if query.agents is not None:
        found = [_limited(one, query.agents) for one in found]
    return Fleet(**dict(backlog) | {"waiting": waiting}, processes=tuple(found), digests=_digests(found))


def _fleet_process(info: ProcessInfo) -> FleetProcess:
    details = ProcessDetails.parse(info.info)
    return FleetProcess(
        **dict(details) | {"running": info.holds},
        name=info.name,
        alive=info.is_alive,
        started_at=datetime.fromtimestamp(info.started_at, UTC),
        seen_at=datetime.fromtimestamp(info.seen_at, UTC),
    )


def _with_worker_checked(group: WaitingRuns, processes: Iterable[FleetProcess]) -> WaitingRuns:
    """Return a group that waits for capacity with the reason `no_worker` if no live process executes its runs."""
    if group.reason != "capacity" or any(_executes(one, group) for one in processes):
        return group
    return group.model_copy(update={"reason": "no_worker"})


def _executes(process: FleetProcess, group: WaitingRuns) -> bool:
    agents, queues = (None if names is None else frozenset(names) for names in (process.only_agents, process.queues))
    return process.alive and process.works and WorkScope(agents, queues).includes(group.queue, group.agent or "")


def _limited(process: FleetProcess, agents: Iterable[str]) -> FleetProcess:
    visible = frozenset(agents)
    update: dict[str, object] = {"agents": {name: one for name, one in process.agents.items() if name in visible}}
    if process.only_agents is not None:
        update["only_agents"] = tuple(name for name in process.only_agents if name in visible)
    return process.model_copy(update=update)


def _digests(processes: Sequence[FleetProcess]) -> dict[str, dict[str, int]]:
    """Count the live processes with each digest of each agent, the most frequent digest first."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for process in processes:
        if process.alive:
            for name, digest in process.agents.items():
                counts[name][digest] += 1
    return {name: dict(counts[name].most_common()) for name in sorted(counts)}


_ASKED, _RESULT = '{"event":"confirm_required"', '{"event":"tool_result"'
_CHUNK = 500


def decided_calls(connection: sa.Connection, query: RunQuery) -> DecidedCalls:
    """Return the calls of the matching runs that rules or people decided about, the newest runs first up to its limit.

    Only events that mention a confirmation or a denial are parsed: there may be thousands of runs.
    """
    found = (
        sa.select(runs.c.id, runs.c.agent, packed.c.body)
        .outerjoin(packed, packed.c.run_id == runs.c.id)
        .where(*conditions(query, connection.dialect.name))
        .order_by(runs.c.no.desc())
        .limit(query.limit)
    )
    asked: dict[tuple[str, str], dict[str, Any]] = {}
    denied: set[tuple[str, str]] = set()
    agents: dict[str, str] = {}
    unpacked: list[str] = []
    for run_id, agent, body in connection.execute(found):
        agents[run_id] = agent
        if body is None:
            unpacked.append(run_id)
        elif b"confirm_required" in (contents := zlib.decompress(body)) or b"denied" in contents:
            for _, text in orjson.loads(contents)["events"]:
                _add_event(run_id, agent, text, asked, denied)
    for start in range(0, len(unpacked), _CHUNK):
        wanted = sa.or_(events.c.body.startswith(_ASKED), events.c.body.startswith(_RESULT))
        rows = sa.select(events.c.run_id, events.c.body).where(events.c.run_id.in_(unpacked[start : start + _CHUNK]))
        for run_id, text in connection.execute(rows.where(wanted).order_by(events.c.run_id, events.c.seq)):
            _add_event(run_id, agents[run_id], text, asked, denied)
    ids, calls = [*dict.fromkeys(run_id for run_id, _ in asked)], []
    for start in range(0, len(ids), _CHUNK):
        made = sa.select(decisions).where(decisions.c.run_id.in_(ids[start : start + _CHUNK]))
        for row in connection.execute(made.order_by(decisions.c.decided_at, decisions.c.confirmation_id)):
            if event := asked.pop((row.run_id, row.confirmation_id), None):
                calls.append(_decided_call(event, row))
    waiting = [(event["agent"], event["tool"], event["arguments"]) for event in asked.values()]
    return DecidedCalls(calls, waiting, denied)


def _add_event(
    run_id: str, agent: str, text: str, asked: dict[tuple[str, str], dict[str, Any]], denied: set[tuple[str, str]]
) -> None:
    if text.startswith(_ASKED):
        event = json.loads(text)
        if event["kind"] == "tool":
            asked[run_id, event["id"]] = event
    elif '"denied"' in text and text.startswith(_RESULT):
        event = json.loads(text)
        if event.get("status") == "denied":
            denied.add((agent, event.get("error") or ""))


def _decided_call(event: Mapping[str, Any], row: Any) -> DecidedCall:
    decision = json.loads(row.decision)
    is_expired = row.decided_by is None and decision == EXPIRED.model_dump(mode="json")
    return DecidedCall(
        agent=event["agent"],
        tool=event["tool"],
        arguments=event["arguments"],
        decision="expired" if is_expired else decision["type"],
        by=row.decided_by,
    )
