"""Watches the project's folders. An event is only a hint that something changed: the scan of the files is the truth."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from framework.config.files.debounce import Graces, Settling
from framework.config.files.roots import TICK_SECONDS, Roots
from framework.config.files.snapshot import AGENTS, FOLDERS, PROMPTS, Scanner, Snapshot
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
        graces = Graces(settings.quiet, settings.removal_grace, settings.widening_grace)
        self._settling = Settling(graces, catalog.current.digest)
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
            with closing(Roots(self._folders())) as roots:
                try:
                    await self._in_thread(threads, _safe(partial(self._watch, roots, threads, loop)))
                except Exception as error:  # noqa: BLE001 - what the watch stumbles over may be gone next time
                    if not roots.changed():
                        self.restarts += 1
                        why = str(error) or type(error).__name__
                        log.warning("the file watcher failed and is started again: %s", why)
                    self._hinted.set()
                    pause = min(2 * pause, RETRY_MOST_SECONDS) if loop.time() - began < 2 * pause else RETRY_SECONDS
                    await roots.until_changed(pause)

    def _folders(self) -> list[Path]:
        return [self._home] if self._catalog.single else [self._home / name for name in FOLDERS]

    def _watch(self, roots: Roots, threads: ThreadPoolExecutor, loop: asyncio.AbstractEventLoop) -> None:
        """Pass on hints until the folders are no longer the same, or the process ends, in a thread."""
        from watchfiles import watch  # not needed by a process that does not watch

        changes = watch(
            *(roots.folders or [self._home]),
            watch_filter=None,  # the scan decides what counts; a filter here would miss swapped folders
            step=STEP_MS,
            debounce=DEBOUNCE_MS,
            rust_timeout=int(TICK_SECONDS * 1000),
            yield_on_timeout=True,
            stop_event=self._stop,
            recursive=bool(roots.folders) and not self._catalog.single,  # what else lies there may be huge
        )
        first = True
        with closing(changes):
            for changed in changes:
                moved = roots.changed()
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
        now, settling = asyncio.get_running_loop().time, self._settling
        began = now()
        seen = await self._in_thread(threads, self._scan)
        was_pending = settling.pending
        self._next_scan = now() + (now() - began)
        settling.look(seen, self._catalog.current.digest, now())
        if settling.pending and not was_pending and self._may_be_built_early(seen):
            await self._built(seen)  # meanwhile it settles
        while settling.pending:
            if wait := settling.quiet(began).wait:
                return began + wait
            candidate = await self._built(seen)
            if candidate is None:
                settling.answer(seen, self._catalog.current.digest, began)
                break
            verdict = settling.verdict(began, widens=candidate.widens, removes=candidate.removes)
            if verdict.wait:
                return began + verdict.wait
            if verdict.hold:
                await self._go_live_without(verdict.hold, began)
            elif await self._goes_live(candidate):
                settling.answer(seen, self._catalog.current.digest, began)
        return now() + self._reconcile

    def _may_be_built_early(self, seen: Snapshot) -> bool:
        """A small edit that runs nothing and asks nobody when it is built; not what is live: that ends a hold."""
        touched = self._settling.touched
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
        held = self._counted(self._settling.held(hold))
        candidate = await self._catalog.prepare(held)
        if candidate is not None:
            await self._goes_live(candidate)
        self._settling.answer(held, self._catalog.current.digest, began)

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
        return snapshot.with_cases_counted() if self._count_cases else snapshot


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
