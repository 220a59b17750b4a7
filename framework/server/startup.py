"""Starts and stops a server or worker, and the work that it does beside requests."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from math import inf
from pathlib import Path
from random import uniform
from select import select
from threading import Thread
from typing import TYPE_CHECKING, Any

from framework.config.agents.models import named_models
from framework.config.generations.generation import Generation
from framework.config.settings import Settings
from framework.engine.routing import NO_AGENTS
from framework.engine.runtime.background import ESSENTIAL, EmbeddedSource, PeriodicJob, WorkSource, essential
from framework.engine.runtime.presence import Presence, ProcessKind
from framework.engine.runtime.project import project_folder
from framework.engine.runtime.runtime import Runtime
from framework.engine.triggers import Triggers
from framework.llm.providers import import_sdks
from framework.store import MEMORY_URL, open_store
from framework.store.types import EVERYTHING, WorkScope
from framework.telemetry.metrics import ServerMetrics
from framework.telemetry.redact import safe_traceback
from framework.types.errors import AgentsdError, ClockRefused, ConfigError, StoreError, StoreLost, StoreTooNew
from framework.types.installation import install_command
from framework.types.report import ProcessDetails

if TYPE_CHECKING:
    from framework.store.store import Store

log = logging.getLogger(__name__)
START_RETRY_SECONDS = 30.0
"""How long a part of a fleet waits at its start for a store that is unreachable; then a supervisor starts it again."""
RETRY_INTERVAL_SECONDS = 3.0


@asynccontextmanager
async def open_working(
    root: str | Path,
    settings: Settings,
    capacity: int,
    scope: WorkScope = EVERYTHING,
    *,
    kind: ProcessKind,
    name: str | None = None,
    retry_seconds: float = 0,
    allow_empty: bool = False,
) -> AsyncIterator[Runtime]:
    """Open a project with the store and the work source of its settings, and report this process to the others.

    Args:
        root: the project's folder, or its single agent file.
        settings: the store and the work source. The project reads its other settings itself.
        capacity: number of queued and continued runs that this process executes at once; 0: it only accepts runs.
        scope: the runs that it executes.
        kind: the command that this process executes.
        name: its name in reports. Default: host and process id.
        retry_seconds: how long to wait for a store that is unreachable.
        allow_empty: open a project without any valid agent, too.

    Raises:
        ConfigError: the settings or files are invalid, no agent is valid, or the work source does not fit the store.
        StoreError: the store cannot be opened.
    """
    folder = project_folder(root)
    store = await _open_store(settings, folder, time.monotonic() + retry_seconds)
    presence: Presence | None = None
    try:
        async with (
            open_work(settings, folder, capacity, scope) as work,
            Runtime.open(root, store=store, work=work) as runtime,
        ):
            if not (allow_empty or runtime.catalog.current.agents):
                cause = "no valid agent" if runtime.catalog.current.errors else NO_AGENTS
                raise ConfigError(f"{cause}; --allow-empty starts without one", runtime.catalog.current.errors)
            if capacity:  # before it claims runs, which would wait for the import
                await asyncio.to_thread(import_sdks, model_names(runtime.catalog.current))
            presence = runtime.presence
            await presence.announce(kind, name)
            yield runtime
    finally:
        if presence is not None:
            await presence.close()  # after the runtime, whose runs are in progress until then
        await store.close()


def model_names(generation: Generation) -> set[str]:
    """Return the models that the agents of a generation call, as `provider/model`."""
    settings = generation.settings
    names = {settings.model, settings.routing.model or settings.model}
    names |= {model for agent in generation.agents.values() for _, model in named_models(agent.spec)}
    return {alias.model if (alias := settings.models.get(name)) else name for name in names}


async def _open_store(settings: Settings, root: Path, deadline: float) -> Store:
    while True:
        try:
            return await open_store(settings.store.url.get_secret_value(), root, settings.store.lease)
        except StoreTooNew:
            raise
        except StoreError as error:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise
            log.warning("%s; trying again for %.0f s", error.message, remaining)
            await asyncio.sleep(min(RETRY_INTERVAL_SECONDS, remaining))


_SWEEP_INTERVAL_SECONDS = 1.0
_COUNT_INTERVAL_SECONDS = 10.0
_PRUNE_INTERVAL_SECONDS = 3600.0
_EACH_MINUTE, _EACH_HOUR = "* * * * *", "0 * * * *"
LOST_SECONDS = 10.0
"""Time without a usable store after which a process ends, so that its supervisor starts another."""
_Job = Callable[[], Awaitable[object]]


@asynccontextmanager
async def housekeeping(
    runtime: Runtime, metrics: ServerMetrics, retention: float | None = None, *each_second: _Job
) -> AsyncIterator[Callable[[], None]]:
    """Execute runs of the store, and do the periodic work, while the context is open, starting immediately.

    A work source that knows of all processes does in one of them what concerns the whole store.

    Yields a function that stops it early, so that a server that is about to stop takes over no more runs.

    Runs are kept for `retention` seconds after they have ended; None keeps them forever.
    """
    work, expire, prune = runtime.work, runtime.expire, partial(_prune, runtime, retention)
    jobs: list[tuple[float, _Job]] = [(_COUNT_INTERVAL_SECONDS, _WaitingRuns(runtime, metrics).count)]
    if work.capacity == 0:
        jobs.append((_SWEEP_INTERVAL_SECONDS, expire))
    else:
        jobs.append((_SWEEP_INTERVAL_SECONDS, partial(_sweep, runtime)))
        work.repeat(PeriodicJob("expire", _EACH_MINUTE, partial(_guarded, metrics, expire)))
        if not work.repeat(PeriodicJob("prune", _EACH_HOUR, partial(_guarded, metrics, prune))):
            jobs.append((_PRUNE_INTERVAL_SECONDS, prune))
    jobs += [(_SWEEP_INTERVAL_SECONDS, job) for job in (Triggers(runtime).tick, *each_second)]
    loop = asyncio.get_running_loop()
    tasks = [
        essential(loop.create_task(_repeat(metrics, interval, job), name="housekeeping")) for interval, job in jobs
    ]
    work.wake()

    def stop() -> None:
        work.release()
        for task in tasks:
            task.cancel()

    try:
        yield stop
    finally:
        stop()
        await asyncio.wait(tasks)


async def _repeat(metrics: ServerMetrics, interval: float, job: _Job) -> None:
    """Do the job again and again; raise StoreLost once this process has not been able to use the store for a while."""
    loop, lost_since = asyncio.get_running_loop(), inf
    while True:
        lost = await _try(metrics, job)
        lost_since = inf if lost is None else min(lost_since, loop.time())
        if lost is not None and loop.time() - lost_since >= LOST_SECONDS:
            raise lost
        await asyncio.sleep(interval * uniform(0.8, 1.2))  # so that processes do not do it at the same moment


async def _guarded(metrics: ServerMetrics, job: _Job) -> None:
    await _try(metrics, job)


async def _try(metrics: ServerMetrics, job: _Job) -> StoreLost | None:
    """Do a job, and log its errors; return the one with which this process has lost its store."""
    try:
        await job()
    except AgentsdError as error:  # the store may be available again at the next attempt
        if isinstance(error, StoreError):
            metrics.count_store_error("housekeeping")
        log.warning("housekeeping failed: %s", error.message)
        return error if isinstance(error, StoreLost) else None
    except Exception:
        log.exception("housekeeping failed")
    return None


async def _sweep(runtime: Runtime) -> None:
    """Find runs that nobody offered, or whose process has ended, as many as this process can execute."""
    if resumed := await runtime.sweep():
        log.info("resumed orphaned runs: %s", ", ".join(resumed))


class _WaitingRuns:
    """Counts the runs that wait, and reports once that no process executes them."""

    def __init__(self, runtime: Runtime, metrics: ServerMetrics) -> None:
        self._runtime, self._metrics = runtime, metrics
        self._is_reported = False

    async def count(self) -> None:
        """Set the metrics and, in a process that executes nothing, look for one that does."""
        counts = await self._runtime.store.count_waiting()
        self._metrics.set_waiting(counts)
        if self._runtime.work.capacity == 0:
            is_stuck = counts.get("queued", 0) > 0 and not await self._is_worker_alive()
            if is_stuck and not self._is_reported:
                log.warning("queued runs: %d, but no worker is alive: start `agentsd worker`", counts["queued"])
            self._is_reported = is_stuck

    async def _is_worker_alive(self) -> bool:
        processes = await self._runtime.store.processes()
        return any(one.is_alive and ProcessDetails.parse(one.info).works for one in processes)


async def _prune(runtime: Runtime, retention: float | None) -> None:
    now = runtime.store.now()
    try:
        pruned = await runtime.store.prune(None if retention is None else now - retention, now)
    except ClockRefused as error:
        log.warning("%s", error.message)
        return
    if pruned.runs or pruned.conversations:
        log.info("pruned %d runs, %d conversations", pruned.runs, pruned.conversations)
    if pruned.freed_bytes:
        log.info("the store file shrank by %.1f MB", pruned.freed_bytes / 1e6)


_END_SECONDS = 30.0
"""Time after which a process that failed ends in any case: without memory, it may not manage to stop in order."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class ProcessFailed(AgentsdError):
    """The process does not do its work any more. The message says why; start another one."""

    code = "process_failed"


class Stopping:
    """Signal handlers: the first signal starts an orderly stop, each further one cancels the task without waiting."""

    def __init__(self) -> None:
        self.requested = False
        self._failure = ""
        task = asyncio.current_task()
        assert task is not None
        self._cancel = task.cancel
        self._stops: Sequence[Callable[[], object]] = (task.cancel,)

    def call_on_stop(self, *stops: Callable[[], object]) -> None:
        """Set the functions that the first signal calls at once."""
        self._stops = stops

    def check(self) -> None:
        """Raise ProcessFailed if the process stops because something ended that it needs."""
        if self._failure:
            raise ProcessFailed(f"{self._failure}; the process ends, so that its supervisor starts another")

    def __enter__(self) -> Stopping:
        loop = asyncio.get_running_loop()
        self._handler = loop.get_exception_handler()
        loop.set_exception_handler(self._on_error)
        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().set_exception_handler(self._handler)
        for number in _SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if ESSENTIAL not in context and not isinstance(error, MemoryError):
            if self._handler is None:
                loop.default_exception_handler(context)
            else:
                self._handler(loop, context)
        elif not self.requested and error is not None:
            loop.call_later(_END_SECONDS, os._exit, 1)
            self._failure = "no memory is left"
            if not isinstance(error, MemoryError):
                self._failure = (
                    f"{context['message']}: {error if isinstance(error, AgentsdError) else safe_traceback(error)}"
                )
            log.error("%s", self._failure)
            self._on_signal()

    def _on_signal(self) -> None:
        first, self.requested = not self.requested, True
        for stop in self._stops if first else (self._cancel,):
            stop()


_STDIN, _STDOUT, _STDERR = 0, 1, 2
MAX_LINE_BYTES = 16 * 1024 * 1024
"""Size limit of one message of a client. A larger one ends the connection."""
_COPIED_BYTES = 65_536
_FLUSH_SECONDS = 5.0
"""Time for a client to read the last messages."""


@asynccontextmanager
async def protocol_streams() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, Callable[[], None]]]:
    """Yield standard input and output as streams, also if they are files or `/dev/null`, and what ends the input.

    Meanwhile, what plugins and child processes print goes to standard error, and their standard input is empty.
    """
    loop = asyncio.get_running_loop()
    with _diverted() as (source, target):
        readable, filled = os.pipe()  # asyncio cannot wait for files, and makes what it waits for non-blocking
        drained, writable = os.pipe()
        Thread(target=_copy, args=(os.dup(source), filled), daemon=True).start()
        sending = Thread(target=_copy, args=(drained, os.dup(target)), daemon=True)
        sending.start()
        reader = asyncio.StreamReader(MAX_LINE_BYTES)
        incoming, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(readable, "rb", 0)
        )
        outgoing, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(writable, "wb", 0)
        )
        writer = asyncio.StreamWriter(outgoing, protocol, None, loop)
        try:
            yield reader, writer, incoming.close
        finally:
            incoming.close()
            writer.close()
            with suppress(TimeoutError, ConnectionError):
                await asyncio.wait_for(writer.wait_closed(), _FLUSH_SECONDS)
            await asyncio.to_thread(sending.join, _FLUSH_SECONDS)


@contextmanager
def _diverted() -> Iterator[tuple[int, int]]:
    """Yield descriptors of standard input and output, for which others stand in."""
    sys.stdout.flush()
    source, target = os.dup(_STDIN), os.dup(_STDOUT)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, _STDIN)
    os.dup2(_STDERR, _STDOUT)
    os.close(empty)
    try:
        yield source, target
    finally:
        sys.stdout.flush()
        os.dup2(source, _STDIN)
        os.dup2(target, _STDOUT)


def _copy(source: int, target: int) -> None:
    """Copy until the source ends or nobody reads, and close both. The caller may have made them non-blocking."""
    with suppress(OSError), os.fdopen(source, "rb", 0) as given, os.fdopen(target, "wb", 0) as taken:
        while (data := given.read(_COPIED_BYTES)) != b"":
            if data is None:
                select([given], [], [])
            while data:
                if (written := taken.write(data)) is None:
                    select([], [taken], [])
                data = data[written or 0 :]


@contextmanager
def ended_by_signals(end: Callable[[], None]) -> Iterator[None]:
    """Call `end` on SIGTERM or Ctrl-C, as if the client had left. A second signal ends the process at once."""
    loop = asyncio.get_running_loop()

    def end_once() -> None:
        remove()
        end()

    def remove() -> None:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)

    for number in _SIGNALS:
        loop.add_signal_handler(number, end_once)
    try:
        yield
    finally:
        remove()


async def run_worker(
    root: str | Path,
    settings: Settings,
    capacity: int,
    scope: WorkScope,
    started: Callable[[Runtime], object],
    name: str | None = None,
    *,
    allow_empty: bool = False,
) -> int:
    """Execute runs until SIGTERM or SIGINT. Then release them to other processes, and return how many there were.

    Calls of tools get a moment to end; a second signal ends them at once.

    Raises:
        ConfigError: the settings or files are invalid, no agent is valid, or other processes cannot see the store.
        AgentNotFound: the scope names an agent that the project does not have.
        StoreError: the store cannot be opened.
    """
    if settings.store.url.get_secret_value() == MEMORY_URL:
        raise ConfigError(
            "store.url: a worker finds no runs in a store in memory, which no other process can see: "
            "set store.url to a SQLite file or PostgreSQL"
        )
    in_progress = 0
    with Stopping() as stopping:
        try:
            async with (
                open_working(
                    root,
                    settings,
                    capacity,
                    scope,
                    kind="worker",
                    name=name,
                    retry_seconds=START_RETRY_SECONDS,
                    allow_empty=allow_empty,
                ) as runtime,
                housekeeping(_checked(runtime, scope), ServerMetrics(), settings.store.retention) as stop_housekeeping,
            ):
                stopped = asyncio.Event()
                stopping.call_on_stop(stop_housekeeping, stopped.set)
                started(runtime)
                await stopped.wait()
                in_progress = runtime.slots.taken
        except asyncio.CancelledError:
            if not stopping.requested:
                raise
        stopping.check()
    return in_progress


def _checked(runtime: Runtime, scope: WorkScope) -> Runtime:
    """Return the runtime; raises AgentNotFound or AgentBroken if the scope names an agent that it does not have."""
    current = runtime.catalog.current
    for name in sorted(scope.agents or ()):
        current.agent(name)
    return runtime


@asynccontextmanager
async def open_work(
    settings: Settings, root: Path, capacity: int, scope: WorkScope = EVERYTHING
) -> AsyncIterator[WorkSource]:
    """Open the work source of a server process.

    With a capacity of 0, the process only accepts runs.

    Raises:
        ConfigError: the work source does not fit the store, or its package is missing.
        StoreError: its tables cannot be created.
    """
    url, engine = settings.store.url.get_secret_value(), settings.work.engine
    is_postgres = url.partition("+")[0].partition(":")[0] in ("postgresql", "postgres")
    if engine == "procrastinate" and not is_postgres:
        raise ConfigError(
            "work.engine: procrastinate needs a store in PostgreSQL: set store.url to one, or work.engine to auto"
        )
    if capacity == 0 and url == MEMORY_URL:
        raise ConfigError(
            "store.url: nothing would execute the runs, because other processes cannot see a store in memory: "
            "set store.url to a SQLite file or PostgreSQL, or leave out --no-work"
        )
    if engine == "embedded" or not is_postgres:
        yield EmbeddedSource(capacity, scope)
        return
    try:
        from framework.engine.procrastinate import ProcrastinateSource
    except ModuleNotFoundError as missing:
        if missing.name in {"procrastinate", "psycopg", "psycopg_pool", "sqlalchemy"}:
            raise ConfigError(
                "work.engine: delivering runs through PostgreSQL needs Procrastinate:"
                f" {install_command('agentsd[postgres]')}, or set work.engine to embedded in all processes of the store"
            ) from None
        raise
    async with ProcrastinateSource.open(url, root, capacity, scope) as source:
        yield source
