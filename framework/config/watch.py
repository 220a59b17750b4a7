"""Watches the project's files and publishes each valid edit as a new generation.

An event of the operating system only triggers a scan; what changed is decided by comparing the files.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from framework.config.generations.catalog import Catalog
from framework.config.generations.generation import Candidate
from framework.config.overlay import settings_files
from framework.config.settings import ReloadSettings
from framework.config.snapshot import (
    PLUGINS,
    PROJECT_FOLDERS,
    Fingerprint,
    Scanner,
    Snapshot,
    fingerprint,
)

log = logging.getLogger(__name__)


_MIN_PATIENCE_SECONDS = 2.0


class GracePeriods(NamedTuple):
    """How long files must remain unchanged before they take effect, in seconds."""

    quiet: float = 0.1
    """After any change."""
    removal: float = 0.5
    """When a file or an agent was removed: some programs save a file by deleting and recreating it."""
    widening: float = 1.0
    """When an agent gains permissions: a half-written file may lack the restrictions of the whole file."""

    @property
    def patience(self) -> float:
        """Seconds after which files that never stop changing take effect; at least twice the longest period."""
        return max(_MIN_PATIENCE_SECONDS, 2 * self.quiet, 2 * self.removal, 2 * self.widening)


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the observed files may be built or published."""

    wait: float = 0.0
    """Seconds until the next check; 0 if the files are ready."""
    hold: frozenset[str] = field(default=frozenset())
    """Files to publish in their earlier version."""


class Debouncer:
    """Tracks file changes from one scan to the next.

    All pending changes take effect together, once no file has changed for the longest grace period that
    applies: an edit that both grants and restricts permissions waits as one that grants them. If files never stop
    changing, those that were unchanged for long enough take effect without the others.
    """

    def __init__(self, periods: GracePeriods, live: str) -> None:
        """Start with `live`, the digest of the published files."""
        self._periods = periods
        self._live = self._handled_digest = live
        self._handled: Snapshot | None = None
        """The last published or rejected snapshot, once one is known."""
        self._observed: Snapshot | None = None
        self._pending_since = self._changed_at = 0.0
        self._touched: dict[str, float] = {}
        """When each file last changed, for files that differ from the handled snapshot."""

    @property
    def pending(self) -> bool:
        """Whether the observed files are neither published nor rejected."""
        return self._observed is not None and self._observed.digest != self._handled_digest

    @property
    def touched(self) -> frozenset[str]:
        """Files that may differ from the last handled snapshot; none until one is known."""
        return frozenset() if self._handled is None else frozenset(self._touched)

    def observe(self, snapshot: Snapshot, live: str, ended: float) -> None:
        """Record the result of a scan.

        Args:
            snapshot: the files that were found.
            live: the digest of the published files, which another caller may have replaced.
            ended: when the scan ended, in seconds.
        """
        was_pending = self.pending
        if live != self._live:
            self._live = self._handled_digest = live
        before, self._observed = self._observed, snapshot
        if before is None or before.digest != snapshot.digest:
            self._changed_at = ended
            self._touched |= dict.fromkeys(_differences(before, snapshot), ended)
        if snapshot.digest == live:
            self._handled, self._touched = snapshot, {}
        if not was_pending:
            self._pending_since = ended

    def ready_to_build(self, now: float) -> Readiness:
        """Return whether the files may be built, which shows whether they grant or remove anything."""
        return Readiness(wait=max(0.0, self._within_patience(self._changed_at + self._periods.quiet) - now))

    def ready_to_publish(self, now: float, *, widens: bool, removes: bool) -> Readiness:
        """Return whether the files may take effect.

        Args:
            now: when the last scan started, in seconds.
            widens: some agent gains permissions.
            removes: some agent is removed.
        """
        removed = self._removed_files()
        grace = self._periods.quiet
        if removes or removed:
            grace = max(grace, self._periods.removal)
        if widens:
            grace = max(grace, self._periods.widening)
        due = self._changed_at + grace
        if now >= due:
            return Readiness()
        if self._handled is None:  # there is no earlier version to hold files at
            return Readiness(wait=due - now)
        if not self.is_out_of_patience(now):
            return Readiness(wait=self._within_patience(due) - now)
        hold = (path for path in self._touched if self._is_in_grace(path, now, removed, widens=widens))
        return Readiness(hold=frozenset(hold))

    def young(self, now: float) -> dict[str, float]:
        """Return the files that may be half-written if they grant permissions, and the seconds until they are not."""
        ends = ((path, at + self._periods.widening - now) for path, at in self._touched.items())
        return {path: seconds for path, seconds in ends if seconds > 0}

    def mark_handled(self, snapshot: Snapshot, live: str, now: float) -> None:
        """Record that a snapshot was published, rejected, or changed nothing.

        Args:
            snapshot: the observed one, or the result of `hold_back`.
            live: the digest of the files that are published now.
            now: when the last scan started, in seconds.
        """
        self._handled, self._handled_digest, self._live = snapshot, snapshot.digest, live
        self._pending_since = now
        different = _differences(snapshot, self._observed)
        self._touched = {path: at for path, at in self._touched.items() if path in different}

    def hold_back(self, paths: frozenset[str]) -> Snapshot:
        """Return the observed snapshot with some files in their last handled version."""
        assert self._observed is not None, "nothing was observed"
        assert self._handled is not None, "nothing was observed"
        return self._observed.with_earlier(paths, self._handled)

    def is_out_of_patience(self, now: float) -> bool:
        """Return whether files have been changing for so long that those which are ready take effect alone."""
        return now >= self._pending_since + self._periods.patience

    def _within_patience(self, due: float) -> float:
        return min(due, self._pending_since + self._periods.patience)

    def _removed_files(self) -> frozenset[str]:
        if self._observed is None or self._handled is None:
            return frozenset()
        before, after = self._handled.files, self._observed.files
        return frozenset(path for path in self._touched if path in before and path not in after)

    def _is_in_grace(self, path: str, now: float, removed: frozenset[str], *, widens: bool) -> bool:
        grace = self._periods.widening if widens else 0.0
        if path in removed:
            grace = max(grace, self._periods.removal)
        return grace > 0 and now - self._touched[path] < grace


def _differences(before: Snapshot | None, after: Snapshot | None) -> set[str]:
    """Return the paths whose content, or problem, differs."""
    if before is None or after is None:
        return set()
    return {*after.changed_files(before), *(problem.path for problem in {*before.problems} ^ {*after.problems})}


T = TypeVar("T")

_STEP_MS, _DEBOUNCE_MS = 10, 400
RETRY_SECONDS, MAX_RETRY_SECONDS = 0.1, 30.0
"""The first and the longest pause after a failure; each pause is twice the previous one."""
_STOP_SECONDS = 0.1
"""Time that a stopped watcher waits for its threads; later they end on their own."""
_TICK_SECONDS = 0.2
"""Interval at which the watched folders are checked for replacement."""

_Identity = tuple[str, int, int]
"""Resolved path, device and inode of a folder."""


@asynccontextmanager
async def watching(catalog: Catalog, settings: ReloadSettings) -> AsyncIterator[Watcher]:
    """Keep a catalog up to date with its files while the context is open."""
    watcher = Watcher(catalog, settings)
    task = asyncio.create_task(watcher.run())
    try:
        yield watcher
    finally:
        task.cancel()
        await asyncio.wait([task])


class Watcher:
    """Scans the project's files after each change event, and every `reload.reconcile` seconds.

    Errors are logged and retried; only cancellation stops it.
    """

    def __init__(self, catalog: Catalog, settings: ReloadSettings) -> None:
        self.restarts = 0
        """How often the operating system's watch failed and was restarted."""
        self._catalog = catalog
        self._reconcile = settings.reconcile
        self._count_cases = bool(settings.gates)
        self._home = catalog.root.parent if catalog.is_single_file else catalog.root
        self._scanner = Scanner(
            catalog.root, single=catalog.is_single_file, known=catalog.current.files, skills=catalog.skill_folders
        )
        periods = GracePeriods(settings.quiet, settings.removal_grace, settings.widening_grace)
        self._debouncer = Debouncer(periods, catalog.current.digest)
        self._contracts_version = _version(catalog.contracts.path)
        self._candidate: Candidate | None = None
        self._load: asyncio.Task[None] | None = None
        """Loads the plugins of `_loading`, in the background: scans go on, and restrictions take effect meanwhile."""
        self._loading: Mapping[str, bytes] = {}
        self._is_plugin_changing = False
        """Whether a load was abandoned since the last publication, because its files changed again."""
        self._scan_requested = asyncio.Event()
        self._next_scan = self._scan_due = 0.0
        """Events trigger no scan before the first time, so that scanning uses at most half of the time. A scan is due
        at the second time."""
        self._stop = threading.Event()
        self._busy = set[asyncio.Future[Any]]()
        """Calls that are running in threads."""

    async def run(self) -> None:
        """Watch until cancelled. May be called once."""
        threads = ThreadPoolExecutor(3, thread_name_prefix="agentsd-watch")  # two wait for events, one scans
        try:
            async with asyncio.TaskGroup() as group:
                if not self._catalog.is_single_file:
                    folders = [self._home / name for name in (*PROJECT_FOLDERS, *self._catalog.skill_folders)]
                    group.create_task(self._watch_events(threads, folders, recursive=True))
                # other content of the home may be huge, and may change all the time
                group.create_task(self._watch_events(threads, [self._home], recursive=False))
                group.create_task(self._scan_repeatedly(threads))
        finally:
            self._abandon_load()
            self._stop.set()
            threads.shutdown(wait=not self._busy, cancel_futures=True)

    # --- events

    async def _watch_events(self, threads: ThreadPoolExecutor, paths: Sequence[Path], *, recursive: bool) -> None:
        """Watch folders; restart when they are replaced or the watch fails."""
        loop, pause = asyncio.get_running_loop(), RETRY_SECONDS
        while True:
            started = loop.time()
            with closing(WatchedFolders(paths)) as folders:
                forward = partial(self._forward_events, folders, threads, loop, recursive=recursive)
                try:
                    await self._in_thread(threads, _convert_panics(forward))
                except Exception as error:  # noqa: BLE001 - any failure of the watch may be temporary
                    if not folders.have_changed():
                        self.restarts += 1
                        reason = str(error) or type(error).__name__
                        log.warning("the file watcher failed; restarting it: %s", reason)
                    self._request_scan()
                    pause = min(2 * pause, MAX_RETRY_SECONDS) if loop.time() - started < 2 * pause else RETRY_SECONDS
                    await folders.until_changed(pause)

    def _forward_events(
        self,
        folders: WatchedFolders,
        threads: ThreadPoolExecutor,
        loop: asyncio.AbstractEventLoop,
        *,
        recursive: bool,
    ) -> None:
        """Request a scan for each event until the folders are replaced or the process ends. Runs in a thread.

        Without `recursive`, the settings files are also examined at each tick, because they may link to other folders,
        and so are the accepted definitions of tools, because a store that changes all the time is beside them.
        """
        from watchfiles import watch  # slow to import; only a process that watches needs it

        changes = watch(
            *(folders.existing or [self._home]),
            watch_filter=None,  # the scan decides which files matter; a filter would miss replaced folders
            step=_STEP_MS,
            debounce=_DEBOUNCE_MS,
            rust_timeout=int(_TICK_SECONDS * 1000),
            yield_on_timeout=True,
            stop_event=self._stop,
            recursive=recursive and bool(folders.existing),
        )
        first, settings = True, self._settings_version()
        with closing(changes):
            for changed in changes:
                replaced = folders.have_changed()
                relevant = bool(changed)
                if not recursive:
                    before, settings = settings, self._settings_version()
                    relevant = settings != before or self._concerns_project({path for _, path in changed})
                    accepted, self._contracts_version = self._contracts_version, _version(self._catalog.contracts.path)
                    if self._contracts_version != accepted:
                        with suppress(RuntimeError):  # the loop is closed
                            loop.call_soon_threadsafe(self._catalog.request_refresh)
                if relevant or replaced or first:  # a change before the watch started caused no event
                    with suppress(RuntimeError):  # the loop is closed
                        loop.call_soon_threadsafe(self._request_scan)
                if replaced or not _accepts_work(threads):
                    return
                first = False

    def _concerns_project(self, paths: set[str]) -> bool:
        """Return whether a file beside the folders belongs to the project: a store or a log changes all the time."""
        settings = (str(self._home / name) for name in settings_files())
        return bool(paths) if self._catalog.is_single_file else not paths.isdisjoint(settings)

    def _settings_version(self) -> tuple[Fingerprint | None, ...]:
        return tuple(_version(self._home / name) for name in settings_files())

    def _request_scan(self) -> None:
        self._scan_requested.set()

    # --- scans

    async def _scan_repeatedly(self, threads: ThreadPoolExecutor) -> None:
        pause = RETRY_SECONDS
        while True:
            self._scan_requested.clear()
            try:
                due = await self._scan(threads)
            except (Exception, asyncio.CancelledError) as error:
                if _is_cancelled(error):
                    raise
                log.exception("scanning the project's files failed")
                await asyncio.sleep(min(pause, self._reconcile))
                pause = min(2 * pause, MAX_RETRY_SECONDS)
                continue
            pause = RETRY_SECONDS
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._scan_requested.wait()

    async def _scan(self, threads: ThreadPoolExecutor) -> float:
        """Scan the files and publish those that are ready. Return the loop time of the next scan."""
        now = asyncio.get_running_loop().time
        await asyncio.sleep(min(self._next_scan, self._scan_due) - now())
        self._scan_requested.clear()
        started = now()
        snapshot = await self._in_thread(threads, self._scan_all)
        self._next_scan = now() + (now() - started)
        self._debouncer.observe(snapshot, self._catalog.current.digest, now())
        self._scan_due = await self._publish_if_ready(snapshot, started)
        return self._scan_due

    async def _publish_if_ready(self, snapshot: Snapshot, started: float) -> float:
        """Publish the files of a scan, if they are ready. Return the loop time of the next one."""
        debouncer, reconcile_due = self._debouncer, asyncio.get_running_loop().time() + self._reconcile
        if not debouncer.pending:
            self._abandon_load()
        while debouncer.pending:
            if wait := debouncer.ready_to_build(started).wait:
                return started + wait
            hold = frozenset[str]()
            if not await self._is_loaded(snapshot):
                wait = await self._publish_restrictions(snapshot, started)
                hold = self._plugins_to_hold(started)
                if not hold:
                    return started + wait if wait else reconcile_due
            if wait := await self._publish_ready(snapshot, hold, started):
                return started + wait
            if hold:
                break
        return reconcile_due

    async def _publish_ready(self, snapshot: Snapshot, hold: frozenset[str], started: float) -> float:
        """Publish files whose plugins are loaded. Return the seconds for which they must wait.

        The files in `hold` keep their earlier version.
        """
        debouncer = self._debouncer
        ready = self._with_cases(debouncer.hold_back(hold)) if hold else snapshot
        candidate = await self._build(ready)
        if candidate is None:
            debouncer.mark_handled(ready, self._catalog.current.digest, started)
            return 0
        readiness = debouncer.ready_to_publish(started, widens=candidate.widens, removes=candidate.removes)
        wait = readiness.wait
        if (wait or readiness.hold) and (candidate.restricts or candidate.removes):
            wait = min(wait, await self._publish_restrictions(ready, started) or wait)
        if readiness.hold:
            await self._publish_without(readiness.hold | hold, started)
        elif not wait and await self._publish(candidate):
            debouncer.mark_handled(ready, self._catalog.current.digest, started)
            self._is_plugin_changing = bool(hold)
        return wait

    # --- plugins

    async def _is_loaded(self, snapshot: Snapshot) -> bool:
        """Return whether a snapshot can be built without a delay. Otherwise, load its plugins in the background."""
        plugins = snapshot.files_in(PLUGINS)
        if self._load is not None and plugins == self._loading:
            if not self._load.done():
                return False
            load, self._load = self._load, None
            load.result()
            return True
        if self._load is not None and not self._load.done():
            self._is_plugin_changing = True
        self._abandon_load()
        if not await self._catalog.must_load(snapshot):
            return True
        self._loading, self._load = plugins, asyncio.create_task(self._catalog.load(snapshot))
        self._load.add_done_callback(lambda load: None if load.cancelled() else self._request_scan())
        return False

    def _abandon_load(self) -> None:
        if self._load is not None:
            self._load.cancel()
            self._load = None

    async def _publish_restrictions(self, snapshot: Snapshot, started: float) -> float:
        """Publish what an edit restricts while the rest of it waits. Return the seconds until there may be more."""
        young = self._debouncer.young(started)
        wait = min(young.values(), default=0.0)
        while candidate := await self._catalog.prepare_restrictions(snapshot, frozenset(young)):
            readiness = self._debouncer.ready_to_publish(started, widens=candidate.widens, removes=candidate.removes)
            if readiness.wait or readiness.hold or await self._catalog.publish_restrictions(candidate):
                return min(filter(None, (wait, readiness.wait)), default=0.0)
        return wait

    def _plugins_to_hold(self, started: float) -> frozenset[str]:
        """Return the plugin files to publish in their earlier version: they change again and again while they load."""
        if not self._is_plugin_changing or not self._debouncer.is_out_of_patience(started):
            return frozenset()
        return frozenset(path for path in self._debouncer.touched if path.startswith(PLUGINS + "/"))

    async def _build(self, snapshot: Snapshot) -> Candidate | None:
        """Build the candidate of a snapshot, or return the one already built.

        None if the snapshot changes nothing or was rejected before.
        """
        last = self._candidate
        if last is None or last.digest != snapshot.digest or last.before is not self._catalog.current:
            self._candidate = await self._catalog.prepare(snapshot)
        return self._candidate

    async def _publish(self, candidate: Candidate) -> bool:
        """Publish a candidate; return False if the catalog still serves another generation."""
        self._candidate = None
        return (await self._catalog.publish(candidate, trigger="watch")).digest == candidate.digest

    async def _publish_without(self, hold: frozenset[str], started: float) -> None:
        held = self._with_cases(self._debouncer.hold_back(hold))
        candidate = await self._catalog.prepare(held)
        if candidate is not None:
            await self._publish(candidate)
        self._debouncer.mark_handled(held, self._catalog.current.digest, started)

    async def _in_thread(self, threads: ThreadPoolExecutor, function: Callable[[], T]) -> T:
        """Call a function in a thread. When cancelled, wait up to `_STOP_SECONDS` for the thread to end."""
        future = asyncio.get_running_loop().run_in_executor(threads, function)
        self._busy.add(future)
        future.add_done_callback(self._busy.discard)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._stop.set()
            await asyncio.wait([future], timeout=_STOP_SECONDS)
            raise

    def _scan_all(self) -> Snapshot:
        return self._with_cases(self._scanner.scan())

    def _with_cases(self, snapshot: Snapshot) -> Snapshot:
        return snapshot.with_cases_in_digest() if self._count_cases else snapshot


class WatchedFolders:
    """The identities of folders at one moment, to detect when one is replaced by another.

    The folders stay open until `close`: otherwise a recreated folder could have the same inode.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(paths)
        self._descriptors: list[int] = []
        self._identities = [self._open(path) for path in self._paths]

    @property
    def existing(self) -> tuple[Path, ...]:
        """The paths that are folders."""
        return tuple(path for path, identity in zip(self._paths, self._identities, strict=True) if identity)

    def have_changed(self) -> bool:
        """Return whether a folder was created, deleted or replaced."""
        now = WatchedFolders(self._paths)
        now.close()
        return now._identities != self._identities

    async def until_changed(self, seconds: float) -> None:
        """Wait until a folder is created, deleted or replaced, at most `seconds`."""
        now = asyncio.get_running_loop().time
        ends = now() + seconds
        while (remaining := ends - now()) > 0:
            await asyncio.sleep(min(remaining, _TICK_SECONDS))
            if self.have_changed():
                return

    def close(self) -> None:
        """Close the folders."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _open(self, path: Path) -> _Identity | None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._descriptors.append(descriptor)
            status = os.fstat(descriptor)  # fails on network mounts whose folder was deleted
        except OSError:
            return None
        return os.path.realpath(path), status.st_dev, status.st_ino


def _version(path: Path) -> Fingerprint | None:
    """Return a value that changes with a file; None if it does not exist."""
    try:
        return fingerprint(path.stat())
    except OSError:
        return None


def _convert_panics(function: Callable[[], T]) -> Callable[[], T]:
    """Return a function that raises RuntimeError instead of a BaseException.

    A panic in watchfiles' Rust code is not an Exception and would stop the watcher.
    """

    def call() -> T:
        try:
            return function()
        except Exception:
            raise
        except BaseException as error:
            raise RuntimeError(str(error) or type(error).__name__) from error

    return call


def _accepts_work(threads: ThreadPoolExecutor) -> bool:
    """Return False once the interpreter is shutting down; it waits for threads that a runtime left open."""
    try:
        threads.submit(bool)
    except RuntimeError:
        return False
    return True


def _is_cancelled(error: BaseException) -> bool:
    """Return whether the current task is cancelled; a function it calls may also raise CancelledError on its own."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
