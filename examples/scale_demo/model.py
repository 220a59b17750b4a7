"""A model server on loopback with OpenAI's API: it calls the tool as often as the message says, then answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from examples.scale_demo.log import Log


@dataclass(frozen=True, slots=True)
class Work:
    """What a run does. Its message carries it to the model."""

    run: str
    """`CONVERSATION.TURN`."""
    steps: int
    """Number of tool calls, one after another."""
    model_seconds: float
    """Time that the model takes for each of its replies."""
    tool_seconds: float
    """Time that each tool call takes."""

    @property
    def message(self) -> str:
        """The user's message of the run."""
        return json.dumps([self.run, self.steps, self.model_seconds, self.tool_seconds])


@asynccontextmanager
async def model_server(log: Log) -> AsyncIterator[str]:
    """Serve the model while the context is open; yield its base URL.

    The API key of a request is the name of the process that sent it, and goes into the log.
    """
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        connections.add(task)
        try:
            while True:
                await _serve_request(reader, writer, log)
        except (asyncio.IncompleteReadError, ConnectionError):  # the client was killed, or has closed its connection
            pass
        finally:
            connections.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 24, backlog=1024)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.wait([*connections, asyncio.create_task(server.wait_closed())])


async def _serve_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, log: Log) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    fields = dict(line.decode().lower().split(": ", 1) for line in head.split(b"\r\n")[1:-2])
    body = await reader.readexactly(int(fields.get("content-length", 0)))
    if b" /v1/chat/completions " not in head.splitlines()[0]:  # a client that asks what kind of server this is
        writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        return
    process = fields["authorization"].removeprefix("bearer ")
    request = json.loads(body)
    messages = request["messages"]
    begin = max(place for place, message in enumerate(messages) if message["role"] == "user")
    step = sum(message["role"] == "tool" for message in messages[begin:])
    work = Work(*json.loads(_text(messages[begin]["content"])))
    log.add("asked", work.run, step, process)
    await asyncio.sleep(work.model_seconds)
    reply = json.dumps(_reply(work, step, request["tools"][0]["function"]["name"])).encode()
    if step == work.steps and not reader.at_eof():  # a killed process gets no answer
        log.add("answered", work.run, step, process)
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(reply) + reply
    )
    await writer.drain()


def _text(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else content[0]["text"]


def _reply(work: Work, step: int, tool: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": f"{work.run} is done"}
    if step < work.steps:
        arguments = {"run": work.run, "step": step, "seconds": work.tool_seconds}
        function = {"name": tool, "arguments": json.dumps(arguments)}
        call = {"id": f"call_{step}", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if step < work.steps else "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
