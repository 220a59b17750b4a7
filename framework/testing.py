"""Fakes for testing your own agents: a model that says what you script, and a store that survives a crash.

model = ScriptedModel(calls(("read_file", {"path": "a.txt"})), "It says hello.")
async with Runtime.open(".", models={"scripted": model}) as runtime:
result = await runtime.run("What is in a.txt?", agent="reader")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from framework.llm.scripted import Script, ScriptedModel, Turn, calls
from framework.store.memory import MemoryStore
from framework.store.protocol import Blueprint, Conversation, RunRecord
from framework.types.events import Event, wire
from framework.types.state import Decision, RunState
from framework.types.trace import SpanRecord

__all__ = ["Crash", "JsonStore", "Script", "ScriptedModel", "Turn", "calls"]


class JsonStore(MemoryStore):
    """A store that keeps JSON only, as a database does: what is loaded shares nothing with what was saved.

    `crash_after(n)` makes the store fail as a killed process does: the n-th write from then on still counts, and
    nothing after it.
    """

    durable = True

    def __init__(self) -> None:
        super().__init__()
        self._bodies: dict[str, str] = {}
        self._let_go: set[str] = set()
        """Runs that have ended, or wait."""
        self._blueprints: dict[str, Blueprint] = {}
        self._events: dict[str, list[dict[str, Any]]] = {}
        self._writes_left: int | None = None

    def crash_after(self, writes: int | None) -> None:
        """Raise `Crash` once this many writes are done; None: never. Nobody holds a run any more."""
        self._writes_left = writes
        for record in self._runs.values():
            record.held = False

    async def begin(self, state: RunState, conversation: Conversation | None, blueprint: Blueprint | None) -> RunRecord:
        """Keep the state as JSON."""
        self.count()
        record = await super().begin(state, conversation, blueprint)
        if blueprint:
            self._blueprints[blueprint.digest] = blueprint
        self.keep(state, ())
        return JsonRecord(record, self)

    async def take(self, state: RunState, decisions: Mapping[str, Decision], by: str | None = None) -> RunRecord:
        """Hold a run again, as what was loaded."""
        record = await super().take(state, decisions, by)
        self._let_go.discard(state.run_id)
        return JsonRecord(record, self)

    async def load_run(self, run_id: str) -> RunState:
        """A new object each time; raises RunNotFound."""
        self._record(run_id)
        state = RunState.model_validate_json(self._bodies[run_id])
        if run_id not in self._let_go:  # what is in the state may be ahead of the end, which was not written
            state.status, state.pending = "running", []
        return state

    async def events(self, run_id: str, after: int = 0) -> Sequence[Mapping[str, Any]]:
        """What the run has told."""
        self._record(run_id)
        return [event for event in self._events[run_id] if event["seq"] > after]

    async def blueprint(self, digest: str) -> Blueprint | None:
        """What was kept of an agent."""
        return self._blueprints.get(digest)

    def keep(self, state: RunState, events: Sequence[Event], *, last: bool = False) -> None:
        """Keep JSON."""
        if last:
            self._let_go.add(state.run_id)
        self._bodies[state.run_id] = state.model_dump_json()
        self._events.setdefault(state.run_id, []).extend(wire(event) for event in events)

    def count(self) -> None:
        """One more write; raises Crash if there are to be no more."""
        if self._writes_left is not None:
            if self._writes_left == 0:
                raise Crash
            self._writes_left -= 1


class JsonRecord:
    """A run that is written as JSON."""

    def __init__(self, record: RunRecord, store: JsonStore) -> None:
        self._record, self._store = record, store
        self.cancel_requested = False

    async def write(
        self, state: RunState, events: Sequence[Event] = (), spans: Sequence[SpanRecord] = (), *, last: bool = False
    ) -> None:
        """Keep the state as JSON, and what was told."""
        self._store.count()
        self._store.keep(state, events, last=last)
        await self._record.write(state, events, spans, last=last)
        self.cancel_requested = self._record.cancel_requested

    async def release(self) -> None:
        """Nobody works on the run any more."""
        await self._record.release()


class Crash(BaseException):
    """The process died here. A BaseException: nothing may go on after it."""
