"""Replays stored runs for clients: few at a time, each in a thread and for a limited time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from threading import Event as ThreadEvent

from framework.config.generations.generation import Generation
from framework.replay.player import Difference, StoredRun, replay
from framework.server.errors import ReplayTimeout, TooManyReplays

MAX_REPLAYS = 2
"""Replays at a time: each takes a CPU as long as it lasts."""
MAX_REPLAY_SECONDS = 20.0
"""Time limit of a replay. A server that stops waits for it."""
_POLL_SECONDS = 0.05
_RETRY_SECONDS = 5


class Replays:
    """The replays in progress. Each has a thread, because its models and tools answer without waiting."""

    def __init__(self, seconds: float = MAX_REPLAY_SECONDS) -> None:
        self._seconds = seconds
        self._threads: set[asyncio.Future[Sequence[Difference]]] = set()

    async def differences(self, root: Path, run: StoredRun, current: Generation) -> Sequence[Difference]:
        """Return the differences between a run and its replay. If this is cancelled, the replay ends too.

        Raises:
            AgentNotFound: the run's agent does not exist in `current`.
            TooManyReplays: the server replays as many runs as it may.
            ReplayTimeout: the replay took too long.
        """
        if len(self._threads) >= MAX_REPLAYS:
            raise TooManyReplays("the server replays other runs: retry in a few seconds", _RETRY_SECONDS)
        stopped = ThreadEvent()
        limit = self._seconds
        thread = asyncio.ensure_future(
            asyncio.to_thread(lambda: asyncio.run(_replay_until(stopped, limit, root, run, current)))
        )
        self._threads.add(thread)  # until the thread has ended, even if nobody waits for it
        thread.add_done_callback(self._ended)
        try:
            return await asyncio.shield(thread)
        finally:
            stopped.set()

    def _ended(self, thread: asyncio.Future[Sequence[Difference]]) -> None:
        self._threads.discard(thread)
        if not thread.cancelled():
            thread.exception()  # read, because after a cancellation nobody else does


async def _replay_until(
    stopped: ThreadEvent, seconds: float, root: Path, run: StoredRun, current: Generation
) -> Sequence[Difference]:
    """Replay a run in the event loop of a thread, until it is stopped or out of time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    work = asyncio.ensure_future(replay(root, run, current))
    while not work.done() and not stopped.is_set() and loop.time() < deadline:
        await asyncio.wait([work], timeout=_POLL_SECONDS)
    if not work.done():
        work.cancel()
        await asyncio.wait([work])
    if work.cancelled():
        raise ReplayTimeout(
            f"the replay of run {run.state.run_id} took longer than {seconds:g} s: use agentsd runs replay"
        )
    return work.result()
