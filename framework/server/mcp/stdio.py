"""`agentsd mcp`: serves one MCP client over standard input and output."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from mcp.server.stdio import stdio_server

from framework.config.settings import Settings
from framework.engine.runtime.runtime import Runtime
from framework.server.event_stream import OpenStreams
from framework.server.identity import LOCAL
from framework.server.key_limits import KeyLimits
from framework.server.mcp.agents import AgentServer, McpCaller
from framework.server.run_service import RunService
from framework.server.stdio import ended_by_signals, protocol_streams

log = logging.getLogger(__name__)

_NO_FORM = "A person must decide, but this client shows no forms, or the form was closed. "
_DECIDE = _NO_FORM + "Ask the user to run this in the project's folder: agentsd runs decide {run_id}"
_DECIDE_NOWHERE = _NO_FORM + "Use a client that supports elicitation, or set store.url to decide in a terminal"
_READ_BYTES = 64 * 1024
_MAX_LINE_BYTES = 16 * 1024 * 1024
"""Size limit of one message of the client. A larger one ends the connection."""
_MAX_WAITING = 100
"""Number of messages that wait to be handled before no more are read."""


async def serve_stdio(
    root: Path, settings: Settings, agents: tuple[str, ...] | None, started: Callable[[Runtime], None]
) -> None:
    """Serve a project until the client closes standard input, or a signal. Only the protocol reaches standard output.

    Args:
        root: the project's folder, or its single agent file.
        settings: the store.
        agents: agents that become tools. None: all.
        started: called with the runtime once it is open.

    Raises:
        ConfigError: the files are invalid.
        StoreError: the store cannot be opened.
    """
    url = settings.store.url.get_secret_value()
    with protocol_streams() as (source, target):
        async with Runtime.open(root, store=url, single_user=True) as runtime:
            started(runtime)
            caller = McpCaller(replace(LOCAL, agents=agents), _DECIDE if runtime.store.durable else _DECIDE_NOWHERE)
            limits = KeyLimits(runtime.store, settings.server)
            server = AgentServer(RunService(runtime, limits, OpenStreams()), lambda _: caller)
            try:
                with ended_by_signals((lines := _Lines(source)).end):
                    # The SDK's parameters are typed as files of anyio, of which it uses three methods.
                    async with stdio_server(cast(Any, lines), cast(Any, _Output(target))) as streams:
                        incoming, outgoing = streams
                        await server.server.run(incoming, outgoing, server.server.create_initialization_options())
            finally:
                server.close()


class _Lines:
    """The lines of a descriptor, read in a thread that the process does not wait for when it ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: asyncio.Queue[str | None] = asyncio.Queue(_MAX_WAITING)
        self._is_ended = False

    def end(self) -> None:
        """Yield no further line."""
        self._is_ended = True
        if not self._lines.full():
            self._lines.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[str]:
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(loop,), name="mcp input", daemon=True).start()
        while (line := await self._lines.get()) is not None and not self._is_ended:
            yield line

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """Put each line into the queue, and None at the end."""
        with suppress(RuntimeError):  # the event loop is closed
            for line in self._split():
                asyncio.run_coroutine_threadsafe(self._lines.put(line), loop).result()
            asyncio.run_coroutine_threadsafe(self._lines.put(None), loop).result()

    def _split(self) -> Iterator[str]:
        rest = b""
        while chunk := self._chunk():
            *lines, rest = (rest + chunk).split(b"\n") if b"\n" in chunk else (rest + chunk,)
            yield from (line.decode("utf-8", "replace") for line in lines if line.strip())
            if len(rest) > _MAX_LINE_BYTES:
                log.error("the client sent a message of more than %d bytes: the connection is closed", _MAX_LINE_BYTES)
                return

    def _chunk(self) -> bytes:
        with suppress(OSError):
            return os.read(self._descriptor, _READ_BYTES)
        return b""


class _Output:
    """Writes text to a descriptor. A client that is gone is noticed by its input."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def write(self, text: str) -> None:
        """Write a text completely, without delaying the event loop."""
        with suppress(OSError):
            await asyncio.to_thread(self._write, text.encode("utf-8", "replace"))

    async def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._descriptor, data) :]
