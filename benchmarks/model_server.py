"""A scripted model server in a process of its own, in OpenAI's format: complete responses and streams."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SERVER = """
import asyncio, json, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends without a traceback
words = [" word"] * int(sys.argv[3]) + ["done"]
def answer(body):
    # a request that offers the tool `final_answer` wants the answer as an argument of it
    turn = body.count(b'"role":"assistant"') + body.count(b'"role": "assistant"')
    call = {"id": f"c{turn}", "type": "function", "function": {"name": "note", "arguments": json.dumps({"n": turn})}}
    more = turn < int(sys.argv[1])
    if not more and (b'"name":"final_answer"' in body or b'"name": "final_answer"' in body):
        call["function"], more = {"name": "final_answer", "arguments": json.dumps({"answer": "done"})}, True
    message = {"role": "assistant", "content": None if more else "done", **({"tool_calls": [call]} if more else {})}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if more else "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    head = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    return json.dumps({**head, "choices": [choice], "usage": usage}).encode()
def chunks(body):
    (choice,), usage = body.pop("choices"), body.pop("usage")
    head = {**body, "object": "chat.completion.chunk"}
    calls = choice["message"].get("tool_calls", ())
    deltas = [] if calls else [{"content": word} for word in words]
    for call in calls:
        text, call["function"]["arguments"] = call["function"]["arguments"], ""
        deltas.append({"tool_calls": [{**call, "index": 0}]})
        deltas += [{"tool_calls": [{"index": 0, "function": {"arguments": char}}]} for char in text]
    for delta in deltas:
        yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    yield {**head, "choices": [], "usage": usage}
async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\\r\\n\\r\\n")
            lines = (line.split(b":") for line in head.lower().split(b"\\r\\n"))
            size = next((int(line[1]) for line in lines if line[0] == b"content-length"), None)
            if size is None:  # a question about the server, which reports nothing of itself
                writer.write(b"HTTP/1.1 404 Not Found\\r\\ncontent-length: 0\\r\\n\\r\\n")
                continue
            request = await reader.readexactly(size)
            body = answer(request)
            await asyncio.sleep(float(sys.argv[2]))
            if b'"stream":true' in request.replace(b" ", b""):
                writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-type: text/event-stream\\r\\n")
                writer.write(b"transfer-encoding: chunked\\r\\n\\r\\n")
                for data in (*map(json.dumps, chunks(json.loads(body))), "[DONE]"):
                    event = b"data: " + data.encode() + b"\\n\\n"
                    writer.write(b"%x\\r\\n%b\\r\\n" % (len(event), event))
                    await asyncio.sleep(float(sys.argv[4]))
                writer.write(b"0\\r\\n\\r\\n")
                await writer.drain()
                continue
            writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-type: application/json\\r\\n")
            writer.write(b"content-length: %d\\r\\n\\r\\n" % len(body) + body)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 24, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


@contextmanager
def serving(turns: int, seconds: float = 0, *, words: int = 0, pause: float = 0) -> Iterator[str]:
    """Start a model server in another process. Yield its URL.

    Each response takes `seconds`; the first `turns` of them call the tool. A streamed answer has `words` more words,
    and `pause` seconds after each.
    """
    command = [sys.executable, "-c", SERVER, *map(str, (turns, seconds, words, pause))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.kill()
