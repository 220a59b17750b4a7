"""Two weeks of runs: real runs of the engine on the shop's files, one after the other, stored with earlier times.

Each run is executed at once in a first store, as fast as the scripted model replies. Then it is written to the store
of the demo through the store's own interface, its times moved to a day of the past weeks and its durations stretched.
Only the columns with the times of storing are changed by SQL, because a store always writes the present time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from examples.console_demo.edits import EDITS, apply_edit
from examples.console_demo.model import HURRIED, shop_models
from examples.console_demo.visits import Visit, visits
from framework import Runtime
from framework.store.schema import conversations, decisions, runs
from framework.store.store import Store
from framework.types.errors import AgentsdError
from framework.types.events import read_event
from framework.types.report import SpanRecord
from framework.types.state import Approve, Decision, MadeDecision, RunState

_FIRST = "sqlite:///.agentsd/first.db"
_NOTHING_DONE: dict[str, Any] = {
    "status": "running",
    "pending": [],
    "trace": [],
    "calls": {},
    "children": {},
    "plan": None,
}
_DECIDERS = ("ben", "ann", "dan")
"""Who decides, by turns of a day each."""
STRETCH = 45.0
"""Seconds of a stored run for one second of its execution."""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


@dataclass(slots=True)
class _Recorded:
    """A run that was executed, and where its times belong."""

    run_id: str
    begins: datetime
    pauses: list[RunState] = field(default_factory=list)
    """The states in which it waited for a decision."""


async def seed(project: Path, url: str, now: datetime, count: int = 260) -> int:
    """Fill a new store with the runs of two weeks, and return their number.

    Args:
        project: the shop, before its edits. They are applied while the runs are executed.
        url: of the new store.
        now: the end of the two weeks.
        count: about how many visits.
    """
    past = visits(now, count)
    first = await Store.open(_FIRST, project)
    target = await Store.open(url, project)
    try:
        recorded: list[_Recorded] = []
        async with Runtime.open(project, store=first, models=shop_models(HURRIED), watch=False) as runtime:
            for part, edit in zip(_parts(past, len(EDITS) + 1), (*EDITS, None), strict=True):
                recorded += await _execute(runtime, part)
                if edit is not None:
                    apply_edit(project, edit)
                    await runtime.reload()
        for run in sorted(recorded, key=lambda run: run.begins):
            await _move(run, first, target)
    finally:
        await first.close()
        await target.close()
    for path in first.files:
        path.unlink(missing_ok=True)
    return len(recorded)


def _parts(past: Sequence[Visit], count: int) -> list[Sequence[Visit]]:
    """Return the visits in groups of growing generations; the last edits are recent."""
    bounds = [round(len(past) * share) for share in (0, 0.3, 0.55, 0.75, 0.9, 1)][: count + 1]
    return [past[begin:end] for begin, end in zip(bounds, [*bounds[1:-1], len(past)], strict=False)]


async def _execute(runtime: Runtime, past: Sequence[Visit]) -> list[_Recorded]:
    """Run the messages of each visit, four visits at a time."""
    free, found = asyncio.Semaphore(4), list[_Recorded]()

    async def run(visit: Visit) -> None:
        async with free:
            found.extend(await _visited(runtime, visit))

    async with asyncio.TaskGroup() as group:
        for visit in past:
            group.create_task(run(visit))
    return found


async def _visited(runtime: Runtime, visit: Visit) -> list[_Recorded]:
    conversation, found = None, []
    for number, message in enumerate(visit.messages):
        options: dict[str, Any] = {"user": visit.user, "conversation": conversation, "agent": visit.agent}
        submitted = await runtime.submit(message, **options)
        conversation = submitted.conversation_id
        recorded = _Recorded(submitted.run_id, visit.begins + timedelta(minutes=3 * number))
        found.append(recorded)
        if visit.cancelled:
            with suppress(AgentsdError):
                await runtime.cancel(submitted.run_id, user=visit.user)
        result = await runtime.result(submitted.run_id, user=visit.user)
        while result.status == "paused" and visit.decision is not None:
            recorded.pauses.append(await runtime.store.load_run(result.run_id))
            answer = {pending.id: _answer(visit.decision, pending.kind) for pending in result.pending}
            result = await runtime.resume(result.run_id, answer, user=visit.user)
        if result.status == "paused":
            break
    return found


def _answer(decision: Decision, kind: str) -> Decision:
    return decision if kind == "tool" else Approve()


async def _move(run: _Recorded, first: Store, target: Store) -> None:
    """Write a run into the other store, at its time."""
    state = await first.load_run(run.run_id)
    spans = await first.spans(run.run_id)
    clock = _Clock.of(spans, run.begins, state)
    final = RunState.model_validate(clock.moved(state.model_dump(mode="json")))
    events = [read_event(clock.moved(dict(event))) for event in await first.events(run.run_id)]
    made = [one.model_copy(update={"at": clock.at(one.at)}) for one in await first.decisions(run.run_id)]
    opened = final.model_copy(update={**_NOTHING_DONE, "messages": final.messages[:1]})
    conversation = None
    if state.conversation_id:
        conversation = await target.conversation(state.conversation_id, state.tenant, state.user)
    record = await target.start(opened, conversation, await first.blueprint(state.blueprint))
    sent = 0
    for pause in run.pauses:
        waiting = RunState.model_validate(clock.moved(pause.model_dump(mode="json")))
        await record.write(waiting, [event for event in events if sent < event.seq <= waiting.seq], last=True)
        sent = waiting.seq
        answers = _decided(waiting, made)
        record = await target.acquire(waiting, answers, dict.fromkeys(answers, _DECIDERS[run.begins.day % 3]))
    await record.write(final, [event for event in events if event.seq > sent], [*map(clock.span, spans)], last=True)
    await _date(target, run, clock, final, made)


def _decided(waiting: RunState, made: Sequence[MadeDecision]) -> dict[str, Decision]:
    ids = {pending.id for pending in waiting.pending}
    return {one.confirmation_id: one.decision for one in made if one.confirmation_id in ids}


@dataclass(frozen=True, slots=True)
class _Clock:
    """Moves the times of one run: durations are stretched up to its end, later times only moved."""

    real: float
    end: float
    begins: float

    @classmethod
    def of(cls, spans: Sequence[SpanRecord], begins: datetime, state: RunState) -> _Clock:
        """Return the clock of a run; one that was cancelled before it began has no spans."""
        real = min((span.start_ns / 1e9 for span in spans), default=datetime.now(UTC).timestamp())
        end = max(state.paused_at or real, *(span.end_ns / 1e9 for span in spans), real)
        return cls(real, end, begins.timestamp())

    def seconds(self, moment: float) -> float:
        """Return the new time of a Unix time."""
        within = min(max(moment - self.real, 0), self.end - self.real)
        return self.begins + STRETCH * within + max(moment - self.end, 0)

    def at(self, moment: datetime) -> datetime:
        """Return the new time of a moment."""
        return datetime.fromtimestamp(self.seconds(moment.timestamp()), UTC)

    def span(self, span: SpanRecord) -> SpanRecord:
        """Return a span with its new times."""
        marks = tuple(replace(event, at_ns=self._ns(event.at_ns)) for event in span.events)
        return replace(span, start_ns=self._ns(span.start_ns), end_ns=self._ns(span.end_ns), events=marks)

    def moved(self, value: Any, key: str = "") -> Any:
        """Return JSON data with new times and durations."""
        match value:
            case dict():
                return {name: self.moved(item, name) for name, item in value.items()}
            case list():
                return [self.moved(item, key) for item in value]
            case str() if _TIME.fullmatch(value):
                return self.at(datetime.fromisoformat(value)).isoformat()
            case float() if key.endswith("_ms"):
                return value * STRETCH
            case float() if key == "paused_at":
                return self.seconds(value)
        return value

    def _ns(self, moment: int) -> int:
        return round(self.seconds(moment / 1e9) * 1e9)


async def _date(target: Store, run: _Recorded, clock: _Clock, final: RunState, made: Sequence[MadeDecision]) -> None:
    """Set the times of storing of a run, its conversation and its decisions."""
    begin, end = clock.seconds(clock.real), clock.seconds(clock.end)
    ended: Mapping[str, float | None] = {"ended_at": None if final.status == "paused" else end}
    row = sa.update(runs).where(runs.c.id == run.run_id).values(created_at=begin, updated_at=end, **ended)
    is_conversation = conversations.c.id == final.conversation_id
    first = sa.case((conversations.c.turns == 1, begin), else_=conversations.c.created_at)

    def work(connection: sa.Connection) -> None:
        connection.execute(row)
        connection.execute(sa.update(conversations).where(is_conversation).values(created_at=first, updated_at=end))
        for one in made:
            is_decision = (decisions.c.run_id == run.run_id, decisions.c.confirmation_id == one.confirmation_id)
            connection.execute(sa.update(decisions).where(*is_decision).values(decided_at=one.at.timestamp()))

    engine = sa.create_engine(f"sqlite:///{target.files[0]}")
    try:
        with engine.begin() as connection:
            work(connection)
    finally:
        engine.dispose()
