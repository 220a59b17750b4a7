"""Limits of each key: requests that start runs, runs in progress, and open event streams.

Everything is counted in this process: servers that share a store limit a key separately, and a restart begins at zero.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from math import floor
from typing import TYPE_CHECKING

from framework.config.api_keys import Rate
from framework.config.settings import ServerSettings
from framework.server.errors import RateLimited, ServerBusy, TooManyRuns, TooManyStreams
from framework.server.identity import Identity
from framework.store.types import RunQuery

if TYPE_CHECKING:
    from framework.store.store import Store

MAX_BODIES_BYTES = 16 * 1024 * 1024
"""Limit of the request bodies in progress, in all requests together."""
SMALL_BODY_BYTES = 32 * 1024
"""Size up to which a body does not count for it."""
_MAX_IDLE_NAMES = 1000
"""Names for which requests are remembered, before those without a recent one are forgotten."""
_RETRY_SECONDS = 5
"""`Retry-After` where the end of a run or stream must be awaited, whose time is unknown."""


class RateWindow:
    """Admits at most `rate.count` requests in any period of `rate.seconds`."""

    def __init__(self, rate: Rate, earlier: RateWindow | None = None) -> None:
        """Create a window. `earlier` is that of another rate, whose requests count in this one too."""
        self.rate = rate
        self._times: deque[float] = deque(earlier._times if earlier else ())

    def admit(self, now: float) -> int:
        """Count a request and return 0, or return after how many whole seconds the next one is admitted."""
        while self._times and self._times[0] + self.rate.seconds <= now:
            self._times.popleft()
        if len(self._times) < self.rate.count:
            self._times.append(now)
            return 0
        return floor(self._times[len(self._times) - self.rate.count] + self.rate.seconds - now) + 1

    def withdraw(self, at: float) -> None:
        """Count the request that was admitted at this time no more: it was refused, and started nothing."""
        with suppress(ValueError):  # it counts no more
            self._times.remove(at)

    def is_idle(self, now: float) -> bool:
        """Return whether no request counts any more."""
        return not self._times or self._times[-1] + self.rate.seconds <= now


@dataclass(slots=True)
class _Runs:
    """The runs of one key."""

    starting: int = 0
    """Requests that are about to start a run."""
    started: set[str] = field(default_factory=set)
    """Runs that had not ended when they were last compared with the store."""


class BodiesInFlight:
    """Limits the memory of the request bodies that are being received or parsed, in all requests together.

    Parsed data takes several times as much memory, and a process without memory does nothing well.
    """

    def __init__(self, limit: int = MAX_BODIES_BYTES) -> None:
        self._limit, self._size = limit, 0

    def grow(self, before: int, after: int) -> None:
        """Count a body that has grown; raise ServerBusy at the limit. Small ones, such as messages, do not count."""
        more = _counted(after) - _counted(before)
        if more and self._size + more > self._limit:
            raise ServerBusy("the server handles other large requests: try again in a few seconds")
        self._size += more

    def end(self, size: int) -> None:
        """Stop counting a body of this size."""
        self._size -= _counted(size)


def _counted(size: int) -> int:
    return size if size > SMALL_BODY_BYTES else 0


class KeyLimits:
    """Counts the requests, runs and streams of each key, by the name of its identity, and bodies of all together."""

    def __init__(self, store: Store, settings: ServerSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._settings, self._clock = store, settings, clock
        self._windows: dict[str, RateWindow] = {}
        self._runs: dict[str, _Runs] = {}
        self._streams: Counter[str] = Counter()
        self.bodies = BodiesInFlight()

    def check_rate(self, identity: Identity) -> float | None:
        """Count a request that starts or continues a run; raise RateLimited if the key may send none now.

        Returns the time for which it counts, if it counts.
        """
        if identity.rate is None:
            return None
        now, window = self._clock(), self._windows.get(identity.name)
        if window is None or window.rate != identity.rate:
            self._forget_idle(now)
            window = self._windows[identity.name] = RateWindow(identity.rate, window)
        if seconds := window.admit(now):
            raise RateLimited(f"the key {identity.name!r} sends too many requests: retry in {seconds} s", seconds)
        return now

    @asynccontextmanager
    async def starting(self, identity: Identity) -> AsyncIterator[Callable[[str], object]]:
        """Admit a request that starts or continues a run. The caller passes the run's id to the yielded function.

        If the context ends with an error, nothing was started, and the request does not count for the rate.

        Raises:
            RateLimited: the key may send no request now.
            TooManyRuns: as many of its runs as it may have are queued or in progress.
            StoreError: the store fails.
        """
        counted_at = self.check_rate(identity)
        try:
            async with self._counting_run(identity) as started:
                yield started
        except BaseException:
            if counted_at is not None and (window := self._windows.get(identity.name)) is not None:
                window.withdraw(counted_at)
            raise

    @asynccontextmanager
    async def _counting_run(self, identity: Identity) -> AsyncIterator[Callable[[str], object]]:
        """Count a run of the key while it starts, and from then on; see `starting`."""
        if identity.max_running is None:
            yield lambda run_id: None  # noqa: ARG005 - nothing counts these runs
            return
        runs = self._runs.setdefault(identity.name, _Runs())
        if runs.starting + len(runs.started) >= identity.max_running:
            await self._forget_ended(runs, identity)
        if runs.starting + len(runs.started) >= identity.max_running:
            raise TooManyRuns(
                f"the key {identity.name!r} has {identity.max_running} runs queued or in progress: retry when one ends",
                _RETRY_SECONDS,
            )
        runs.starting += 1
        try:
            yield runs.started.add
        finally:
            runs.starting -= 1

    def admit_stream(self, identity: Identity) -> ExitStack:
        """Count a stream from now on, before its run is started. The returned context ends the count.

        The caller passes `pop_all()` of the context to the response, which closes it when the stream ends.

        Raises:
            TooManyStreams: the server has as many open streams as it may have.
            RateLimited: the key has.
        """
        self._check_streams(identity)
        admitted = ExitStack()
        admitted.enter_context(self._counted(identity))
        return admitted

    def _check_streams(self, identity: Identity) -> None:
        if self._streams.total() >= self._settings.max_streams:
            raise TooManyStreams(f"too many event streams: {self._settings.max_streams} are open (server.max_streams)")
        if self._streams[identity.name] >= self._settings.max_streams_per_key:
            message = f"the key {identity.name!r} has {self._settings.max_streams_per_key} event streams open"
            raise RateLimited(f"{message} (server.max_streams_per_key): close one", _RETRY_SECONDS)

    @contextmanager
    def _counted(self, identity: Identity) -> Iterator[None]:
        self._streams[identity.name] += 1
        try:
            yield
        finally:
            self._streams[identity.name] -= 1
            if not self._streams[identity.name]:
                del self._streams[identity.name]

    async def _forget_ended(self, runs: _Runs, identity: Identity) -> None:
        """Forget the runs that have ended or paused. The store knows: no counter can miss how a run ends."""
        known = frozenset(runs.started)
        query = RunQuery(statuses=("queued", "running"), tenant=identity.tenant)
        runs.started -= known - {info.run_id for info in await self._store.runs(query)}

    def _forget_idle(self, now: float) -> None:
        if len(self._windows) >= _MAX_IDLE_NAMES:
            self._windows = {name: window for name, window in self._windows.items() if not window.is_idle(now)}
