"""What other processes know of this one, and the runs that it leaves to them."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import Context
from typing import TYPE_CHECKING, Literal, NamedTuple

from framework.config.agents.compile import missing_tools
from framework.config.generations.catalog import Catalog
from framework.config.generations.generation import Generation
from framework.engine.runtime.background import WorkSource, essential, is_passing
from framework.engine.runtime.launcher import Launcher
from framework.types.errors import AgentBroken, AgentNotFound, AgentsdError, ConfigError, StoreError
from framework.types.installation import installed_version
from framework.types.report import ProcessDetails
from framework.types.state import CallRecord, RunState

if TYPE_CHECKING:
    from framework.store.store import Store

log = logging.getLogger(__name__)


ProcessKind = Literal["serve", "worker"]
REPORT_SECONDS = 2.0
"""Interval of the reports of a process."""
_RATE_SECONDS = 60.0
"""Length of time over which the rate of started runs is measured."""


class Presence:
    """The reports of one process. A process that is not announced, such as a plain program, sends none."""

    def __init__(self, catalog: Catalog, launcher: Launcher, work: WorkSource) -> None:
        self._catalog, self._launcher, self._work, self._store = catalog, launcher, work, launcher.store
        self.address = socket.gethostname(), os.getpid()
        """Host and id of this process."""
        self.name = ""
        """Name of this process in reports; empty unless it is announced."""
        self._kind: ProcessKind = "serve"
        self._is_due = asyncio.Event()
        self._starts: deque[tuple[float, int]] = deque()
        """Number of runs started until each report of the last minute, by monotonic time."""
        self._is_saved = True
        self._unsubscribe: Callable[[], None] = lambda: None
        self._task: asyncio.Task[None] | None = None

    async def announce(self, kind: ProcessKind, name: str | None = None) -> None:
        """Report this process now, every two seconds, and at once after a reload, until `close`.

        Args:
            kind: the command that it executes.
            name: its name. Default: host and process id.
        """
        self._kind, self.name = kind, name or default_name()
        self._unsubscribe = self._catalog.subscribe(lambda _: self._is_due.set())
        await self._report()
        self._task = essential(asyncio.create_task(self._repeat(), name="reports of the process", context=Context()))

    async def close(self) -> None:
        """Stop reporting. A store that closes removes the last report."""
        self._unsubscribe()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def details(self) -> ProcessDetails:
        """Return what this process reports about itself."""
        current, scope = self._catalog.current, self._work.scope
        agents, queues = (None if names is None else tuple(sorted(names)) for names in (scope.agents, scope.queues))
        return ProcessDetails(
            kind=self._kind,
            version=installed_version(),
            host=self.address[0],
            pid=self.address[1],
            works=self._work.capacity > 0,
            capacity=self._work.capacity,
            begun_per_second=round(self._started_per_second(), 2),
            generation=current.number,
            problems=sum(problem.severity == "error" for problem in self._catalog.problems),
            queues=queues,
            only_agents=agents,
            agents={name: agent.digest for name, agent in sorted(current.agents.items())},
        )

    async def _repeat(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(REPORT_SECONDS):
                    await self._is_due.wait()
            self._is_due.clear()
            await self._report()

    async def _report(self) -> None:
        try:
            details = self.details().model_dump(mode="json", exclude_defaults=True)
            await self._store.keep_alive(self.name, details)
        except (StoreError, OSError) as error:
            if not is_passing(error):
                raise
            if self._is_saved:
                log.warning("this process could not report itself: %s", error)
            self._is_saved = False
        else:
            self._is_saved = True

    def _started_per_second(self) -> float:
        """Return the rate at which this process started runs over the last minute."""
        now, started = time.monotonic(), self._launcher.started
        self._starts.append((now, started))
        while self._starts[0][0] < now - _RATE_SECONDS:
            self._starts.popleft()
        since, before = self._starts[0]
        return (started - before) / (now - since) if since < now else 0.0


def default_name() -> str:
    """Return the name of a process that is given none: its host and its id."""
    return f"{socket.gethostname()}-{os.getpid()}"


FIRST_DELAY_SECONDS = 1.0
"""How long this process leaves a run alone after it handed it on. Each further time it is twice as long."""
LONGEST_DELAY_SECONDS = 60.0
RESTART_SECONDS = 60.0
"""A process that was last seen at most this long ago may be about to start again."""
_REMEMBERED_RUNS = 1000
_NOT_PLUGINS = ("agent", "mcp")
"""Starts of the names of tools that no plugin file defines."""


class CannotExecute(ConfigError):
    """This process lacks something that a run needs. The message follows the name of the process."""


class _Attempts(NamedTuple):
    """How often this process handed a run on, and until when it leaves the run alone."""

    number: int
    until: float
    """On the monotonic clock."""


class RunReleaser:
    """Releases runs that this process cannot execute, if it is announced to others. A plain program releases none."""

    def __init__(self, store: Store, presence: Presence | None = None) -> None:
        self._store, self._presence = store, presence
        self._attempts: dict[str, _Attempts] = {}

    @property
    def is_possible(self) -> bool:
        """Whether other processes know of this one."""
        return bool(self._name)

    @property
    def remembered(self) -> int:
        """Number of runs that this process may leave alone now."""
        return len(self._attempts)

    def is_due(self, run_id: str) -> bool:
        """Return whether this process may try to execute a run, because it did not hand it on lately."""
        attempts = self._attempts.get(run_id)
        return attempts is None or time.monotonic() >= attempts.until

    async def leave(self, run_id: str, reason: str) -> None:
        """Release a run that this process holds or has claimed, so that another one executes it.

        Args:
            run_id: the run.
            reason: what this process lacks, to follow its name, as in `has no agent 'support'`.
        """
        earlier = self._attempts.pop(run_id, None)
        number = earlier.number if earlier else 0
        if not number:
            log.warning("run %s is left to other processes: %s %s", run_id, self._name, reason)
        delay = min(FIRST_DELAY_SECONDS * 2.0**number, LONGEST_DELAY_SECONDS)
        if len(self._attempts) >= _REMEMBERED_RUNS:
            del self._attempts[next(iter(self._attempts))]
        self._attempts[run_id] = _Attempts(number + 1, time.monotonic() + delay)
        await self._store.release_for_others(run_id, reason, delay)

    async def reason_to_leave(self, agent: str | None, error: AgentsdError) -> str | None:
        """Return what this process lacks for a queued run that cannot start, if another process has it; else None.

        Args:
            agent: the agent that the run names, if any.
            error: why the run cannot start.
        """
        if isinstance(error, AgentNotFound):
            return f"has no agent {error.name!r}" if await self._others_have(error.name) else None
        if isinstance(error, AgentBroken):
            has_other = [name for name in error.names if await self._others_have(name)]
            return f"cannot start it: {error.message}" if has_other else None
        if isinstance(error, ConfigError) and await self._others_have(agent):
            return f"cannot start it: {error.message}"
        return None

    async def check(self, state: RunState, original: Generation, current: Generation) -> None:
        """Check whether this process has what an interrupted run needs to continue as it started.

        Args:
            state: the run.
            original: the generation that it continues on: with the agents as of its start, and the current plugins.
            current: the live generation.

        Raises:
            CannotExecute: a tool is missing, or the agent is, and another process has it. Also in a program that
                hands on nothing: the run stays as it is, for a process that has the tool.
        """
        if missing := next(_missing_tools(state, original), None):
            raise CannotExecute(f'has no tool "{missing}"{_file_of(missing)}')
        if state.agent not in current.agents and await self._others_have(state.agent):
            raise CannotExecute(f"has no agent {state.agent!r}")

    @property
    def _name(self) -> str:
        return self._presence.name if self._presence is not None else ""

    async def _others_have(self, agent: str | None) -> bool:
        """Return whether another process has an agent (None: any), or had it a minute ago."""
        if self._presence is None or not self._presence.name:
            return False
        processes = await self._store.processes()
        now = max((one.seen_at for one in processes), default=0.0)  # the database's clock
        recent = (one for one in processes if one.is_alive or one.seen_at > now - RESTART_SECONDS)
        others = [
            details
            for details in (ProcessDetails.parse(one.info) for one in recent)
            if (details.host, details.pid) != self._presence.address
        ]
        return any(agent in one.agents if agent is not None else one.agents for one in others)


def _missing_tools(state: RunState, original: Generation) -> Iterator[str]:
    """Yield the tools that the agents of a run name or have called, and that do not exist here."""
    for run in state.with_sub_runs():
        if (agent := original.agents.get(run.agent)) is not None:
            yield from (name for _, name in missing_tools(agent.spec, agent.context))
            called = (record.call.tool for record in run.calls.values() if _has_started(record))
            yield from (name for name in called if name not in agent.toolset.tools)


def _has_started(record: CallRecord) -> bool:
    """Return whether a process has executed a call, so that its tool existed: models also call unknown tools."""
    return record.started > 0 and (record.result is None or record.result.status == "success")


def _file_of(tool: str) -> str:
    """Return the plugin file that probably defines a tool, in parentheses."""
    plugin, dot, _ = tool.partition(".")
    return f" (plugins/{plugin}.py)" if dot and plugin not in _NOT_PLUGINS else ""
