"""Fakes for testing your own agents: a model that says what you script, and a store that survives a crash.

model = ScriptedModel(calls(("read_file", {"path": "a.txt"})), "It says hello.")
async with Runtime.open(".", models={"scripted": model}) as runtime:
result = await runtime.run("What is in a.txt?", agent="reader")
"""

from __future__ import annotations

from collections.abc import Sequence

from framework.llm.scripted import Script, ScriptedModel, Turn, calls
from framework.memory.store import Conversation
from framework.types.errors import RunNotFound
from framework.types.state import RunState

__all__ = ["Crash", "JsonStore", "Script", "ScriptedModel", "Turn", "calls"]


class JsonStore:
    """A store that keeps JSON only, as a database does: what is loaded shares nothing with what was saved.

    `crash_after(n)` makes the store fail as a killed process does: the n-th save from then on still counts, and nothing
    after it.
    """

    def __init__(self) -> None:
        self._runs: dict[str, str] = {}
        self._conversations: dict[str, Conversation] = {}
        self._saves_left: int | None = None

    def crash_after(self, saves: int) -> None:
        """Raise `Crash` once this many saves are done."""
        self._saves_left = saves

    async def save_run(self, state: RunState) -> None:
        """Keep the state as JSON."""
        if self._saves_left is not None:
            if self._saves_left == 0:
                raise Crash
            self._saves_left -= 1
        self._runs[state.run_id] = state.model_dump_json()

    async def load_run(self, run_id: str) -> RunState:
        """A new object each time; raises RunNotFound."""
        if run_id not in self._runs:
            raise RunNotFound(f"there is no run {run_id!r}")
        return RunState.model_validate_json(self._runs[run_id])

    async def runs(self) -> Sequence[RunState]:
        """All runs, oldest first."""
        return [RunState.model_validate_json(body) for body in self._runs.values()]

    async def conversation(self, conversation_id: str) -> Conversation:
        """A conversation; an unknown id is a new, empty one."""
        return self._conversations.get(conversation_id, Conversation(conversation_id))

    async def save_conversation(self, conversation: Conversation) -> None:
        """Keep a conversation."""
        self._conversations[conversation.id] = conversation


class Crash(BaseException):
    """The process died here. A BaseException: nothing may go on after it."""
