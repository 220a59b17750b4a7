"""Fakes for testing your own agents: a model that says what you script, and a store that survives a crash.

model = ScriptedModel(calls(("read_file", {"path": "a.txt"})), "It says hello.")
async with Runtime.open(".", models={"scripted": model}) as runtime:
result = await runtime.run("What is in a.txt?", agent="reader")
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from pydantic import BaseModel

from framework.llm.client import Delta, ModelInfo, ModelReply, ModelRequest
from framework.memory.store import Conversation
from framework.types.errors import RunNotFound
from framework.types.messages import Message, ToolCall, Usage
from framework.types.state import RunState

Turn = str | tuple[ToolCall, ...] | Message | BaseModel | BaseException
Script = Callable[[ModelRequest], Turn]


def calls(*wanted: tuple[str, dict[str, Any]], prefix: str = "c") -> tuple[ToolCall, ...]:
    """A turn in which the model asks for tools: `calls(("read_file", {"path": "a.txt"}))`; ids are `c1`, `c2`, …"""
    return tuple(
        ToolCall(id=f"{prefix}{number}", tool=tool, arguments=arguments)
        for number, (tool, arguments) in enumerate(wanted, 1)
    )


class ScriptedModel:
    """A model that answers by script, turn by turn; `requests` keeps what it was asked.

    A turn is a text, calls, a whole message, a typed answer, or an exception to raise; or the script is one function of
    the request.
    """

    def __init__(self, *turns: Turn, script: Script | None = None, tokens: int = 10) -> None:
        self._turns = list(turns)
        self._script = script
        self._tokens = tokens
        self.requests: list[ModelRequest] = []

    @property
    def info(self) -> ModelInfo:
        """It answers typed requests by itself."""
        return ModelInfo(provider="scripted", model="", typed=True)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """The next turn; raises AssertionError when the script has ended."""
        self.requests.append(request)
        turn = self._script(request) if self._script else self._next()
        if isinstance(turn, BaseException):
            raise turn
        message = _as_message(turn)
        if request.stream:
            for word in message.content.split(" "):
                yield Delta(text=word if message.content.startswith(word) else " " + word)
        half = self._tokens // 2
        usage = Usage(prompt_tokens=self._tokens - half, completion_tokens=half, total_tokens=self._tokens)
        yield Delta(reply=ModelReply(message, "tool_calls" if message.tool_calls else "stop", usage, "scripted"))

    async def close(self) -> None:
        """Nothing is held."""

    def _next(self) -> Turn:
        if not self._turns:
            raise AssertionError(f"the script has ended, but the model was asked again (request {len(self.requests)})")
        return self._turns.pop(0)


def _as_message(turn: Turn) -> Message:
    if isinstance(turn, Message):
        return turn
    if isinstance(turn, BaseModel):
        return Message(role="assistant", content=turn.model_dump_json())
    if isinstance(turn, str):
        return Message(role="assistant", content=turn)
    assert isinstance(turn, tuple)
    return Message(role="assistant", tool_calls=turn)


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
