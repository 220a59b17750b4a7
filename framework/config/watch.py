"""Watches the project's folders. An event is only a hint that something changed: the scan of the files is the truth."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from framework.config.files.debounce import Debouncer, GracePeriods
from framework.config.files.snapshot import AGENTS, PROJECT_FOLDERS, PROMPTS, Scanner, Snapshot
from framework.config.generations.candidate import Candidate
from framework.config.generations.catalog import Catalog
from framework.config.settings import ReloadSettings

log = logging.getLogger(__name__)

T = TypeVar("T")

STEP_MS, DEBOUNCE_MS = 10, 400
RETRY_SECONDS, RETRY_MOST_SECONDS = 0.1, 30.0
"""The pauses after failures: each is twice the one before."""
FEW = 10
"""So many files are saved at once; more are in the middle of being written when the first of them are seen."""
STOP_SECONDS = 0.1
"""How long a watcher that is stopped waits for its threads; they end by themselves."""
_TICK_SECONDS = 0.2
"""How often the identity of the watched folders is checked."""

_Identity = tuple[str, int, int]
"""Resolved path, device and inode of a folder."""


@asynccontextmanager
async def watching(catalog: Catalog, settings: ReloadSettings) -> AsyncIterator[Watcher]:
    """Keep a catalog at what its files say, while the context is open."""
    watcher = Watcher(catalog, settings)
    task = asyncio.create_task(watcher.run())
    try:
        yield watcher
    finally:
        task.cancel()
        await asyncio.wait([task])


class Watcher:
    """Looks at the files whenever the operating system hints at a change, and every `reload.reconcile` without any.

    No failure ends it.
    """

    def __init__(self, catalog: Catalog, settings: ReloadSettings) -> None:
        self.restarts = 0
        """How often the operating system's watch failed and was begun again."""
        self._catalog = catalog
        self._reconcile = settings.reconcile
        self._count_cases = settings.gate != "none"
        self._home = catalog.root.parent if catalog.single else catalog.root
        self._scanner = Scanner(catalog.root, single=catalog.single)
        graces = GracePeriods(settings.quiet, settings.removal_grace, settings.widening_grace)
        self._debouncer = Debouncer(graces, catalog.current.digest)
        self._candidate: Candidate | None = None
        self._hinted = asyncio.Event()
        self._next_scan = 0.0
        """No hint leads to one before: half of the time is for others, such as whoever writes the files here."""
        self._stop = threading.Event()
        self._busy = set[asyncio.Future[Any]]()
        """What goes on in threads."""

    async def run(self) -> None:
        """Watch until cancelled. Once only."""
        threads = ThreadPoolExecutor(2, thread_name_prefix="agentsd-watch")  # one listens, one reads
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._listen(threads))
                group.create_task(self._look_again_and_again(threads))
        finally:
            self._stop.set()
            threads.shutdown(wait=not self._busy, cancel_futures=True)

    # --- hints

    async def _listen(self, threads: ThreadPoolExecutor) -> None:
        """Have the folders watched; again when they are no longer the same, or the watch failed."""
        loop, pause = asyncio.get_running_loop(), RETRY_SECONDS
        while True:
            began = loop.time()
            with closing(WatchedFolders(self._folders())) as folders:
                try:
                    await self._in_thread(threads, _safe(partial(self._watch, folders, threads, loop)))
                except Exception as error:  # noqa: BLE001 - what the watch stumbles over may be gone next time
                    if not folders.have_changed():
                        self.restarts += 1
                        why = str(error) or type(error).__name__
                        log.warning("the file watcher failed and is started again: %s", why)
                    self._hinted.set()
                    pause = min(2 * pause, RETRY_MOST_SECONDS) if loop.time() - began < 2 * pause else RETRY_SECONDS
                    await folders.until_changed(pause)

    def _folders(self) -> list[Path]:
        return [self._home] if self._catalog.single else [self._home / name for name in PROJECT_FOLDERS]

    def _watch(self, folders: WatchedFolders, threads: ThreadPoolExecutor, loop: asyncio.AbstractEventLoop) -> None:
        """Pass on hints until the folders are no longer the same, or the process ends, in a thread."""
        from watchfiles import watch  # not needed by a process that does not watch

        changes = watch(
            *(folders.existing or [self._home]),
            watch_filter=None,  # the scan decides what counts; a filter here would miss swapped folders
            step=STEP_MS,
            debounce=DEBOUNCE_MS,
            rust_timeout=int(_TICK_SECONDS * 1000),
            yield_on_timeout=True,
            stop_event=self._stop,
            recursive=bool(folders.existing) and not self._catalog.single,  # what else lies there may be huge
        )
        first = True
        with closing(changes):
            for changed in changes:
                moved = folders.have_changed()
                if changed or moved or first:  # a change before the watch began had no event
                    self._hint(loop)
                if moved or not _takes_work(threads):
                    return
                first = False

    def _hint(self, loop: asyncio.AbstractEventLoop) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(self._hinted.set)

    # --- looks

    async def _look_again_and_again(self, threads: ThreadPoolExecutor) -> None:
        pause = RETRY_SECONDS
        while True:
            self._hinted.clear()
            try:
                due = await self._look(threads)
            except (Exception, asyncio.CancelledError) as error:
                if _is_cancelled(error):
                    raise
                log.exception("a look at the project's files failed")
                await asyncio.sleep(min(pause, self._reconcile))
                pause = min(2 * pause, RETRY_MOST_SECONDS)
                continue
            pause = RETRY_SECONDS
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._hinted.wait()
                    await asyncio.sleep(self._next_scan - asyncio.get_running_loop().time())

    async def _look(self, threads: ThreadPoolExecutor) -> float:
        """Read the files, and let go live what may. Returns when to look next, by the loop's clock."""
        now, debouncer = asyncio.get_running_loop().time, self._debouncer
        began = now()
        seen = await self._in_thread(threads, self._scan)
        was_pending = debouncer.pending
        self._next_scan = now() + (now() - began)
        debouncer.observe(seen, self._catalog.current.digest, now())
        if debouncer.pending and not was_pending and self._may_be_built_early(seen):
            await self._built(seen)  # meanwhile it settles
        while debouncer.pending:
            if wait := debouncer.ready_to_build(began).wait:
                return began + wait
            candidate = await self._built(seen)
            if candidate is None:
                debouncer.mark_handled(seen, self._catalog.current.digest, began)
                break
            verdict = debouncer.ready_to_publish(began, widens=candidate.widens, removes=candidate.removes)
            if verdict.wait:
                return began + verdict.wait
            if verdict.hold:
                await self._go_live_without(verdict.hold, began)
            elif await self._goes_live(candidate):
                debouncer.mark_handled(seen, self._catalog.current.digest, began)
        return now() + self._reconcile

    def _may_be_built_early(self, seen: Snapshot) -> bool:
        """A small edit that runs nothing and asks nobody when it is built; not what is live: that ends a hold."""
        touched = self._debouncer.touched
        if touched is None or len(touched) > FEW or seen.digest == self._catalog.current.digest:
            return False
        return all(path.startswith((AGENTS + "/", PROMPTS + "/")) for path in touched)

    async def _built(self, snapshot: Snapshot) -> Candidate | None:
        """What a snapshot would make live; built once for as long as it is looked at again and again."""
        known = self._candidate
        if known is None or known.digest != snapshot.digest or known.before is not self._catalog.current:
            self._candidate = await self._catalog.prepare(snapshot)
        return self._candidate

    async def _goes_live(self, candidate: Candidate) -> bool:
        """Publish; false if the catalog still serves something else, for whatever reason."""
        self._candidate = None
        return (await self._catalog.publish(candidate, trigger="watch")).digest == candidate.digest

    async def _go_live_without(self, hold: frozenset[str], began: float) -> None:
        held = self._counted(self._debouncer.hold_back(hold))
        candidate = await self._catalog.prepare(held)
        if candidate is not None:
            await self._goes_live(candidate)
        self._debouncer.mark_handled(held, self._catalog.current.digest, began)

    async def _in_thread(self, threads: ThreadPoolExecutor, function: Callable[[], T]) -> T:
        """Call a function in a thread; when cancelled, wait a moment for the thread to end."""
        future = asyncio.get_running_loop().run_in_executor(threads, function)
        self._busy.add(future)
        future.add_done_callback(self._busy.discard)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._stop.set()
            await asyncio.wait([future], timeout=STOP_SECONDS)
            raise

    def _scan(self) -> Snapshot:
        return self._counted(self._scanner.scan())

    def _counted(self, snapshot: Snapshot) -> Snapshot:
        return snapshot.with_cases_in_digest() if self._count_cases else snapshot


class WatchedFolders:
    """The folders among some paths, as they are now.

    Holds them open until `close`: a folder that is deleted and made again could have the same inode otherwise.
    """

    def __init__(self, wanted: Iterable[Path]) -> None:
        self._wanted = tuple(wanted)
        self._descriptors: list[int] = []
        self._identities = [self._open(path) for path in self._wanted]

    @property
    def existing(self) -> tuple[Path, ...]:
        """Those of the paths that are folders."""
        return tuple(path for path, found in zip(self._wanted, self._identities, strict=True) if found)

    def have_changed(self) -> bool:
        """Whether another folder, or none, stands where one of these stood, or one where there was none."""
        now = WatchedFolders(self._wanted)
        now.close()
        return now._identities != self._identities

    async def until_changed(self, seconds: float) -> None:
        """Wait until other folders stand there, but no longer than so many seconds."""
        now = asyncio.get_running_loop().time
        ends = now() + seconds
        while (left := ends - now()) > 0:
            await asyncio.sleep(min(left, _TICK_SECONDS))
            if self.have_changed():
                return

    def close(self) -> None:
        """Let go of the folders."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _open(self, path: Path) -> _Identity | None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._descriptors.append(descriptor)
            status = os.fstat(descriptor)  # fails on network mounts whose folder is gone
        except OSError:
            return None
        return os.path.realpath(path), status.st_dev, status.st_ino


def _safe(function: Callable[[], T]) -> Callable[[], T]:
    """The same, but what it raises is an Exception: a panic of watchfiles' Rust code is none, and would end all."""

    def call() -> T:
        try:
            return function()
        except Exception:
            raise
        except BaseException as error:
            raise RuntimeError(str(error) or type(error).__name__) from error

    return call


def _takes_work(threads: ThreadPoolExecutor) -> bool:
    """False when the process is about to end, and waits for its threads: a runtime may have been left open."""
    try:
        threads.submit(bool)
    except RuntimeError:
        return False
    return True


def _is_cancelled(error: BaseException) -> bool:
    """Whether it is this task that is to end; what the task calls may raise CancelledError on its own."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
