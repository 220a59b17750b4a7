"""The processes of a fleet on one database: `agentsd serve --no-work` and `agentsd worker`, each with its own files."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import IO, Protocol

from examples.scale_demo.facts import Death
from examples.scale_demo.log import Entry, Log, read_log
from examples.scale_demo.project import write_project

PATIENCE = 60.0
"""Seconds within which a process must be ready, or have ended after SIGTERM."""
READY = re.compile(r"agentsd (?:\w+ .* at (http://\S+:\d+)|worker .* executes runs)")
"""The line that a process prints once it is ready."""


class Process(Protocol):
    """The part of `subprocess.Popen` that a fleet needs."""

    pid: int
    stdout: IO[str]

    def poll(self) -> int | None:
        """Return the exit code, or None if the process is running."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code."""
        ...

    def send_signal(self, number: int, /) -> None:
        """Send a signal, if the process is running."""
        ...


Launch = Callable[[Sequence[str], Path, Mapping[str, str]], Process]
"""Starts `agentsd` with these arguments, in this folder, with this environment. Its output is one pipe of text."""


def launch(arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Process:
    """Start `agentsd` in a new interpreter."""
    command = [sys.executable, "-m", "framework.cli.main", *arguments]
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout
    return process  # type: ignore[return-value]  # mypy does not narrow the type of an attribute's owner


class Member:
    """One process of the fleet, which can be killed and started again. Each life has a name of its own."""

    def __init__(self, name: str, folder: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name, self.folder = name, folder
        self.output: list[str] = []
        """All lines that its lives have printed."""
        self.url = ""
        """The address that it serves, once it is ready."""
        self.life = 0
        self._arguments, self._environment = arguments, environment
        self._process: Process | None = None
        self._ready = Event()
        self._reader = Thread()

    @property
    def process(self) -> str:
        """Name of the current life, such as `worker-1#2`: that of its entries in the log."""
        return f"{self.name}#{self.life}"

    @property
    def is_up(self) -> bool:
        """Whether it is ready, and was neither killed nor has ended."""
        return self._ready.is_set() and not self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether its process has ended."""
        return self._process is not None and self._process.poll() is not None

    @property
    def pid(self) -> int:
        """Process id of the current life."""
        assert self._process
        return self._process.pid

    def start(self, start: Launch) -> None:
        """Start the process, without waiting until it is ready."""
        self.life += 1
        self._ready = Event()
        self._process = start(self._arguments, self.folder, {**self._environment, "FLEET_PROCESS": self.process})
        self._reader = Thread(target=self._read, args=(self._process, self._ready), daemon=True)
        self._reader.start()

    async def ready(self) -> None:
        """Wait until it says that it is ready; raises RuntimeError with its output if it never does."""
        deadline, life, looks = monotonic() + PATIENCE, self.life, 0
        while not self.is_up:
            await asyncio.sleep(0.02)
            looks = looks + 1 if self.has_ended and life == self.life else 0
            if monotonic() > deadline or looks > 50:  # nobody starts it again
                raise RuntimeError(f"{self.name} did not start:\n" + "\n".join(self.output[-20:]))
            life = self.life

    def kill(self) -> Death:
        """Send SIGKILL."""
        return self.signal(signal.SIGKILL)

    def signal(self, number: int) -> Death:
        """Send a signal; return who got it when."""
        assert self._process
        if number == signal.SIGKILL:
            self._ready = Event()  # it is down from now on, although its end shows a moment later
        death = Death(self.process, monotonic())
        self._process.send_signal(number)
        return death

    async def ended(self) -> int:
        """Wait for the end of the process and of its output, and return its exit code."""
        assert self._process
        code = await asyncio.to_thread(self._process.wait, PATIENCE)
        await asyncio.to_thread(self._reader.join, PATIENCE)
        return code

    def _read(self, process: Process, ready: Event) -> None:
        """Read the output to its end: a process that nobody reads blocks once its pipe is full."""
        with process.stdout as lines:
            for line in lines:
                self.output.append(line.rstrip())
                if not ready.is_set() and (found := READY.search(line)):
                    self.url = found[1] or ""
                    ready.set()
        ready.set()


class Fleet:
    """One API and its workers."""

    def __init__(self, root: Path, *, url: str, model: str, log: Path, start: Launch = launch) -> None:
        """Name the parts; nothing is started.

        Args:
            root: an empty folder.
            url: of the PostgreSQL database.
            model: base URL of the model server.
            log: file in which the tool of the runs notes what it does.
            start: starts a process.
        """
        self.members: dict[str, Member] = {}
        self._root, self._url, self._model, self._log, self._start = root, url, model, log, start
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AGENTSD_")}
        self._environment = {**inherited, "FLEET_LOG": str(log)}
        Log(log).close()

    @property
    def entries(self) -> list[Entry]:
        """The log of what its runs have done so far."""
        return read_log(self._log)

    @property
    def api(self) -> Member:
        """The process that accepts runs."""
        return self.members["api"]

    @property
    def workers(self) -> list[Member]:
        """The processes that execute runs."""
        return [member for name, member in self.members.items() if name != "api"]

    def add(
        self,
        name: str,
        *options: str,
        command: Sequence[str] = (),
        lease: float | None = None,
        url: str = "",
        files: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Member:
        """Add a process and start it: `api`, or a worker.

        Args:
            name: its name in the log, and of its folder.
            options: of its command.
            command: in place of `serve --no-work` for `api`, and of `worker` for others.
            lease: in seconds. Default: that of agentsd.
            url: of the database, where it differs from that of the fleet.
            files: further files of its project.
            environment: further variables.
        """
        folder = write_project(self._root / name, url=url or self._url, model=self._model, lease=lease, files=files)
        usual = ["serve", "--no-work"] if name == "api" else ["worker", "--name", name]
        member = Member(name, folder, [*(command or usual), *options], {**self._environment, **(environment or {})})
        self.members[name] = member
        member.start(self._start)
        return member

    async def ready(self) -> None:
        """Wait until all processes are ready."""
        async with asyncio.TaskGroup() as group:
            for member in self.members.values():
                group.create_task(member.ready())

    async def restart(self, member: Member) -> None:
        """Start a member again after its process has ended, and wait until it is ready."""
        await member.ended()
        member.start(self._start)
        await member.ready()

    @asynccontextmanager
    async def supervised(self) -> AsyncIterator[None]:
        """Start members that end again, as a process supervisor does, until the context ends and all are ready."""

        async def supervise() -> None:
            while True:
                for member in self.members.values():
                    if member.has_ended:
                        member.start(self._start)
                await asyncio.sleep(0.02)

        task = asyncio.create_task(supervise())
        try:
            yield
            await self.ready()
        finally:
            task.cancel()

    def processes(self, name: str = "") -> dict[str, str]:
        """Return the process that acted last for each run whose name begins with `name`."""
        return {entry.run: entry.process for entry in self.entries if entry.run.startswith(name)}

    async def busiest(self, name: str, runs: int) -> Member:
        """Wait until this many runs whose names begin with `name` act; return the process that executes most."""
        async with asyncio.timeout(PATIENCE):
            while len(acting := self.processes(name)) < runs:  # noqa: ASYNC110 - other processes write the log
                await asyncio.sleep(0.02)
        busiest, _ = Counter(acting.values()).most_common(1)[0]
        return next(member for member in self.members.values() if member.process == busiest)

    async def close(self) -> None:
        """End all processes."""
        for member in self.members.values():
            member.signal(signal.SIGCONT)
            member.signal(signal.SIGTERM)
        for member in self.members.values():
            try:
                await asyncio.wait_for(member.ended(), 10)
            except TimeoutError:
                member.kill()
