"""Test doubles for your own agents: a model with scripted replies, and a store that simulates crashes.

```python
import asyncio

from framework import Runtime
from framework.testing import ScriptedModel, calls


async def main() -> None:
    model = ScriptedModel(calls(("read_file", {"path": "a.txt"})), "The file contains: hello")
    async with Runtime.open(".", models={"scripted": model}) as runtime:
        result = await runtime.run("What is in a.txt?", agent="reader")
    assert result.output == "The file contains: hello"
    assert [call.tool for call in result.tool_calls] == ["read_file"]


asyncio.run(main())
```

The agent file `reader.yaml` contains `model: scripted`. For a run with `output_type=Invoice`, a turn is an `Invoice`.
Fixtures for pytest are in `framework.pytest_fixtures`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from framework.llm.scripted import Script, ScriptedModel, Turn, calls
from framework.store.memory import MemoryStore
from framework.store.protocol import NOBODY, Blueprint, Conversation, Deciders
from framework.store.run_record import RunRecord
from framework.store.work import UNLIMITED, RunLimits
from framework.types.budget import BudgetUse
from framework.types.events import Event, wire
from framework.types.run_request import IdempotencyKey, RunRequest
from framework.types.state import Decision, RunState
from framework.types.trace import SpanRecord

__all__ = ["Crash", "JsonStore", "Script", "ScriptedModel", "Turn", "calls"]


class JsonStore(MemoryStore):
    """A store in memory that keeps only JSON, as a database does: a loaded state shares no object with a saved one.

    `crash_after(n)` simulates a killed process: n more writes succeed, and the next one raises `Crash`.
    """

    durable = True

    def __init__(self) -> None:
        super().__init__()
        self._bodies: dict[str, str] = {}
        self._released: set[str] = set()
        """Ids of runs that have ended or are paused."""
        self._blueprints: dict[str, Blueprint] = {}
        self._events: dict[str, list[dict[str, Any]]] = {}
        self._writes_left: int | None = None

    def crash_after(self, writes: int | None) -> None:
        """Raise `Crash` after this many more writes, or never if None. Releases every run."""
        self._writes_left = writes
        for record in self._runs.values():
            record.held = False

    async def begin(
        self,
        state: RunState,
        conversation: Conversation | None,
        blueprint: Blueprint | None,
        limits: RunLimits = UNLIMITED,
    ) -> RunRecord:
        """Save a new run as JSON."""
        self.count()
        record = await super().begin(state, conversation, blueprint, limits)
        if blueprint:
            self._blueprints[blueprint.digest] = blueprint
        self.keep(state, ())
        return JsonRecord(record, self)

    async def enqueue(self, request: RunRequest, *, idempotency: IdempotencyKey | None = None) -> str:
        """Save a queued run as JSON."""
        self.count()
        run_id = await super().enqueue(request, idempotency=idempotency)
        if run_id == request.run_id:
            self.keep(self._runs[run_id].state, ())
        return run_id

    async def take(
        self,
        state: RunState,
        decisions: Mapping[str, Decision],
        by: Deciders = NOBODY,
        limits: RunLimits = UNLIMITED,
    ) -> RunRecord:
        """Take over a run that is not held."""
        record = await super().take(state, decisions, by, limits)
        self._released.discard(state.run_id)
        return JsonRecord(record, self)

    async def hand_over(self, state: RunState, decisions: Mapping[str, Decision], by: Deciders = NOBODY) -> None:
        """Save decisions about a run that is not held."""
        await super().hand_over(state, decisions, by)
        self.keep(state.model_copy(update={"decisions": {**state.decisions, **decisions}}), ())
        self._released.discard(state.run_id)

    async def load_run(self, run_id: str) -> RunState:
        """Return the saved state as a new object; raises RunNotFound."""
        self._record(run_id)
        state = RunState.model_validate_json(self._bodies[run_id])
        if run_id in self._queue:
            state.status = "queued"
        elif run_id not in self._released:  # the saved state may contain an end that was not written
            state.status, state.pending = "running", []
        return state

    async def events(self, run_id: str, after: int = 0) -> Sequence[Mapping[str, Any]]:
        """Return the events of a run."""
        self._record(run_id)
        return [event for event in self._events[run_id] if event["seq"] > after]

    async def blueprint(self, digest: str) -> Blueprint | None:
        """Return a stored blueprint, or None."""
        return self._blueprints.get(digest)

    def keep(self, state: RunState, events: Sequence[Event], *, last: bool = False) -> None:
        """Store a state and its new events as JSON."""
        if last:
            self._released.add(state.run_id)
        self._bodies[state.run_id] = state.model_dump_json()
        self._events.setdefault(state.run_id, []).extend(wire(event) for event in events)

    def count(self) -> None:
        """Count a write; raises Crash if no writes are left."""
        if self._writes_left is not None:
            if self._writes_left == 0:
                raise Crash
            self._writes_left -= 1


class JsonRecord:
    """A run of a `JsonStore`."""

    def __init__(self, record: RunRecord, store: JsonStore) -> None:
        self._record, self._store = record, store
        self.cancel_requested = record.cancel_requested

    async def write(
        self,
        state: RunState,
        events: Sequence[Event] = (),
        spans: Sequence[SpanRecord] = (),
        *,
        last: bool = False,
        uses: Sequence[BudgetUse] = (),
    ) -> None:
        """Save the state and its new events as JSON."""
        self._store.count()
        self._store.keep(state, events, last=last)
        await self._record.write(state, events, spans, last=last, uses=uses)
        self.cancel_requested = self._record.cancel_requested

    async def release(self) -> None:
        """Release the run."""
        await self._record.release()


class Crash(BaseException):
    """Simulated death of the process. A BaseException, so that no handler of Exception continues after it."""
