"""A real HTTP server for tests that announces keep-alive and closes its connections nevertheless."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from queue import SimpleQueue
from typing import Literal

from tests.support.wire import Answer

Action = Literal["answer", "answer together", "answer and close", "close", "reset", "half a header", "half an answer"]
"""What the server does with a request. All but `answer` and `answer together` close the connection.

`answer together` waits until two requests have arrived, on connections of their own.
`reset` does not read the body. After `answer and close` the server still reads, so that it sees any further request.
"""


@dataclass(slots=True)
class ClosingServer:
    """The state of the server, which runs in its own thread."""

    response: bytes
    actions: Sequence[Action]
    """One for each request; the last one repeats."""
    url: str = ""
    """The base_url, with `/v1`."""
    connections: list[int] = field(default_factory=list)
    """The number of the connection of each request."""
    sizes: list[int] = field(default_factory=list)
    """Bytes of the body of each request that was read."""
    closed: threading.Event = field(default_factory=threading.Event)
    """Set when the server has closed a connection after its answer."""
    numbers: Iterator[int] = field(default_factory=count)
    together: asyncio.Barrier = field(default_factory=lambda: asyncio.Barrier(2))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = next(self.numbers)
        action: Action = "answer"
        try:
            while action.startswith("answer"):
                head = await reader.readuntil(b"\r\n\r\n")
                action = self.actions[min(len(self.connections), len(self.actions) - 1)]
                self.connections.append(number)
                if action == "reset":
                    writer.transport.abort()
                    break
                self.sizes.append(await _read_body(head, reader))
                if action == "answer together":
                    await self.together.wait()
                sent = {"close": 0, "half a header": 12, "half an answer": len(self.response) - 20}
                writer.write(self.response[: sent.get(action)])
                await writer.drain()
                if action == "answer and close":
                    writer.write_eof()
                    self.closed.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()


@contextmanager
def closing_server(answer: Answer, *actions: Action, streamed: bool) -> Iterator[ClosingServer]:
    """Serve an answer in its own thread.

    Args:
        answer: the answer to all requests.
        actions: what the server does with each request; the last one repeats.
        streamed: whether to send the answer as a stream.
    """
    server = ClosingServer(_streamed(answer) if streamed else _whole(answer), actions)
    started: SimpleQueue[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = SimpleQueue()

    async def main() -> None:
        stopped = asyncio.Event()
        listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, limit=1 << 16)
        started.put((listener.sockets[0].getsockname()[1], asyncio.get_running_loop(), stopped))
        await stopped.wait()
        listener.close()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    port, loop, stopped = started.get()
    server.url = f"http://127.0.0.1:{port}/v1"
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join()


async def _read_body(head: bytes, reader: asyncio.StreamReader) -> int:
    """Read a body of a known length, or in chunks; return its size."""
    lines = (line.partition(b":") for line in head.lower().split(b"\r\n"))
    headers = {name: value.strip() for name, _, value in lines}
    if b"content-length" in headers:
        return len(await reader.readexactly(int(headers[b"content-length"])))
    total, size = 0, -1
    while size:
        size = int(await reader.readuntil(b"\r\n"), 16)
        total += len(await reader.readexactly(size + 2)) - 2
    return total


def _whole(answer: Answer) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nconnection: keep-alive\r\ncontent-type: {answer.content_type}\r\n"
    return f"{head}content-length: {len(answer.body)}\r\n\r\n".encode() + answer.body


def _streamed(answer: Answer) -> bytes:
    head = "HTTP/1.1 200 OK\r\nconnection: keep-alive\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked"
    events = [data if data.startswith("event:") else f"data: {data}" for data in answer.streamed]
    chunks = [f"{event}\n\n".encode() for event in events]
    framed = [b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks, b"")]
    return head.encode() + b"\r\n\r\n" + b"".join(framed)
