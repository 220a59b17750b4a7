"""A server as a process of its own, asked over real HTTP, with its files edited meanwhile."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any

import httpx2

from tests.cli.test_cli import ENVIRONMENT
from tests.support.forks import Fork

PATIENCE = 20.0
"""Seconds after which what does not come is missing."""
QUICK = {"AGENTSD_RELOAD__QUIET": "20ms", "AGENTSD_RELOAD__WIDENING_GRACE": "40ms"}
"""Edits go live sooner than with the defaults."""


@dataclass
class Served:
    """A running server."""

    url: str
    line: str
    """What it printed once it could be asked."""
    process: Fork
    key: str | None = None
    said: list[str] = field(default_factory=list)
    """What it printed after that, once it has ended."""

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"} if self.key else {}

    def ask(self, method: str, path: str, **options: Any) -> httpx2.Response:
        headers = {**self.headers, **options.pop("headers", {})}
        return httpx2.request(method, self.url + path, headers=headers, timeout=PATIENCE, trust_env=False, **options)

    def get(self, path: str, **options: Any) -> Any:
        response = self.ask("GET", path, **options)
        assert response.status_code == 200, response.text
        return response.json()

    def post(self, path: str, body: Any = None, **options: Any) -> Any:
        response = self.ask("POST", path, json=body, **options)
        assert response.status_code == 200, response.text
        return response.json()

    @contextmanager
    def listening(self, last_id: str | None = None) -> Iterator[Iterator[dict[str, Any]]]:
        """The events from now on, or after an id."""
        headers = {**self.headers, **({"last-event-id": last_id} if last_id else {})}
        url = f"{self.url}/agent/events"
        with httpx2.stream("GET", url, headers=headers, timeout=PATIENCE, trust_env=False) as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = response.iter_lines()
            assert next(lines).startswith("retry:"), "from here on nothing is missed"
            yield events_of(lines)

    def until_it_refuses(self) -> None:
        """Ask until it takes no new requests any more."""
        with suppress(httpx2.TransportError):
            while self.ask("GET", "/health").is_success:
                pass

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Have it end; returns its exit code."""
        self.process.send_signal(number)
        assert self.process.stdout
        self.said += self.process.stdout.read().splitlines()  # not communicate(): it knows nothing of lines read ahead
        return self.process.wait(PATIENCE)


def events_of(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The events of a stream, each with its id."""
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
    """`agentsd serve` on a free port, until the context ends."""
    env = {**ENVIRONMENT, **QUICK, **(environment or {})}
    words = ["serve", path, "--port", "0", *arguments]
    with Fork(words, cwd=root, env=env, text=True, stdout=PIPE, stderr=STDOUT) as process:
        assert process.stdout
        try:
            before: list[str] = []
            for line in iter(process.stdout.readline, ""):
                if found := re.search(r"http://\S+:\d+", line):
                    yield Served(found[0], line.strip(), process, key, before)
                    break
                before.append(line.rstrip())
            else:
                raise AssertionError(f"the server did not start: {before}")
        finally:
            if process.poll() is None:
                process.terminate()
                process.stdout.read()
