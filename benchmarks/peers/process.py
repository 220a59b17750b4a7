"""The process of a peer, seen from the benchmark."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from select import select
from tempfile import TemporaryFile
from typing import IO, Any

from benchmarks.peers.environment import ROOT, python
from benchmarks.peers.job import Done, Job

_END_SECONDS = 10
_ANSWER_SECONDS = 180
"""After how long a worker that gives no answer is ended; it should have reported before that a job takes too long."""


class PeerFailed(Exception):
    """A peer did not execute a job as expected."""


class PeerProcess:
    """A worker that executes one job at a time."""

    def __init__(self, process: subprocess.Popen[str], log: IO[str]) -> None:
        self._process, self._log = process, log

    def execute(self, job: Job) -> Done:
        """Execute a job and wait for its result. Raises PeerFailed."""
        return Done(**self.ask(asdict(job)))

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request, and return its result. Raises PeerFailed."""
        self.send(request)
        return self.receive()

    def send(self, request: dict[str, Any]) -> None:
        """Send a request as JSON, without waiting for its result."""
        assert self._process.stdin
        with suppress(BrokenPipeError):  # `receive` raises the reason
            print(json.dumps(request), file=self._process.stdin, flush=True)

    def receive(self) -> dict[str, Any]:
        """Return the result of a request. Raises PeerFailed."""
        assert self._process.stdout
        if not select([self._process.stdout], [], [], _ANSWER_SECONDS)[0]:
            self.kill()
            raise PeerFailed(f"gave no answer within {_ANSWER_SECONDS} s")
        line = self._process.stdout.readline()
        result: dict[str, Any] = json.loads(line) if line else {"error": self.last_words()}
        if "error" in result:
            raise PeerFailed(result["error"])
        return result

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """End the process as `kill -9` does."""
        self._process.kill()
        self._process.wait()

    def last_words(self) -> str:
        """Return the exit status of the process, and the last line that it wrote to standard error."""
        status = self._process.wait()
        self._log.seek(0)
        return f"ended with status {status}: {(self._log.read().strip().splitlines() or ['no message'])[-1][:500]}"


@contextmanager
def started(name: str, module: str = "benchmarks.peers.worker", *arguments: str) -> Iterator[PeerProcess]:
    """Start the worker of a peer; raises NotMeasured if its packages are not installed."""
    command = [str(python(name)), "-m", module, name, *arguments]
    # with its bytecode cached, each start but the first imports as an installed program does
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    with TemporaryFile("w+", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        with process:
            try:
                yield PeerProcess(process, log)
                assert process.stdin
                process.stdin.close()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_END_SECONDS)
            finally:
                process.kill()
