"""A model that replies from a script, for tests of agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from pydantic import BaseModel

from framework.llm.client import Delta, ModelInfo, ModelReply, ModelRequest
from framework.types.errors import ModelError
from framework.types.messages import Message, ToolCall, Usage
from framework.types.text import shorten

Turn = str | tuple[ToolCall, ...] | Message | BaseModel | BaseException
Script = Callable[[ModelRequest], Turn]
_SHOWN_CHARS = 80


def calls(*tools: tuple[str, dict[str, Any]], prefix: str = "c") -> tuple[ToolCall, ...]:
    """Return a turn that calls tools: `calls(("read_file", {"path": "a.txt"}))`. The ids are `c1`, `c2`, …"""
    return tuple(
        ToolCall(id=f"{prefix}{number}", tool=tool, arguments=arguments)
        for number, (tool, arguments) in enumerate(tools, 1)
    )


class ScriptedModel:
    """A model that replies from a script, one turn per request; `requests` records the requests it received.

    A turn is a text, tool calls, a message, a typed answer, or an exception to raise. Instead of turns, `script` can be
    a function that returns the turn for a request. A script that is too short, or contains anything else, fails the run
    with a message that says so; `mistakes` contains these messages.
    """

    def __init__(self, *turns: Turn, script: Script | None = None, tokens: int = 10) -> None:
        self._turns, self._length = list(turns), len(turns)
        self._script = script
        self._tokens = tokens
        self._info = ModelInfo(provider="scripted", model="", typed=True, stand_in=True)
        self.requests: list[ModelRequest] = []
        self.mistakes: list[str] = []
        """What is wrong with the script, as far as requests have shown."""

    @property
    def info(self) -> ModelInfo:
        """Provider, model and capabilities."""
        return self._info

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Yield the next turn; raise its exception, or ModelError if the script has no valid turn for the request."""
        self.requests.append(request)
        turn = self._script(request) if self._script else self._next()
        if isinstance(turn, BaseException):
            raise turn
        message = self._as_message(turn)
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
            turns = f"{self._length} turn" + ("" if self._length == 1 else "s")
            raise self._mistake(f"the script has {turns}, and the model received request {len(self.requests)}")
        return self._turns.pop(0)

    def _as_message(self, turn: Turn) -> Message:
        if isinstance(turn, Message):
            return turn
        if isinstance(turn, BaseModel):
            return Message(role="assistant", content=turn.model_dump_json(by_alias=True))
        if isinstance(turn, str):
            return Message(role="assistant", content=turn)
        if isinstance(turn, tuple) and all(isinstance(call, ToolCall) for call in turn):
            return Message(role="assistant", tool_calls=turn)
        given = f"turn {len(self.requests)} of the script is no turn: {shorten(repr(turn), _SHOWN_CHARS)}"
        raise self._mistake(
            f"{given}; write a text, calls((TOOL, ARGUMENTS)), a Message, a typed answer or an exception"
        )

    def _mistake(self, message: str) -> ModelError:
        self.mistakes.append(message)
        return ModelError(message)


def _words(text: str) -> Iterator[str]:
    for place, word in enumerate(text.split(" ") if text else ()):
        yield f" {word}" if place else word
