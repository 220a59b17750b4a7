"""`agentsd worker` in a separate process."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE, STDOUT
from threading import Thread

from tests.support.commands import ENVIRONMENT
from tests.support.forks import Fork

PATIENCE = 30.0
"""Timeout in seconds, for waits that should be short."""


@dataclass
class WorkerProcess:
    """A running worker."""

    process: Fork
    output: list[str] = field(default_factory=list)
    """Its lines until now: the last one says that it executes runs. Complete after `stop`."""
    reader: Thread = field(default_factory=Thread)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop the worker, and return its exit code."""
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self.reader.join(PATIENCE)
        return code


@contextmanager
def working(root: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[WorkerProcess]:
    """Run `agentsd worker` until the context ends, from when it executes runs."""
    env = {**ENVIRONMENT, **(environment or {})}
    with Fork(["worker", ".", *arguments], cwd=root, env=env, text=True, stdout=PIPE, stderr=STDOUT) as process:
        assert process.stdout
        worker = WorkerProcess(process)
        try:
            for line in iter(process.stdout.readline, ""):
                worker.output.append(line.rstrip("\n"))
                if "executes runs" in line:
                    break
            else:
                raise AssertionError(f"the worker did not start: {worker.output}")
            rest = process.stdout
            worker.reader = Thread(target=lambda: worker.output.extend(one.rstrip("\n") for one in rest), daemon=True)
            worker.reader.start()
            yield worker
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(PATIENCE)
            worker.reader.join(PATIENCE)
