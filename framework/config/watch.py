"""Watches the project's folders. An event is only a hint that something changed: the catalog's scan is the truth."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing, suppress
from pathlib import Path

from framework.config.catalog import Catalog
from framework.config.snapshot import FOLDERS

log = logging.getLogger(__name__)

STEP_MS = 20
TICK_MS = 200
RECONCILE_SECONDS = 2.0
RESTART_SECONDS = 1.0

Folders = dict[Path, tuple[int, int]]
"""The folders watched, each with its device and inode: one that was replaced needs a new watch."""


async def watch(catalog: Catalog, *, quiet: float) -> None:
    """Reload the catalog after every change, once files have been left alone for `quiet` seconds. Runs until cancelled.

    Folders that appear later, and changes that the operating system does not report, are found by a look every
    `RECONCILE_SECONDS`. No failure ends the watch.
    """
    while True:
        try:
            await _watch_folders(catalog, _folders(catalog), quiet)
        except* Exception as errors:  # noqa: BLE001 - what the watcher or a reload stumbles over may be gone next time
            log.warning("the file watcher failed and is started again: %s", errors.exceptions[0])
            await asyncio.sleep(RESTART_SECONDS)


async def _watch_folders(catalog: Catalog, folders: Folders, quiet: float) -> None:
    """Watch until the folders themselves are no longer the same."""
    from watchfiles import Change, awatch  # not needed by a process that does not watch

    await catalog.reload()  # what changed while nobody watched
    changes = awatch(
        *(folders or [_home(catalog)]),
        watch_filter=None,  # the scan decides what counts; a filter here would miss swapped directories
        step=STEP_MS,
        debounce=400,
        rust_timeout=TICK_MS,
        yield_on_timeout=True,
        recursive=bool(folders) and not catalog.single,  # what else lies beside a file or a project may be huge
    )
    now, next_look = asyncio.get_running_loop().time, 0.0  # the first at once: the watch began after the reload
    async with aclosing(changes):
        async for changed in changes:
            if changed:
                await asyncio.sleep(quiet)
            elif now() < next_look:
                continue
            await catalog.reload()
            next_look = now() + RECONCILE_SECONDS
            # A folder that was deleted and made again can have the same inode.
            gone = any(Path(path) in folders for change, path in changed if change is Change.deleted)
            if gone or _folders(catalog) != folders:
                return


def _home(catalog: Catalog) -> Path:
    return catalog.root.parent if catalog.single else catalog.root


def _folders(catalog: Catalog) -> Folders:
    wanted = [_home(catalog)] if catalog.single else [catalog.root / name for name in FOLDERS]
    found: Folders = {}
    for folder in wanted:
        with suppress(OSError):
            status = folder.stat()
            found[folder] = (status.st_dev, status.st_ino)
    return found
