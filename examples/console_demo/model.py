"""The model of the demo: it replies from the stories, a few words at a time, and counts tokens like a real one."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from examples.console_demo.stories import reply_to
from framework.llm.capabilities import Capabilities, Prices, with_cost
from framework.llm.client import Delta, ModelInfo, ModelReply, ModelRequest
from framework.types.messages import Message, Usage

PRICES = {"house-small": Prices(input=0.4, output=1.6), "house-large": Prices(input=2.5, output=10)}
_CHARS_PER_TOKEN = 4
_TOKENS_OF_TOOL = 60


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the model replies, in seconds."""

    first: float
    """Up to the first word, on average."""
    word: float
    """Between two words."""


LIVE = Pace(first=0.5, word=0.03)
"""As a fast model on a good day, so that you can watch it."""
HURRIED = Pace(first=0.012, word=0)
"""For runs whose times are stretched afterwards."""


class ShopModel:
    """A model client without a server."""

    def __init__(self, name: str, pace: Pace) -> None:
        self._pace = pace
        capabilities = Capabilities(tools=True, prices=PRICES[name], context_window=128_000)
        self._info = ModelInfo("house", name, typed=True, stand_in=True, capabilities=capabilities)

    @property
    def info(self) -> ModelInfo:
        """Name and prices."""
        return self._info

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Yield the reply in words; raise ModelError where the story says so."""
        sent = "\n".join(message.content for message in request.messages)
        await asyncio.sleep(self._pace.first * (0.5 + zlib.crc32(sent.encode()) % 100 / 100))
        reply = reply_to(request)
        if isinstance(reply, Exception):
            raise reply
        if request.stream:
            async for delta in self._words(reply):
                yield delta
        usage = with_cost(_usage(request, sent, reply), self._info.capabilities)
        yield Delta(reply=ModelReply(reply, "tool_calls" if reply.tool_calls else "stop", usage, self._info.model))

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    async def _words(self, reply: Message) -> AsyncIterator[Delta]:
        for word in _split(reply.reasoning.text if reply.reasoning else ""):
            yield Delta(reasoning=word)
            await asyncio.sleep(self._pace.word / 2)
        for word in _split(reply.content):
            yield Delta(text=word)
            await asyncio.sleep(self._pace.word)


def shop_models(pace: Pace) -> dict[str, ShopModel]:
    """Return the models by the names that the agent files use."""
    return {name: ShopModel(name, pace) for name in PRICES}


def _split(text: str) -> Iterator[str]:
    """Yield a text in pieces: words, or a few characters of a text without spaces."""
    for place, word in enumerate(text.split(" ") if text else ()):
        space = " " if place else ""
        for begin in range(0, max(len(word), 1), 12):
            yield (space if begin == 0 else "") + word[begin : begin + 12]


def _usage(request: ModelRequest, sent: str, reply: Message) -> Usage:
    arguments = sum(len(str(call.arguments)) for call in reply.tool_calls)
    thought = len(reply.reasoning.text) if reply.reasoning else 0
    prompt = len(sent) // _CHARS_PER_TOKEN + _TOKENS_OF_TOOL * len(request.tools) + 180
    completion = (len(reply.content) + arguments + thought) // _CHARS_PER_TOKEN + 8
    return Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)
