"""A model that replies from a script, for tests of agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from pydantic import BaseModel

from framework.llm.client import Delta, ModelInfo, ModelReply, ModelRequest
from framework.types.messages import Message, ToolCall, Usage

Turn = str | tuple[ToolCall, ...] | Message | BaseModel | BaseException
Script = Callable[[ModelRequest], Turn]


def calls(*tools: tuple[str, dict[str, Any]], prefix: str = "c") -> tuple[ToolCall, ...]:
    """Return a turn that calls tools: `calls(("read_file", {"path": "a.txt"}))`. The ids are `c1`, `c2`, …"""
    return tuple(
        ToolCall(id=f"{prefix}{number}", tool=tool, arguments=arguments)
        for number, (tool, arguments) in enumerate(tools, 1)
    )


class ScriptedModel:
    """A model that replies from a script, one turn per request; `requests` records the requests it received.

    A turn is a text, tool calls, a message, a typed answer, or an exception to raise. Instead of turns, `script` can be
    a function that returns the turn for a request.
    """

    def __init__(self, *turns: Turn, script: Script | None = None, tokens: int = 10) -> None:
        self._turns = list(turns)
        self._script = script
        self._tokens = tokens
        self._info = ModelInfo(provider="scripted", model="", typed=True, stand_in=True)
        self.requests: list[ModelRequest] = []

    @property
    def info(self) -> ModelInfo:
        """Provider, model and capabilities."""
        return self._info

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Yield the next turn; raise AssertionError when the script has ended."""
        self.requests.append(request)
        turn = self._script(request) if self._script else self._next()
        if isinstance(turn, BaseException):
            raise turn
        message = _as_message(turn)
        if request.stream:
            for word in _words(message.reasoning.text if message.reasoning else ""):
                yield Delta(reasoning=word)
                await asyncio.sleep(0)  # as a network would, let readers run between two deltas
            for word in _words(message.content):
                yield Delta(text=word)
                await asyncio.sleep(0)
        half = self._tokens // 2
        usage = Usage(prompt_tokens=self._tokens - half, completion_tokens=half, total_tokens=self._tokens)
        yield Delta(reply=ModelReply(message, "tool_calls" if message.tool_calls else "stop", usage, "scripted"))

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    def _next(self) -> Turn:
        if not self._turns:
            raise AssertionError(f"the script has ended, but the model received request {len(self.requests)}")
        return self._turns.pop(0)


def _words(text: str) -> Iterator[str]:
    for place, word in enumerate(text.split(" ") if text else ()):
        yield f" {word}" if place else word


def _as_message(turn: Turn) -> Message:
    if isinstance(turn, Message):
        return turn
    if isinstance(turn, BaseModel):
        return Message(role="assistant", content=turn.model_dump_json())
    if isinstance(turn, str):
        return Message(role="assistant", content=turn)
    assert isinstance(turn, tuple)
    return Message(role="assistant", tool_calls=turn)
