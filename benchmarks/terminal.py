"""A chat on a terminal: the time until the first token is shown, and until a key is echoed while a run streams."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from tempfile import TemporaryDirectory
from threading import Thread
from time import perf_counter, sleep

from benchmarks.harness import Row, Table

HERE = Path(__file__).parent.parent
TOKENS_PER_SECOND = 200
FIRST_TOKEN_MS, KEY_MS = 50.0, 16.0
"""The most that a user should wait: the baselines."""
MARK, END = "firsttoken", "lasttoken"
SENTENCE = "\n\nSome **words** of a long answer, with `code` and a number like 42, in paragraphs."
ENDLESS = 100_000
AGENT = """\
version: 1
name: one
description: Streams words.
model: openai/words
instructions: Answer.
runtime_policy: {timeout: 10m, max_total_tokens: 100000000}
"""


class _Words(BaseHTTPRequestHandler):
    """Streams chat completions: the mark, then words, without end if the message is `long`."""

    sent: SimpleQueue[float] = SimpleQueue()
    """Times at which marks were sent."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        is_long = body["messages"][-1]["content"] == "long"
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        sleep(0.2)  # as a model that reads the message
        self.sent.put(perf_counter())
        with suppress(OSError):  # the run was cancelled
            self._send({"content": f"{MARK} "})
            words = re.findall(r"\s*\S+", SENTENCE)
            for number in range(ENDLESS if is_long else 3):
                sleep(1 / TOKENS_PER_SECOND)
                self._send({"content": words[number % len(words)]})
            self._send({"content": END}, "stop")
            self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _send(self, delta: dict[str, str], finish: str | None = None) -> None:
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "words"}
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        self.wfile.write(f"data: {json.dumps(chunk | {'choices': [choice]})}\n\n".encode())


def tables(*, quick: bool) -> Iterator[Table]:
    """Measure first tokens, then keys."""
    with _chat() as terminal:
        _read_until(terminal, b"you>")
        first = [_first_token(terminal) for _ in range(3 if quick else 6)]
        os.write(terminal, b"long\r")
        _read_until(terminal, MARK.encode())
        keys = [_key(terminal, number) for number in range(50 if quick else 100)]
    rows = [
        Row("first token: arrival to screen, median", median(first)),
        Row.limited("first token: slowest", max(first), FIRST_TOKEN_MS),
        Row(f"key at {TOKENS_PER_SECOND} tokens/s: press to echo, median", median(keys)),
        Row.limited("key: slowest of 100", sorted(keys)[-1 - len(keys) // 100], KEY_MS),
    ]
    yield Table("A chat on a terminal", "ms", rows)


@contextmanager
def _chat() -> Iterator[int]:
    """Start a chat on a pseudo-terminal; yield the descriptor of the other end."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Words)
    Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    model = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none"}
    environment = {**os.environ, **model, "TERM": "xterm-256color", "COLUMNS": "100", "PYTHONPATH": str(HERE)}
    with TemporaryDirectory() as folder:
        (Path(folder) / "one.yaml").write_text(AGENT, "utf-8")
        terminal, other = pty.openpty()
        command = [sys.executable, "-m", "framework.cli.main", "chat", "one.yaml"]
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=other, stdout=other, stderr=other, start_new_session=True
        )
        os.close(other)
        try:
            yield terminal
        finally:
            process.kill()
            process.wait()
            os.close(terminal)
            server.shutdown()


def _first_token(terminal: int) -> float:
    """Send a message; return the milliseconds from the first token's arrival until it is shown."""
    os.write(terminal, b"hi\r")
    _read_until(terminal, MARK.encode())
    shown = perf_counter()
    _read_until(terminal, END.encode())
    sleep(0.2)  # until the run has ended
    return (shown - _Words.sent.get()) * 1000


def _key(terminal: int, number: int) -> float:
    """Press a key; return the milliseconds until it is echoed."""
    sleep(0.037)  # not a multiple of a frame
    while select.select([terminal], [], [], 0)[0]:
        os.read(terminal, 65536)
    key = b"QZXJ"[number % 4 :][:1]  # in no word of the answer
    pressed = perf_counter()
    os.write(terminal, key)
    _read_until(terminal, key)
    return (perf_counter() - pressed) * 1000


def _read_until(terminal: int, text: bytes, seconds: float = 30) -> None:
    """Read what the chat writes up to `text`; raises TimeoutError."""
    shown = b""
    while text not in shown:
        if not select.select([terminal], [], [], seconds)[0]:
            raise TimeoutError(f"{text!r} is not shown: {shown[-200:]!r}")
        shown += os.read(terminal, 65536)
