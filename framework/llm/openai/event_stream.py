"""Reads the events of a streamed response from its bytes, without the SDK's decoder, which costs ten times as much.

See docs/design/033-streaming.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import orjson

from framework.llm.openai.server_error import ServerError
from framework.llm.stream_assembler import STREAM_END

if TYPE_CHECKING:
    import httpx2

_EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_DONE = STREAM_END.encode()


class EventStream:
    """The events of a response, each parsed from JSON. Comments and other fields than `data` are skipped.

    Args:
        response: a response of type `text/event-stream`, whose body has not been read.
    """

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self._chunks: AsyncIterator[bytes] | None = None
        self._rest: list[bytes] = []
        """The beginning of an event whose end has not arrived."""
        self._failure: Exception | None = None
        self._is_done = False

    async def read(self) -> list[Any] | None:
        """Return the next events, all that have arrived, or None after the last one, which may be `STREAM_END`.

        Raises:
            ServerError: an event reports an error.
            ValueError: an event is not JSON.
            httpx2.HTTPError: the connection was lost.
        """
        if self._chunks is None:
            self._chunks = self.response.aiter_bytes()
        while not self._is_done and self._failure is None:
            chunk = await anext(self._chunks, None)
            if chunk is None:
                if _data(b"".join(self._rest)).startswith(_DONE):  # some servers leave out the empty line after it
                    self._is_done = True
                    return [STREAM_END]
                break
            if events := self._parse(chunk):
                return events
        if self._failure is not None:
            raise self._failure
        return None

    async def close(self) -> None:
        """Close the response; its connection is kept only if the response was read to its end."""
        await self.response.aclose()

    def _parse(self, chunk: bytes) -> list[Any]:
        """Return the events that this chunk completes, up to the first one that is or reports an error."""
        events: list[Any] = []
        try:
            for block in self._blocks(chunk):
                data = _data(block)
                if not data:
                    continue
                if data.startswith(_DONE):
                    self._is_done = True
                    events.append(STREAM_END)
                    break
                events.append(self._event(data))
        except (ValueError, ServerError) as error:
            self._failure = error
        return events

    def _blocks(self, chunk: bytes) -> list[bytes]:
        """Return the events that this chunk completes, as text; only chunks with the end of a line are searched."""
        self._rest.append(chunk)
        if b"\n" not in chunk and b"\r" not in chunk:
            return []
        text = b"".join(self._rest)
        *blocks, rest = text.split(b"\n\n") if b"\r" not in text else _EVENT_END.split(text)
        self._rest = [rest]
        return blocks

    def _event(self, data: bytes) -> Any:
        try:
            event = orjson.loads(data)
        except ValueError:
            event = json.loads(data)  # accepts NaN and lone surrogates, which orjson rejects
        if isinstance(event, dict) and (error := event.get("error")):
            message = error.get("message") if isinstance(error, dict) else None
            text = message if isinstance(message, str) and message else "the stream ended with an error"
            raise ServerError(text, error)
        return event


def _data(block: bytes) -> bytes:
    """Return the `data` of an event; nearly all events consist of one such line."""
    if block.startswith(b"data: ") and b"\n" not in block and b"\r" not in block:
        return block[6:]
    fields = (line.partition(b":") for line in block.splitlines())
    return b"\n".join(value.removeprefix(b" ") for name, _, value in fields if name == b"data")
