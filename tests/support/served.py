"""`agentsd serve` in a separate process, for tests that send HTTP requests and edit files."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE, STDOUT
from threading import Thread
from typing import IO, Any

import httpx2

from tests.support.commands import ENVIRONMENT
from tests.support.forks import Fork
from tests.support.loopback import LOOPBACK

PATIENCE = 30.0
"""Timeout of requests and of the process, in seconds."""
QUICK = {"AGENTSD_RELOAD__QUIET": "20ms", "AGENTSD_RELOAD__WIDENING_GRACE": "40ms"}
"""Shorter delays of edits than the defaults."""


@dataclass
class Served:
    """A running server."""

    url: str
    line: str
    """The line with the URL, which the server prints once it accepts requests."""
    process: Fork
    key: str | None = None
    output: list[str] = field(default_factory=list)
    """The lines around that one; complete after `stop`."""
    reader: Thread = field(default_factory=Thread)
    """Reads the output: a server that nobody reads blocks once its pipe is full."""

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"} if self.key else {}

    def request(self, method: str, path: str, **options: Any) -> httpx2.Response:
        headers = {**self.headers, **options.pop("headers", {})}
        return httpx2.request(method, self.url + path, headers=headers, timeout=PATIENCE, **LOOPBACK, **options)

    def get(self, path: str, **options: Any) -> Any:
        response = self.request("GET", path, **options)
        assert response.status_code == 200, response.text
        return response.json()

    def post(self, path: str, body: Any = None, **options: Any) -> Any:
        response = self.request("POST", path, json=body, **options)
        assert response.status_code == 200, response.text
        return response.json()

    @contextmanager
    def event_stream(self, last_id: str | None = None) -> Iterator[Iterator[dict[str, Any]]]:
        """Open an event stream, from now on or after an id."""
        headers = {**self.headers, **({"last-event-id": last_id} if last_id else {})}
        url = f"{self.url}/agent/events"
        with httpx2.stream("GET", url, headers=headers, timeout=PATIENCE, **LOOPBACK) as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = response.iter_lines()
            assert next(lines).startswith("retry:"), "from here on no event is missed"
            yield events_of(lines)

    def wait_until_refused(self) -> None:
        """Send requests until the server refuses new ones."""
        with suppress(httpx2.TransportError):
            while self.request("GET", "/health").is_success:
                pass

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop the server, and return its exit code."""
        self.process.send_signal(number)
        self.reader.join(2 * PATIENCE)
        return self.process.wait(PATIENCE)


def events_of(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream, each with its id."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            data = json.loads(fields["data"])
            assert data["event"] == fields["event"]
            yield {**data, "id": fields["id"]}
            fields = {}


@contextmanager
def served(
    root: Path,
    *arguments: str,
    path: str = ".",
    key: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Served]:
    """Run `agentsd serve` on a free port until the context ends."""
    env = {**ENVIRONMENT, **QUICK, **(environment or {})}
    words = ["serve", path, "--port", "0", *arguments]
    with Fork(words, cwd=root, env=env, text=True, stdout=PIPE, stderr=STDOUT) as process:
        assert process.stdout
        try:
            before: list[str] = []
            reader = Thread(target=_read, args=(process.stdout, before), daemon=True)
            for line in iter(process.stdout.readline, ""):
                if match := re.search(r"http://\S+:\d+", line):
                    reader.start()
                    yield Served(match[0], line.strip(), process, key, before, reader)
                    break
                before.append(line.rstrip())
            else:
                raise AssertionError(f"the server did not start: {before}")
        finally:
            if process.poll() is None:
                process.terminate()
            if reader.is_alive():
                reader.join(2 * PATIENCE)


def _read(output: IO[str], lines: list[str]) -> None:
    lines.extend(line.rstrip("\n") for line in output)
