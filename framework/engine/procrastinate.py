"""Delivers runs to any number of processes through Procrastinate, whose jobs are rows of the same PostgreSQL database.

A job is a ticket: it says that a process should look at the runs, and is deleted when the run that it led to has ended
or paused. Nothing depends on one job. It carries no lock, is never retried and has no state that matters: the rows of
the runs decide, and a sweep offers again what waits too long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from random import uniform
from typing import Any

import psycopg
from procrastinate import App, JobContext, PsycopgConnector, SyncPsycopgConnector
from procrastinate.app import WorkerOptions
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Status
from procrastinate.schema import SchemaManager

from framework.engine.runtime.background import PeriodicJob, Worker
from framework.store.database import driver_options, parse_store_url
from framework.store.types import EVERYTHING, OfferedRun, WorkScope
from framework.types.errors import StoreError
from framework.types.text import content_digest

log = logging.getLogger(__name__)


TASK, PERIODIC_QUEUE = "agentsd.drive", "agentsd"
MAX_QUEUE_BYTES = 40
"""PostgreSQL accepts names of channels of at most 63 bytes, 23 of which are Procrastinate's prefix."""
POLL_SECONDS, POOLED_POLL_SECONDS = 5.0, 0.5
"""Intervals at which jobs are fetched without a notification: with LISTEN, in case one was lost, and without LISTEN."""
_REPEAT_SECONDS = 0.05
_RETRY_SECONDS = 0.5
_NEVER = 86400.0
_STALLED_SECONDS = 30.0
"""A worker of Procrastinate counts as dead if its heartbeat is older. Its jobs are deleted, not its runs."""
_SCHEMA_LOCK = 0x61677364
"""Key of the lock under which one process at a time creates Procrastinate's tables."""


class ProcrastinateSource:
    """Offers runs as jobs in the transactions of the store, and executes the jobs that it fetches."""

    is_shared = True

    def __init__(self, options: dict[str, Any], capacity: int, scope: WorkScope) -> None:
        self.capacity, self.scope = capacity, scope
        self._options = options
        self._offering = App(connector=SyncPsycopgConnector())  # never opened: offers use the store's connections
        self._periodic: dict[str, PeriodicJob] = {}
        self._worker: Worker | None = None
        self._delivering: asyncio.Task[None] | None = None
        self._is_released = False
        self._unfinished: set[int] = set()
        """Ids of jobs that ended while the database was unreachable."""

    @classmethod
    @asynccontextmanager
    async def open(
        cls, url: str, root: Path, capacity: int, scope: WorkScope = EVERYTHING
    ) -> AsyncIterator[ProcrastinateSource]:
        """Create Procrastinate's tables if they are missing, and yield the source.

        Args:
            url: the URL of the store, in PostgreSQL.
            root: the project folder.
            capacity: number of runs that this process executes at once; 0: it only offers runs.
            scope: the runs that this process executes.

        Raises:
            StoreError: the database is unreachable, or the tables cannot be created.
        """
        source = cls(driver_options(parse_store_url(url, root)), capacity, scope)
        try:
            await _create_tables(source._options)
        except (psycopg.Error, OSError) as error:
            raise StoreError(f"the tables of Procrastinate cannot be created: {_first_line(error)}") from None
        try:
            yield source
        finally:
            source.release()
            if source._delivering is not None:
                await asyncio.wait([source._delivering])

    def offer(self, connection: Any, runs: Sequence[OfferedRun]) -> None:
        """Insert a job for each run, in the transaction that is open on the connection."""
        by_target = attrgetter("queue", "agent", "priority")
        ordered = sorted(runs, key=lambda run: (run.queue or "", run.agent, run.priority))
        for _, group in groupby(ordered, by_target):
            same = list(group)
            task = self._offering.configure_task(
                TASK, queue=job_queue(same[0].queue, same[0].agent), priority=same[0].priority, connection=connection
            )
            try:
                arguments: list[dict[str, Any]] = [{"run_id": run.run_id} for run in same]
                task.batch_defer(*arguments)
            except ConnectorException as error:
                raise error.__cause__ or error from None  # the driver's error, which the store understands

    def claim(self, worker: Worker) -> None:
        """Deliver the jobs of this process to a worker, from the first `wake` on."""
        self._worker = worker

    def wake(self, *, has_looked: bool = False) -> None:  # noqa: ARG002 - the protocol's
        """Start to fetch jobs. Later calls are unnecessary: PostgreSQL notifies this process of new jobs."""
        if self._delivering is None and self._worker is not None and self.capacity and not self._is_released:
            self._delivering = asyncio.create_task(self._deliver(self._worker), name="deliver jobs")

    def repeat(self, job: PeriodicJob) -> bool:
        """Do periodic work as a job, which one process of all executes at a time."""
        self._periodic[job.name] = job
        return True

    def release(self) -> None:
        """Fetch no more jobs. Those that were fetched are deleted; their runs are not affected."""
        self._is_released = True
        if self._delivering is not None:
            self._delivering.cancel()

    async def _deliver(self, worker: Worker) -> None:
        """Fetch and execute jobs until `release`, also after the database was unreachable."""
        problem = ""
        while not self._is_released:
            try:
                is_pooled = await _is_pooled(self._options)
                if problem:
                    log.info("the jobs in PostgreSQL are available again")
                    problem = ""
                await self._fetch_jobs(worker, is_pooled=is_pooled)
                lost = "the connection was lost"
            except (ConnectorException, psycopg.Error, OSError) as error:
                lost = _first_line(error)
            if not problem and not self._is_released:
                problem = lost
                log.warning("the jobs in PostgreSQL are unavailable: %s; queued runs start once they are back", lost)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _fetch_jobs(self, worker: Worker, *, is_pooled: bool) -> None:
        """Fetch and execute jobs until this task is cancelled, or the database becomes unreachable."""
        if is_pooled:
            log.warning(
                "store.url leads to a pooler, which may deliver no notifications: new runs are looked for every %s s; "
                "set it to the PostgreSQL server itself, so that they start at once",
                POOLED_POLL_SECONDS,
            )
        app = self._app(worker, {**self._options, "prepare_threshold": None} if is_pooled else self._options)
        async with app.open_async():
            sweeping = asyncio.create_task(self._sweep_jobs(app), name="sweep jobs")
            try:
                await app.run_worker_async(**self._worker_options(is_pooled=is_pooled))
            finally:
                sweeping.cancel()

    def _app(self, worker: Worker, options: dict[str, Any]) -> App:
        """Return an app with the tasks. Each connection attempt has its own, with new connections."""
        app = App(connector=_Connector(min_size=1, max_size=4, timeout=10.0, kwargs=options))

        @app.task(name=TASK, pass_context=True)
        async def drive(context: JobContext, run_id: str) -> None:
            self._watch(context.job.id)
            await worker.drive(run_id)

        for job in self._periodic.values():
            task = app.task(name=f"{PERIODIC_QUEUE}.{job.name}", queue=PERIODIC_QUEUE, priority=1000)(_periodic(job))
            app.periodic(cron=job.cron, periodic_id=job.name)(task)
        return app

    def _worker_options(self, *, is_pooled: bool) -> WorkerOptions:
        options: WorkerOptions = {
            "concurrency": self.capacity,
            "delete_jobs": "always",
            "listen_notify": not is_pooled,
            "fetch_job_polling_interval": POOLED_POLL_SECONDS if is_pooled else POLL_SECONDS,
            "abort_job_polling_interval": _NEVER,  # jobs are not aborted: a run is cancelled in its row
            "stalled_worker_timeout": _STALLED_SECONDS,
            "shutdown_graceful_timeout": 0,  # runs do not depend on their jobs
            "install_signal_handlers": False,
        }
        if self.scope != EVERYTHING:
            named = [job_queue(name, "") for name in self.scope.queues or ()]
            of_agents = [job_queue(None, agent) for agent in self.scope.agents or ()]
            options["queues"] = [PERIODIC_QUEUE, *named, *of_agents]
        return options

    def _watch(self, job_id: int | None) -> None:
        """Note the present job if its end cannot be stored, because nobody awaits the task in which it is executed."""

        def check(task: asyncio.Task[Any]) -> None:
            if not task.cancelled() and task.exception() is not None and job_id is not None:
                self._unfinished.add(job_id)

        if (task := asyncio.current_task()) is not None:
            task.add_done_callback(check)

    async def _sweep_jobs(self, app: App) -> None:
        """Delete, now and then, the jobs that their worker did not: it died, or the database was unreachable."""
        while True:
            await asyncio.sleep(uniform(0.5, 1.5) * _STALLED_SECONDS)
            with suppress(ConnectorException):  # again later
                stalled = await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=_STALLED_SECONDS)
                self._unfinished |= {job.id for job in stalled if job.id is not None}
            for job_id in list(self._unfinished):
                with suppress(ConnectorException):  # deleted already
                    await app.job_manager.finish_job_by_id_async(job_id, Status.FAILED, delete_job=True)
                    self._unfinished.discard(job_id)


class _Connector(PsycopgConnector):
    """Repeats notifications of new jobs: a worker forgets one that arrives while it looks for jobs."""

    async def listen_notify(self, on_notification: Callable[..., Awaitable[None]], channels: Iterable[str]) -> None:
        latest: dict[str, str] = {}
        heard = asyncio.Event()

        async def pass_on(*, channel: str, payload: str) -> None:
            latest.update(channel=channel, payload=payload)
            heard.set()
            await on_notification(channel=channel, payload=payload)

        async def repeat() -> None:
            while True:
                await heard.wait()
                await asyncio.sleep(_REPEAT_SECONDS)
                heard.clear()
                await on_notification(**latest)

        repeating = asyncio.create_task(repeat(), name="repeat notifications")
        try:
            await super().listen_notify(pass_on, channels)
        finally:
            repeating.cancel()


def job_queue(queue: str | None, agent: str) -> str:
    """Return the name of Procrastinate's queue for runs of a named queue or, without one, of an agent."""
    name = f"agent/{agent}" if queue is None else queue
    if len(name.encode()) <= MAX_QUEUE_BYTES:
        return name
    return f"{name.encode()[:23].decode(errors='ignore')}#{content_digest(name)[-16:]}"


def _periodic(job: PeriodicJob) -> Callable[[int], Awaitable[None]]:
    async def run(timestamp: int) -> None:  # noqa: ARG001 - Procrastinate's
        await job.run()

    return run


async def _create_tables(options: dict[str, Any]) -> None:
    """Create Procrastinate's tables unless they exist. Processes that start at once wait for each other."""
    async with await psycopg.AsyncConnection.connect(**options) as connection:
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_SCHEMA_LOCK,))
        found = await connection.execute("SELECT to_regclass('procrastinate_jobs')")
        if await found.fetchone() == (None,):
            await connection.execute(SchemaManager.get_schema())


async def _is_pooled(options: dict[str, Any]) -> bool:
    """Return whether a pooler lies between this process and the database; raises psycopg.Error if it is unreachable."""
    async with await psycopg.AsyncConnection.connect(**options, autocommit=True) as connection:
        session = await connection.execute("SELECT pg_backend_pid()")
        return await session.fetchone() != (connection.info.backend_pid,)


def _first_line(error: BaseException) -> str:
    """Return the driver's message, without details, which may quote values."""
    return next(iter(str(error.__cause__ or error).strip().splitlines()), type(error).__name__)
