"""Leaves runs that this process lacks an agent, a tool or a hook for to processes that have it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass

from framework.config.agents.compile import missing_tools
from framework.config.generations.generation import Generation
from framework.engine.runtime.presence import Presence
from framework.store.protocol import Store
from framework.types.errors import AgentBroken, AgentNotFound, AgentsdError, ConfigError
from framework.types.fleet import ProcessDetails
from framework.types.state import CallRecord, RunState

log = logging.getLogger(__name__)

FIRST_DELAY_SECONDS = 1.0
"""How long this process leaves a run alone after it handed it on. Each further time it is twice as long."""
LONGEST_DELAY_SECONDS = 60.0
RESTART_SECONDS = 60.0
"""A process that was last seen at most this long ago may be about to start again."""
_REMEMBERED_RUNS = 1000
_NOT_PLUGINS = ("agent", "mcp")
"""Beginnings of the names of tools that no plugin file defines."""


class CannotExecute(ConfigError):
    """This process lacks something that a run needs. The message follows the name of the process."""


@dataclass(frozen=True, slots=True)
class _Attempts:
    """How often this process handed a run on, and until when it leaves the run alone."""

    number: int
    until: float
    """On the monotonic clock."""


class HandOn:
    """Hands runs on, if this process is announced to others. A plain program hands on nothing."""

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
        await self._store.hand_on(run_id, reason, delay)

    async def reason_to_leave(self, agent: str | None, error: AgentsdError) -> str | None:
        """Return what this process lacks for a queued run that cannot begin, if another process has it; else None.

        Args:
            agent: the agent that the run names, if any.
            error: why the run cannot begin.
        """
        if isinstance(error, AgentNotFound):
            return f"has no agent {error.name!r}" if await self._others_have(error.name) else None
        if isinstance(error, AgentBroken):
            has_other = [name for name in error.names if await self._others_have(name)]
            return f"cannot begin it: {error.message}" if has_other else None
        if isinstance(error, ConfigError) and await self._others_have(agent):
            return f"cannot begin it: {error.message}"
        return None

    async def check(self, state: RunState, original: Generation, current: Generation) -> None:
        """Check whether this process has what an interrupted run needs to continue as it began.

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
            called = (record.call.tool for record in run.calls.values() if _has_begun(record))
            yield from (name for name in called if name not in agent.toolset.tools)


def _has_begun(record: CallRecord) -> bool:
    """Return whether a process has executed a call, so that its tool existed: models also call unknown tools."""
    return record.started > 0 and (record.result is None or record.result.status == "success")


def _file_of(tool: str) -> str:
    """Return the plugin file that probably defines a tool, in parentheses."""
    plugin, dot, _ = tool.partition(".")
    return f" (plugins/{plugin}.py)" if dot and plugin not in _NOT_PLUGINS else ""
