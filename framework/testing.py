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

from framework.llm.client import Script, ScriptedModel, Turn, calls
from framework.store.memory import MemoryStore
from framework.store.types import NOBODY, UNLIMITED, Blueprint, Conversation, Deciders, RunLimits, RunRecord
from framework.types.budget import BudgetUse
from framework.types.events import Event
from framework.types.grant import Grant
from framework.types.report import SpanRecord
from framework.types.state import Decision, IdempotencyKey, RunRequest, RunState

__all__ = ["Crash", "JsonStore", "Script", "ScriptedModel", "Turn", "calls"]


class JsonStore(MemoryStore):
    """A store in memory that is written at each step, as a database in a file is.

    `crash_after(n)` simulates a killed process: n more writes succeed, and the next one raises `Crash`.
    """

    durable = True

    def __init__(self) -> None:
        super().__init__()
        self._writes_left: int | None = None

    def crash_after(self, writes: int | None) -> None:
        """Raise `Crash` after this many more writes, or never if None. Releases every run."""
        self._writes_left = writes
        for lease in self._leases.alive():
            self._leases.end(lease)

    async def start(
        self,
        state: RunState,
        conversation: Conversation | None,
        blueprint: Blueprint | None,
        limits: RunLimits = UNLIMITED,
    ) -> RunRecord:
        """Save a new run."""
        self.count()
        return JsonRecord(await super().start(state, conversation, blueprint, limits), self)

    async def enqueue(self, request: RunRequest, *, idempotency: IdempotencyKey | None = None) -> str:
        """Save a queued run."""
        self.count()
        return await super().enqueue(request, idempotency=idempotency)

    async def acquire(
        self,
        state: RunState,
        decisions: Mapping[str, Decision],
        by: Deciders = NOBODY,
        limits: RunLimits = UNLIMITED,
        grants: Sequence[Grant] = (),
    ) -> RunRecord:
        """Take over a run that is not held."""
        return JsonRecord(await super().acquire(state, decisions, by, limits, grants), self)

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
        """Save the state and its new events."""
        self._store.count()
        await self._record.write(state, events, spans, last=last, uses=uses)
        self.cancel_requested = self._record.cancel_requested

    async def release(self) -> None:
        """Release the run."""
        await self._record.release()


class Crash(BaseException):
    """Simulated death of the process. A BaseException, so that no handler of Exception continues after it."""
